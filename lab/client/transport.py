"""Requests to the service, retried where that is safe, and their answers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import ssl
from collections.abc import Generator, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx

from lab.client.models import Page, read
from lab.client.problem import MEDIA_TYPE, error_of, refusal
from lab.errors import HostUnfit, InvalidSpec, LabError
from lab.units import parse_time
from lab.values import dataclass
from lab.views.jobs import EventView
from lab.wait import Deadline, attempts

_CONNECT = 10.0
_ANSWER = 60.0
"""Seconds for an answer, not counting the time that the request asks the service to wait."""
_SILENCE = 45.0
"""Seconds without data after which a stream is considered broken; the service pings more often."""
_FIRST_PATIENCE = 3.0
"""Seconds of retries for a service that never answered: a wrong URL is reported soon."""
_GATEWAYS = (502, 503, 504)
_STREAM = "text/event-stream"
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True)
class Answer:
    """A status below 400, and the body, None if there is none."""

    status: int
    body: Any = None


class Wire:
    """The connection to a service. ``patience``: seconds of retries while it is away."""

    def __init__(self, url: str, token: str, *, patience: float = 60.0) -> None:
        self.url = url
        self._patience = patience
        self._answered = False
        self._http = httpx.Client(
            base_url=url,
            headers={
                "Authorization": f"Bearer {token}",
                "User-Agent": "lab",
                **_traced(os.environ),
            },
            timeout=httpx.Timeout(_ANSWER, connect=_CONNECT),
            verify=trusted(url),
        )

    def __repr__(self) -> str:
        return f"Wire({self.url!r})"

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        query: Mapping[str, Any] | None = None,
        key: str = "",
        wait: float = 0.0,
        allow: float = 0.0,
        twice: bool = False,
        plain: bool = False,
    ) -> Answer:
        """Send a request and return its answer.

        ``key``: an Idempotency-Key; with one, or with ``twice``, a POST is retried as other methods
        are. ``wait``: seconds that the service may take for the job that the request begins
        (``Prefer: wait``). ``allow``: seconds more for the answer than usual. ``plain``: the body
        is text. Raises the error that the service reports, and HostUnfit if there is no answer.
        """
        headers = {"Idempotency-Key": key} if key else {}
        if wait >= 1:
            headers["Prefer"] = f"wait={int(wait)}"
        request = self._http.build_request(
            method, path, json=body, params=dict(query or {}), headers=headers,
            timeout=httpx.Timeout(_ANSWER + wait + allow, connect=_CONNECT),
        )  # fmt: skip
        answer = self._send(request, twice=twice or method != "POST" or bool(key))
        return _answer(answer, plain=plain)

    def content(self, path: str, *, allow: float) -> bytes:
        """The body of the answer to a GET; raises as ``ask``. ``allow``: as there."""
        timeout = httpx.Timeout(_ANSWER + allow, connect=_CONNECT)
        answer = self._send(self._http.build_request("GET", path, timeout=timeout), twice=True)
        _answer(answer, plain=True)
        return answer.content

    def items(self, path: str, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """All items of a list, page by page as they are needed."""
        after: str | None = ""
        while after is not None:
            more = {"after": after} if after else {}
            page = read(self.ask("GET", path, query={**query, **more}).body, Page)
            yield from page.items
            after = page.next

    def stream(
        self, path: str, *, after: int, silence: float = _SILENCE
    ) -> Generator[EventView, None, None]:
        """Events after the id ``after``, as they happen, until the stream ends or breaks.

        ``silence``: seconds without data after which it ends. Raises the error that the service
        reports.
        """
        try:
            for data in self._events(path, {"Last-Event-ID": str(after)}, {}, silence):
                yield read(data, EventView)
        except httpx.TransportError:
            return  # the caller checks the job and opens another stream

    def lines(self, path: str, query: Mapping[str, Any]) -> Generator[str, None, None]:
        """The lines of a log as they are written; raises the error that ends it."""
        try:
            for data in self._events(path, {}, query, _SILENCE):
                if "problem" in data:
                    raise error_of(data["problem"])
                yield str(data.get("line", ""))
        except httpx.TransportError as error:
            raise HostUnfit(
                "the connection to the service broke", details=[str(error) or type(error).__name__]
            ) from None

    def _events(
        self, path: str, headers: Mapping[str, str], query: Mapping[str, Any], silence: float
    ) -> Generator[dict[str, Any], None, None]:
        """The data of a stream of events; none if only a gateway answers."""
        headers = {"Accept": _STREAM, **headers}
        timeout = httpx.Timeout(_ANSWER, connect=_CONNECT, read=max(0.05, min(silence, _SILENCE)))
        with self._http.stream(
            "GET", path, params=dict(query), headers=headers, timeout=timeout
        ) as response:
            if response.status_code >= 400:
                response.read()
                if response.status_code in _GATEWAYS and not _is_problem(response):
                    return
                raise _refused(response)
            self._answered = True
            for line in response.iter_lines():
                if line.startswith("data:"):
                    yield read(_parsed(line[5:]), dict[str, Any])

    def _send(self, request: httpx.Request, *, twice: bool) -> httpx.Response:
        """Send until there is an answer; ``twice``: even if the service may have received it."""
        first = min(self._patience, _FIRST_PATIENCE)
        deadline = Deadline.after(self._patience if self._answered else first)
        failed = ""
        for _ in attempts(deadline, first=0.1, factor=1.5, most=2.0):
            try:
                response = self._http.send(request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failed = str(error)
                if _hopeless(failed):
                    break
            except httpx.TransportError as error:
                failed = str(error) or type(error).__name__
                if not twice:
                    break
            else:
                if response.status_code not in _GATEWAYS or _is_problem(response) or not twice:
                    self._answered = True
                    return response
                failed = f"status {response.status_code} from a gateway"
        raise HostUnfit(
            f"the service at {self.url} cannot be reached",
            hint="check LAB_URL, and that `lab serve` runs there",
            details=[failed],
        )


def path_of(*parts: str) -> str:
    """The path of a resource; its parts are quoted."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _traced(env: Mapping[str, str]) -> dict[str, str]:
    """The header for the trace in the environment (OpenTelemetry's TRACEPARENT)."""
    parent = env.get("TRACEPARENT", "")
    return {"traceparent": parent} if _TRACEPARENT.fullmatch(parent) else {}


def trusted(url: str) -> ssl.SSLContext:
    """The TLS context for ``url``; without authorities if it is not https.

    Reading the authorities takes longer than the rest of `lab ls`.
    """
    if url.startswith("https:"):
        return httpx.create_ssl_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _hopeless(failed: str) -> bool:
    """Whether retries are useless: the certificate is not valid."""
    return "certificate" in failed.lower()


def _is_problem(response: httpx.Response) -> bool:
    return str(response.headers.get("content-type", "")).startswith(MEDIA_TYPE)


def _answer(response: httpx.Response, *, plain: bool) -> Answer:
    if response.status_code >= 400:
        raise _refused(response)
    if response.status_code >= 300:
        raise LabError(
            f"the service redirected the request ({response.status_code})",
            hint="use the URL that it redirects to: tokens are not sent across redirects",
        )
    if not response.content:
        return Answer(response.status_code)
    body = response.text if plain else _parsed(response.content)
    return Answer(response.status_code, body)


def _refused(response: httpx.Response) -> LabError:
    return refusal(
        _parsed(response.content) if _is_problem(response) else None,
        status=response.status_code,
        reason=response.reason_phrase,
        retry_after=response.headers.get("retry-after", ""),
    )


def _timed(found: dict[str, Any]) -> dict[str, Any]:
    """An object of JSON with its times (RFC 3339) as epoch seconds."""
    for name, value in found.items():
        if isinstance(value, str) and (name == "at" or name.endswith("_at")):
            with contextlib.suppress(InvalidSpec):
                found[name] = parse_time(value)
    return found


def _parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text, object_hook=_timed)
    except (ValueError, RecursionError):
        raise LabError(
            "the answer is not JSON", hint="check that `lab serve` runs at this URL"
        ) from None
