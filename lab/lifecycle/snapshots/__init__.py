"""Snapshots of labs: taken, listed, removed, kept by a schedule."""
