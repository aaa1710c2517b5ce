"""The log: lines of JSON, each with the ids of its request and its job."""

from __future__ import annotations

import json
import logging
import sys
import time

from lab.api.telemetry.current import JOB, REQUEST

log = logging.getLogger("lab.serve")

_PLAIN = {*vars(logging.makeLogRecord({})), "message", "asctime", "color_message", "taskName"}


class JsonLines(logging.Formatter):
    """A record as one line of JSON: ``at``, ``level``, ``logger``, ``text``, ids, extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "at": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
        }
        line |= {k: v for k, v in (("request", REQUEST.get()), ("job", JOB.get())) if v}
        line |= {k: v for k, v in vars(record).items() if k not in _PLAIN and not k.startswith("_")}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(*, quiet: bool = False) -> None:
    """Write the log to stderr; ``quiet``: warnings and errors only."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    log.setLevel(logging.WARNING if quiet else logging.INFO)
    for name in ("uvicorn", "uvicorn.error", "dbos"):
        # With a handler of its own: DBOS would add one that writes no JSON.
        logger = logging.getLogger(name)
        logger.handlers[:], logger.propagate = [handler], False
        logger.setLevel(logging.WARNING)
