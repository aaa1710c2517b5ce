"""Captures: taken, checked, cloned."""
