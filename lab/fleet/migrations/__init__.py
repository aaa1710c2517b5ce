"""How the tables of a fleet became what they are."""
