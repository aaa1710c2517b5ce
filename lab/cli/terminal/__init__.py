"""Output, progress, signals."""
