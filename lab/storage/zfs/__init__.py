"""The ``zfs`` storage: every volume is a ZVol, a guest opens ``/dev/zvol/...`` as a raw disk.

::

    tank/lab                          the parent dataset: the setting ``pool``
    tank/lab/labs/pxc                 a folder: a file system that is never mounted
    tank/lab/labs/pxc/n1_os           a volume; its snapshots carry our tag too
    tank/lab/labs/pxc/n1_os_1         the same volume, rolled back past a later snapshot; or its
                                      spare disk, if it has that mark
    tank/lab/images/<key>/base_os     written once, its snapshot held
    tank/lab/.work/<token>.0          being made, or to be destroyed

Our datasets are marked by user properties, set on the dataset itself (not inherited, not
received) by the command that creates it. So a volume and its tags appear in one step, and the pool
is the only record of them.

Rolling back past a later snapshot would destroy that in ZFS. Here such a rollback is one more
clone, of the wanted snapshot: the newest dataset of a volume is what guests open, the older
ones keep their snapshots. That is one atomic command as well, and promotes nothing.
"""
