"""Many hosts: what they share, in one PostgreSQL.

Each host runs the whole service on its own record and its own jobs; nothing of a lab's life needs
another host. Shared is only what concerns more than one: which hosts there are, where a requested
lab is to be made, which host has which lab, and tokens.

::

    database     connections, transactions, and errors; its schema by ``lab db migrate``
    hosts        who belongs to it: epochs, heartbeats, who is lost
    placements   jobs that were given to a host, or wait for one
    choose       which host fits a request; data in, data out
    known        what each host says of its labs
    authority    certificates, by which hosts know each other
    ids          of jobs, which say whose they are
    tokens       of all hosts
    checks       of the database, for ``lab doctor``

A host's **epoch** grows whenever it joins, and when it is declared lost. All that it writes names
its epoch, so that late writes of a host that was declared lost do nothing.

Times are PostgreSQL's own clock; clocks of hosts differ.
"""

from lab.fleet.database import Fenced as Fenced
from lab.fleet.database import FleetDatabase as FleetDatabase
from lab.fleet.database import Unreachable as Unreachable
