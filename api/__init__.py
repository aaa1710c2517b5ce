"""The service: the lifecycle behind HTTP.

::

    server         the process: uvicorn, signals; app: routes, errors, the OpenAPI document
    service        opens, starts and stops the parts below
    web/           the API's resources as pages, for people
    routes/        one resource a file: a request in, a model out
    http/          models, authentication, middleware, limits of connections, WebSockets, answers
    background/    periodic tasks: sweeper (leases, schedules), idle, poolkeeper
    jobs/          jobs, on DBOS: they outlive the process
      requests     what a job is asked to do: one type for each kind
      work         one function for each kind: it calls the lifecycle
      claim        requests that a warm pool serves; quota, submit
    core/          core: the frozen value that all of them share; contexts, admission, limits, pool
    events/        the stored events, notifications about them, webhooks
    telemetry/     log, metrics, spans

Each imports only what is below it, and no two files import each other.

The lifecycle is synchronous: it runs in threads, each with a context of its own. What an
interrupted job leaves is in the record, as for commands; the job is run once more, and begins by
removing it.
"""
