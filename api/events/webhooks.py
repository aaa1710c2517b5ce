"""Messages about labs to a webhook: signed, and repeated until one is acknowledged.

A message is a workflow of DBOS whose id is derived from its event, so it is sent once however often
it is requested, and resumed after the service was interrupted. Messages wait in a queue of DBOS,
and few are sent at the same time: a webhook that is down keeps no more threads than that.

Headers and signature are those of Standard Webhooks 1.0.0, for which receivers have libraries.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import http.client
import json
import time
import urllib.parse
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dbos import DBOS, Queue, SetWorkflowID

from lab.api.telemetry.logs import log
from lab.errors import HostUnfit
from lab.observe.page import received
from lab.texts import without_mark
from lab.units import format_time
from lab.wait import Deadline

if TYPE_CHECKING:
    from lab.config.servefile import Serve
    from lab.state.records import LabRecord
    from lab.state.service import JobRecord

Word = Literal["ready", "failed", "removed", "expiring", "refreshed"]

_NAME = "webhook"
_SENDERS = 4
"""Messages that are sent, or wait for their next try, at the same time."""
_POLL = 0.25
_WAITING = 1000
"""Messages that may wait for these; the oldest are dropped for more."""
_AT_ONCE = 200
_PREFIX = b"whsec_"
_KEY_BYTES = range(24, 65)
_TIMEOUT = 10.0
_TRIES = 10
_FIRST_PAUSE = 1.0
"""Seconds; each pause is twice the one before, so that the last try is 8 minutes later."""

_hook: Webhook | None = None
_queue: Queue | None = None


class NotDelivered(Exception):
    """The webhook did not answer with success."""


@DBOS.workflow(name=_NAME)
def _deliver(message: dict[str, Any]) -> None:
    _send(DBOS.workflow_id or "", message)


@DBOS.step(
    name="send",
    retries_allowed=True,
    max_attempts=_TRIES,
    interval_seconds=_FIRST_PAUSE,
    backoff_rate=2.0,
)
def _send(identity: str, message: dict[str, Any]) -> None:
    if _hook is not None:
        _hook.send(identity, message)


class Webhook:
    """The destination of messages; ``secret`` signs them."""

    def __init__(self, url: str, secret: bytes, dropped: Callable[[int], None]) -> None:
        self._url = url
        self._secret = secret
        self.dropped = dropped
        """Called with the number of messages that are not sent, since too many wait."""
        self.added = 0
        """Messages since the queue's length was last looked at."""

    def send(self, identity: str, message: dict[str, Any]) -> None:
        """Send a message, which ``identity`` names at each try, once.

        Raises NotDelivered, also if the answer takes too long.
        """
        body = json.dumps(message, sort_keys=True).encode()
        signed = signature(self._secret, identity, int(time.time()), body)
        headers = {"Content-Type": "application/json", **signed}
        url = urllib.parse.urlsplit(self._url)
        secure = url.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(url.hostname or "", url.port, timeout=_TIMEOUT)
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        try:
            connection.request("POST", path, body, headers)
            # Not by http.client, whose timeout is for each part of an answer: all of it would take
            # any time.
            status = received(connection.sock, Deadline.after(_TIMEOUT))
        except (OSError, http.client.HTTPException) as error:
            raise NotDelivered(f"the webhook cannot be reached: {error}") from None
        finally:
            connection.close()
        if not status.startswith("2"):
            raise NotDelivered(f"the webhook answered {status}")


def signature(secret: bytes, identity: str, at: int, body: bytes) -> dict[str, str]:
    """The headers that sign a message which is sent ``at`` a time (epoch seconds)."""
    name = identity.replace(".", "_")  # parts of what is signed are separated by points
    digest = hmac.digest(secret, f"{name}.{at}.".encode() + body, "sha256")
    return {
        "webhook-id": name,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def secret_of(text: bytes) -> bytes:
    """The key in ``whsec_`` and its Base64, with or without padding; raises ValueError."""
    prefix, kept = text[: len(_PREFIX)], text[len(_PREFIX) :]
    found = base64.b64decode(kept + b"=" * (-len(kept) % 4), validate=True)
    if prefix != _PREFIX or len(found) not in _KEY_BYTES:
        raise ValueError
    return found


def open_webhook(serve: Serve, dropped: Callable[[int], None]) -> None:
    """Send messages to the webhook of ``serve``, if there is one; raises HostUnfit.

    ``dropped``: see ``Webhook``.
    """
    global _hook  # noqa: PLW0603  # workflows are stored, so they must not hold secrets
    _hook = None
    if not serve.webhook:
        return
    try:
        text = without_mark(Path(serve.webhook_secret).read_bytes()).strip()
    except OSError as error:
        raise HostUnfit(
            f"webhook_secret {serve.webhook_secret} cannot be read: {error.strerror}",
            hint="name a file that the service's user can read",
        ) from error
    try:
        secret = secret_of(text)
    except (ValueError, binascii.Error):
        raise HostUnfit(
            f"webhook_secret {serve.webhook_secret} has no key of Standard Webhooks in it:"
            f" whsec_ and the Base64 of {_KEY_BYTES[0]} to {_KEY_BYTES[-1]} bytes",
            hint='`echo "whsec_$(openssl rand -base64 32)"` prints one; receivers need the same',
        ) from None
    _hook = Webhook(serve.webhook, secret, dropped)


def open_queue() -> None:
    """Begin to send what waits, once DBOS runs."""
    global _queue  # noqa: PLW0603  # as of DBOS, there is one in a process
    _queue = None
    if _hook is not None:
        _queue = DBOS.register_queue(
            _NAME,
            worker_concurrency=_SENDERS,
            polling_interval_sec=_POLL,
            on_conflict="always_update",
        )


def ended(job: JobRecord) -> None:
    """Send how a job ended, if its kind has a message."""
    succeeded = job.state == "succeeded"
    word: Word
    labs = [job.lab]
    if job.kind in ("create", "branch"):
        word = "ready" if succeeded else "failed"
    elif job.kind in ("delete", "expire") and succeeded:
        word = "removed"
    elif job.kind == "refresh-dataset":
        word = "refreshed" if succeeded else "failed"
    else:
        return
    if job.kind == "branch" and succeeded:
        labs = job.about.partition(":")[2].split(",")
    error = (job.error or {}).get("detail", "")
    at = format_time(job.ended_at or job.created_at)
    about = {"project": job.project, "at": at, "kind": job.kind}
    if job.kind == "refresh-dataset":
        about["dataset"] = job.about.partition(":")[2]
    for number, lab in enumerate(labs):
        identity = f"webhook-{job.id}{f'-{number}' if number else ''}"
        _begin(identity, {"event": word, "job": job.id, "error": error, "lab": lab, **about})


def expiring(lab: LabRecord, at: float | None, why: Literal["lease", "idle"]) -> None:
    """Send that a lab will be removed ``at`` a time (epoch seconds); once for each such time.

    ``why``: its lease ends, or it is idle.
    """
    about = {"lab": lab.name, "project": lab.project, "job": lab.job}
    moment = None if at is None else format_time(at)
    message = {"event": "expiring", "why": why, **about, "expires_at": moment}
    _begin(f"webhook-{lab.name}-{lab.created_at}-{at}", message)


def prune(before: float) -> None:
    """Remove messages that were sent, or abandoned, before a time (epoch seconds)."""
    moment = datetime.fromtimestamp(before, timezone.utc).isoformat()
    while old := DBOS.list_workflows(
        name=_NAME, completed_before=moment, limit=_AT_ONCE, load_input=False, load_output=False
    ):
        DBOS.delete_workflows([one.workflow_id for one in old])


def _begin(identity: str, message: dict[str, Any]) -> None:
    if _hook is None or _queue is None:
        return
    log.info("webhook", extra={"event": message["event"], "lab": message["lab"]})
    with SetWorkflowID(identity):
        _queue.enqueue(_deliver, message)
    _hook.added += 1
    if _hook.added >= _WAITING // 20:
        _hook.added = 0
        _drop(_hook)


def _drop(hook: Webhook) -> None:
    """Cancel the oldest messages if too many wait."""
    waiting = DBOS.list_workflows(
        name=_NAME, queue_name=_NAME, status="ENQUEUED", load_input=False, load_output=False
    )
    old = [one.workflow_id for one in waiting[: max(0, len(waiting) - _WAITING)]]
    if old:
        DBOS.cancel_workflows(old)
        hook.dropped(len(old))
        log.warning(
            "messages to the webhook are dropped: too many wait", extra={"dropped": len(old)}
        )
