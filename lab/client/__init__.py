"""The client of the service: labs elsewhere, from Python.

::

    from lab.client import Client

    with Client() as client, client.lab("pxc", nodes=3) as lab:
        print(lab.dsn)

The address and the token come from LAB_URL and LAB_TOKEN unless they are given. Errors are those
of ``lab.errors``, also for problems that the service reports; HostUnfit if it cannot be reached.
Times are epoch seconds, durations seconds, sizes bytes.

::

    client                the verbs
      create              labs, images and templates, and the cancellation of their jobs
      snapshots tokens archives heartbeat
        jobs              jobs and their events
          transport       requests, retried where that is safe; pages, streams of events
      tunnel              WebSockets to nodes and for archives
          requests        bodies of requests
          models problem  answers as views, and as errors
          credentials ca  URL, token and the CA certificate
"""

from lab.client.client import Client as Client
from lab.client.models import Job as Job  # part of the interface
from lab.views.labs import Lab as Lab
