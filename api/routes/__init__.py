"""The resources, one a file."""
