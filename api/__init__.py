"""The service: the lifecycle behind HTTP.

::

    app            create_app: routes, errors, middleware
      routes/      one resource a file: a request in, a model out
      service      what all of them share, opened once
        jobs       what takes time, on DBOS: outlives the process
          work     one kind of job a function: calls the lifecycle
          admission   room on the host, in order
          pool     labs that are ready are given away; poolkeeper makes them
        sweeper    leases that end
        idle       labs that nobody uses: their leases end
          rounds   what these three have in common: a thread that goes round
        trace      spans of all this, as an option; spans knows OpenTelemetry
        connections, guard, seats   limits: of who connects, of a request, of what a token takes
        gate       who may open a WebSocket; tunnel: into nodes, transfer: archives
        eventlog   every step, stored; bell: who waits is woken

The lifecycle is synchronous: it runs in threads, each with a context of its own. Whatever is cut
short is told by the record, as for commands; a job that was cut is done once more, and begins by
removing what the first try left.
"""
