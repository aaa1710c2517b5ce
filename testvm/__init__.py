"""A virtual machine with real OpenZFS, in which the platform tests run.

The kernel of the host need not have ZFS: ``make test-zfs`` builds a small guest for each
OpenZFS release, once, boots it with blank disks and runs ``tests/platform`` inside::

    __main__      verbs: test, build, keep, exec, console
      host        whether this host can do it itself, or run the guest, and why not
      cache       images by content key, built once, published whole
        build     an image: mmdebstrap, the ZFS module, Python packages, a disk
        release   what is in an image, as data
      runner      a guest for one run
      kept        a guest for many runs
        machine   QEMU's command line
        overlay   our own files, handed over with each boot
        session   one conversation with the agent in the guest
        checkout  the working files as an archive
      agent       runs in the guest
        wire      the messages of both
      image/      scripts that run in a root file system while an image is built
      guest/      what starts in the guest
"""
