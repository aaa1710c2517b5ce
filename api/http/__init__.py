"""Requests: authenticated, limited, answered."""
