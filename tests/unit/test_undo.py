"""What was begun is undone as a whole, and the first error stays the one that is reported."""

from __future__ import annotations

import pytest

from lab.errors import HostUnfit, Interrupted, LabError
from lab.undo import Undo


def failing(error: Exception) -> None:
    raise error


def undone(first: BaseException, failure: Exception, ran: list[str]) -> None:
    """Undo two steps after ``first``: the one that is run first fails, the other is noted."""
    with Undo() as undo:
        undo.push("files", lambda: ran.append("files"))
        undo.push("guest", lambda: failing(failure))
        raise first


@pytest.mark.parametrize("failure", [HostUnfit("busy"), PermissionError(13, "denied")], ids=repr)
def test_each_step_runs_and_the_first_error_stays(failure: Exception) -> None:
    """Also where a step meets an error of the system that nothing translates."""
    ran: list[str] = []
    with pytest.raises(HostUnfit, match="no memory") as failed:
        undone(HostUnfit("no memory"), failure, ran)
    assert ran == ["files"]
    assert failed.value.details[0].startswith("not undone: guest: ")


def test_an_interrupt_stays_one() -> None:
    """Scripts see exit code 130, and the user what is left."""
    with pytest.raises(LabError) as failed:
        undone(KeyboardInterrupt(), HostUnfit("busy"), [])
    assert isinstance(failed.value, Interrupted)
    assert failed.value.details == ("not undone: guest: busy",)
