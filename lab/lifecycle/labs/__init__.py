"""The verbs of a lab: made, started, changed, used and removed."""
