"""Archives: images, templates, snapshots and datasets, exported and imported.

``lab.exchange`` has their format and the protocol of two hosts, ``lab.requests.archives`` where
they go and how they are taken.

::

    export            images, templates and datasets; delivers all of them
    import_archive    what arrives, of any kind
      import_image      an image, or a dataset
      import_template   a template, or a snapshot
    snapshot_archive  a snapshot is exported, and imported as a lab
    describe          records and captures as headers say them, and the way back
"""
