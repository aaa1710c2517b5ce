"""Schema migrations, run by ``lab.state.migrate``.

A new one: ``python -m lab.state.migrate "what changes"``, look it over, and set ``REVISION`` in
``lab/state/revision.py`` to its number. Numbers have four digits and count up: a state file
with a higher one than ``REVISION`` was written by a newer program.
"""
