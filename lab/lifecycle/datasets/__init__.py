"""Datasets: how data get into an image, named and versioned, from which labs are made.

What can be said of data without files, guests and records is in ``lab.datasets``; the request is in
``lab.requests.datasets``, the view in ``lab.views.datasets``.

::

    dataset    the verbs: create, refresh, show, scan, remove
    load       from a source to the disks of an image; of these steps:
      apart    the source is read, in a process of its own
      spool    its SQL, in one file
      physical   or its physical backup, as one stream
      loader   a server in a guest executes it
      outside  what the source had beside databases
      masking  a staging server masks the data
      transfer   and what it has becomes another server's
    of_lab     or: a lab's node wakes alone, and its disks are copied
    worth      what a version has at least

``lab.lifecycle.images.provenance`` records how a version was made, ``captures.retire`` removes one
with its last lab: rooms below this one need them.
"""
