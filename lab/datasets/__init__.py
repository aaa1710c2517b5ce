"""Data for labs: sources, dumps, masking and generated tables; pure functions of what is given."""
