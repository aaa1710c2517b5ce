"""Disposable VM labs of MySQL-family clusters: clones of a formed cluster."""
