"""pytest's plugin: labs as fixtures."""
