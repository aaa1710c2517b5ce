"""Benchmarks as pure functions: workloads, what sysbench prints, counters, statistics, history.

Nothing here talks to a guest: ``lab.lifecycle.bench`` does.
"""
