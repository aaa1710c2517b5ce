"""Locks of the kernel: on files, by name, in a queue."""
