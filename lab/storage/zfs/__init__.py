"""The ``zfs`` storage: every volume is a ZVol, a guest opens ``/dev/zvol/...`` as a raw disk.

::

    tank/lab                          the parent dataset: the setting ``pool``
    tank/lab/labs/pxc                 a folder: a file system that is never mounted
    tank/lab/labs/pxc/n1_os           a volume; its snapshots carry our tag too
    tank/lab/labs/pxc/n1_os_1         the same volume, put back past a later snapshot
    tank/lab/images/<key>/base_os     written once, its snapshot held
    tank/lab/.work/<token>.0          being made, or to be destroyed

What is ours says so by itself: user properties set on the dataset itself (never inherited,
never received) in the same command that makes it. So a volume appears whole, with its tags,
or not at all, and nothing but the pool need be trusted.

Rolling back past a later snapshot would destroy that in ZFS. Here such a rollback is one more
clone, of the wanted snapshot: the newest dataset of a volume is what guests open, the older
ones keep their snapshots. That is one atomic command as well, and promotes nothing.
"""
