"""The record is opened without the modules that only asynchronous programs need."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"asyncio", "email", "greenlet", "importlib.metadata", "ssl", "zipfile"}


OPEN = (
    "from pathlib import Path; from lab.paths import Home;"
    "from lab.state.opening import open_store; open_store(Home(Path('/nowhere')))"
)


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_heavy_modules_stay_out() -> None:
    """Protects the start-up time: they are a tenth of what `lab ls` takes."""
    loaded = set(python(f"import sys; {OPEN}; print(*sys.modules)").split())
    assert "sqlalchemy" in loaded
    assert loaded & HEAVY == set()


def test_what_is_hidden_can_be_imported_afterwards() -> None:
    """Nothing is hidden from anybody but SQLAlchemy, and from it only until it is used."""
    printed = python(
        f"{OPEN}\n"
        "import asyncio, importlib.metadata, greenlet\n"
        "from sqlalchemy.util.concurrency import is_cancellation_exception as cancelled\n"
        "print(asyncio.run(asyncio.sleep(0, 'slept')), importlib.metadata.version('pytest'))\n"
        "print(cancelled(asyncio.CancelledError()), cancelled(ValueError()), asyncio.__name__)\n"
    )
    assert printed.split()[0] == "slept"
    assert printed.splitlines()[1] == "True False asyncio"


def test_who_has_them_keeps_them() -> None:
    """A service that loaded asyncio before gets all of SQLAlchemy."""
    printed = python(
        f"import asyncio; {OPEN}\n"
        "import sqlalchemy.util.concurrency as util\n"
        "print(util.have_greenlet, util.asyncio is asyncio)\n"
    )
    assert printed == "True True\n"
