"""The client of the service: labs elsewhere, from Python.

::

    from lab.client import Client

    with Client() as client, client.lab("pxc", nodes=3) as lab:
        print(lab.dsn)

The address and the token come from LAB_URL and LAB_TOKEN unless they are given. What goes wrong
is raised as the program's own errors (``lab.errors``), whatever the service said it as; a service
that cannot be reached is HostUnfit. Times are epoch seconds, durations seconds, sizes bytes.

::

    client      what one can ask for
      making    labs, and calling that off; builds: images and templates
      jobs      what takes time
      wire      requests, tried again where that is safe; events
        problem what the service refuses, as our errors
      answers   what it answers, as our views
      access    where it is, and with which token
"""

from lab.client.client import Client as Client
from lab.client.models import Job as Job  # these are what it offers
from lab.client.models import Lab as Lab
