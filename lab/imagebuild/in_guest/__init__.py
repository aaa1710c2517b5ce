"""Building an image in a guest, for hosts that cannot do it themselves."""
