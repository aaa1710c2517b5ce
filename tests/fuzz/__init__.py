"""Readers of bytes from elsewhere, given damaged ones: a typed error, in bounded time and memory.

Each reader has a file here and a folder below ``corpus``: inputs that it reads, and those that it
once failed at. ``make test`` runs each for seconds, ``make test-all`` for five minutes.
"""
