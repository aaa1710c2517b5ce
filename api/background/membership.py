"""Keeps this host a member of its fleet: heartbeats, what was placed on it, what it has."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

import msgspec
import psycopg
from msgspec.structs import replace
from sqlalchemy.engine import URL

from lab.api.background.periodic import Periodic
from lab.api.core.core import Core
from lab.api.core.fleet import SIGNALS, Fleet
from lab.api.core.problem import problem
from lab.api.http.lab_answer import lab_of
from lab.api.jobs import placing
from lab.api.jobs.jobs import Jobs
from lab.api.jobs.submit import service_job, submit
from lab.api.telemetry.logs import log
from lab.config.enginefile import named
from lab.errors import LabError
from lab.fleet import hosts, known, placements
from lab.fleet.database import PATIENCE, Fenced
from lab.fleet.known import Known
from lab.lifecycle.archives.fetch import lacking, unfit
from lab.requests.images import BuildTemplate
from lab.state.records import LabWithNodes

POLL = 5.0
"""Seconds between two looks for what NOTIFY and calls have missed."""
_PUBLISH = 1.0
_AGAIN = 2.0
"""Seconds until a connection that waits for NOTIFY is made again."""


class Membership:
    """The periodic tasks of a host of a fleet."""

    def __init__(self, core: Core, jobs: Jobs, fleet: Fleet) -> None:
        self._core = core
        self._jobs = jobs
        self._fleet = fleet
        self._published: dict[str, Known] | None = None
        """What was said of labs, by their names; None: that is to be read first."""
        self._formed: dict[str, float] = {}
        """Templates that were to be formed again since this service was started, and of when."""
        self._beating = threading.Lock()
        self._steady: float | None = None
        """Since when heartbeats come through, as of ``time.monotonic``; None: the last did not."""
        self.periodic: Mapping[str, Periodic] = {
            "beat": Periodic("beat", self.beat, hosts.BEAT, wake=fleet.has),
            "placed": Periodic("placed", self.look, POLL, wake=fleet.wake),
            "publish": Periodic("publish", self.publish, _PUBLISH, wake=fleet.changed),
            "signal": Periodic("signal", fleet.send_signals, POLL, wake=fleet.signalled),
        }
        self._ending = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="lab-listen", daemon=True)

    def start(self) -> None:
        """Begin, once the host has joined or is to join."""
        with suppress(LabError):
            self.beat()  # before that, nothing is placed on it
        for periodic in self.periodic.values():
            periodic.start()
        self._listener.start()
        self._fleet.wake.set()

    def stop(self) -> None:
        """End; does not wait for what runs."""
        self._ending.set()
        for periodic in self.periodic.values():
            periodic.stop()

    def beat(self) -> None:
        """A heartbeat with what this host has, and a look at the others'."""
        fleet = self._fleet
        if fleet.removed:
            return
        try:
            with self._beating:
                if not fleet.joined:
                    fleet.join()
                hosts.beat(fleet.database, fleet.member, placing.facts(self._core))
        except Fenced:
            fleet.fenced()
            if not fleet.joined:
                return
        except LabError:
            self._steady = None
            raise
        now = time.monotonic()
        self._steady = now if self._steady is None else self._steady
        if fleet.was_lost:
            self._return()
        # After an outage of the database all hosts are silent: none of them is lost for that.
        if now - self._steady > hosts.LOST_AFTER:
            for name in placements.lose(fleet.database, problem):
                log.error("a host is lost: its heartbeat stopped", extra={"host": name})
                fleet.signal("")
        if self._core.settings.serve.metrics:
            fleet.measure()
        else:
            fleet.refresh()

    def _return(self) -> None:
        """Publish all labs as foreign, and give up the jobs that are not this host's any more."""
        core, fleet = self._core, self._fleet
        jobs = [job for job in core.store.jobs.open() if job.kind == "create"]
        for job in placements.not_ours(fleet.database, fleet.name, [job.id for job in jobs]):
            log.warning("a job was given up: its host was lost", extra={"given_up": job})
            self._jobs.cancel(core.store.jobs.get(job))
        with fleet.naming:
            self._published = None
            labs = core.observing.labs().values()
            mine = [self._known(found) for found in labs if not found.lab.pool]
            said = known.publish(fleet.database, fleet.member, mine, foreign=True)
            fleet.foreign = frozenset(name for name, foreign in said.items() if foreign)
            hosts.returned(fleet.database, fleet.member)
            fleet.was_lost = False

    def look(self) -> None:
        """Take up and place jobs, share tokens, and note which jobs have ended."""
        fleet, store = self._fleet, self._core.store
        if not fleet.joined or fleet.was_lost:
            return
        placing.take(self._jobs, fleet)
        fleet.share_tokens(store)
        if over := placing.ended(self._core, fleet):
            self.publish()
            with self._beating:  # before what they took is promised no longer
                hosts.beat(fleet.database, fleet.member, placing.facts(self._core))
            placements.end(fleet.database, fleet.member, over)
        known.drop_reserved(fleet.database, fleet.member, [job.id for job in store.jobs.open()])
        patience = self._core.settings.serve.queue_timeout
        waiting = placements.place_waiting(fleet.database, problem, patience)
        for name in {host.name for _, host in waiting}:
            fleet.signal(name)
        for placed in placements.claimed(fleet.database, fleet.member):
            if store.jobs.find(placed.job) is None:  # killed between claim and record
                placing.start(self._jobs, fleet, placed)
        self._form_unfit()

    def _form_unfit(self) -> None:
        """Form the templates here whose disks were fetched and whose RAM does not fit this host.

        One at a time, each once: where that fails, their disks keep serving.
        """
        core = self._core
        if any(job.kind == "build-template" for job in core.store.jobs.open()):
            return
        with core.contexts.use() as ctx:
            known = {one.key for one in core.store.templates.all()} & self._formed.keys()
            self._formed = {key: self._formed[key] for key in known}
            for record in unfit(ctx):
                if self._formed.get(record.key) == record.created_at:
                    continue
                self._formed[record.key] = record.created_at
                image = core.store.images.get(record.image)
                dataset = f"{image.dataset}@{image.version}" if image.dataset else ""
                engine = "" if dataset else named(image.recipe)
                spec = replace(record.spec, engine=engine, dataset=dataset)
                # One that no request uses any more, as its image has another recipe by now, stays.
                if not lacking(ctx, spec).template:
                    request = BuildTemplate.of(spec, with_ram=True)
                    submit(self._jobs, service_job(request, project=record.project))
                    return

    def publish(self) -> None:
        """Say what changed of this host's labs."""
        fleet = self._fleet
        if fleet.joined and not fleet.was_lost:
            with fleet.naming:
                self._publish(fleet)

    def _publish(self, fleet: Fleet) -> None:
        core = self._core
        if self._published is None:
            there = known.of_host(fleet.database, fleet.name)
            self._published = {one.name: one for one in there if one.view is not None}
            fleet.foreign = frozenset(one.name for one in there if one.foreign)
        labs = {name: found for name, found in core.observing.labs().items() if not found.lab.pool}
        now = {name: self._known(found) for name, found in labs.items()}
        changed = [one for one in now.values() if _differs(self._published.get(one.name), one)]
        gone = self._published.keys() - now.keys()
        said = known.publish(fleet.database, fleet.member, changed, gone)
        self._published = {
            name: one for name, one in self._published.items() if name not in gone
        } | {one.name: one for one in changed}
        kept = fleet.foreign - gone - {name for name, foreign in said.items() if not foreign}
        fleet.foreign = kept | {name for name, foreign in said.items() if foreign}

    def _known(self, found: LabWithNodes) -> Known:
        seen = self._core.observing.seen_of(found)
        lab = lab_of(seen.view, seen.record, login=False, host_name=self._fleet.name)
        return Known(
            found.lab.name, found.lab.project, lab.state, found.lab.job, msgspec.to_builtins(lab),
            found.lab.expires_at, seen.view.observed_at, self._fleet.name,
        )  # fmt: skip

    def _listen(self) -> None:
        """Wake the tasks at each NOTIFY that is for this host."""
        while not self._ending.is_set():
            try:
                with psycopg.connect(
                    _dsn(self._fleet.database.url), autocommit=True,
                    connect_timeout=int(PATIENCE), keepalives_idle=5, keepalives_interval=2,
                    keepalives_count=3,
                ) as connection:  # fmt: skip
                    connection.execute(f"LISTEN {SIGNALS}".encode())
                    self._fleet.wake.set()  # what was missed meanwhile
                    while not self._ending.is_set():
                        for notice in connection.notifies(timeout=_AGAIN):
                            if notice.payload in ("", self._fleet.name):
                                self._fleet.wake.set()
            except psycopg.Error as error:
                log.warning(
                    "no notifications of the fleet's database: it is asked each few seconds",
                    extra={"error": str(error).splitlines()[:1]},
                )
                self._ending.wait(_AGAIN)


def _dsn(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def _differs(before: Known | None, now: Known) -> bool:
    """Whether something of a lab changed but the time at which it was observed."""
    if before is None or before.view is None or now.view is None:
        return True
    out = ("observed_at", "age")
    plain = [
        json.dumps({k: v for k, v in one.view.items() if k not in out}, sort_keys=True)
        for one in (before, now)
        if one.view is not None
    ]
    return plain[0] != plain[1] or before.expires_at != now.expires_at
