"""What every verb works with."""
