"""Archives: an image or a template as one stream of bytes, for a file, a pipe or another host.

docs/exchange.md draws the format. Data in, data out: what is here knows streams and one
directory of its own; what an archive's parts are made of and become is the lifecycle's.

::

    header    what is in an archive; trust: what of it is believed
    frames    the bytes: framed, chained by digests, so that damage is located
    content   parts as chunks: of a file, of a volume, of what a volume changed of its image
    sending   the parts that the other side wants, from where it has them
    stage     where parts gather until all are there; kept for a while, if wanted
    receiving from frames into a stage
    files     the file that is written to, whole or with the name of a partial one
    talk      what two hosts say to each other over SSH
"""
