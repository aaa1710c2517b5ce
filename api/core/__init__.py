"""What all parts of the service share: see ``core``."""
