"""The verbs, a folder for each noun, and what they share."""
