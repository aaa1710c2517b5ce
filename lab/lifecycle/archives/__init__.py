"""Captures and images as archives: exported, imported."""
