"""Looking into builds of servers that others made: what they hold, and what they need."""
