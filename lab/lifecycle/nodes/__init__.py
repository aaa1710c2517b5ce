"""The nodes of a lab: made, personalised, ready, recovered."""
