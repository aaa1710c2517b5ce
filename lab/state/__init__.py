"""The record: what was intended, by whom, and what was made of it.

It records intent and ownership; what exists is asked of storage and hypervisor. ``records``
are the rows as frozen dataclasses (cheap to import), ``store`` is the way to them (costs
the import of SQLAlchemy).
"""
