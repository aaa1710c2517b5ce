"""Benchmarks of labs: a run, a comparison, and the results that are kept."""
