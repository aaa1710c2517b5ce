"""What a cluster was when something failed, as one file: a bundle.

Data in, data out: what is asked of nodes (``questions``), what is taken out of the answers
(``redact``), and the archive with its index (``packing``, ``page``). ``lab.lifecycle.labs.bundle``
collects.
"""
