"""What the service does by itself."""
