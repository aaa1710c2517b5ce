"""Steps and their durations: each has its own place, so that sums mean something."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from lab.progress import Event, Progress, Step


def test_steps_nest() -> None:
    """A part's time is not counted once more beside the whole."""
    progress = Progress()
    with progress.step("image"):
        with progress.step("bootstrap"):
            time.sleep(0.02)
        with progress.step("disk"):
            pass
    with progress.step("clone"):
        pass
    image, clone = progress.steps
    assert (image.step, clone.step) == ("image", "clone")
    assert [part.step for part in image.steps] == ["bootstrap", "disk"]
    assert not clone.steps
    assert 0.02 <= sum(part.seconds for part in image.steps) <= image.seconds


def test_equal_steps_add_up_where_they_are() -> None:
    """Waiting for an image and then building it are one step; another's part is another step."""
    progress = Progress()
    for _ in range(2):
        with progress.step("image"), progress.step("boot"):
            time.sleep(0.01)
    began = time.monotonic()
    with progress.step("boot"):
        pass
    took = time.monotonic() - began
    assert [step.step for step in progress.steps] == ["image", "boot"]
    (inner,) = progress.steps[0].steps
    assert inner.seconds >= 0.02
    assert progress.steps[1].seconds <= took


def test_spent() -> None:
    progress = Progress(steps=[Step("image", 2.0, [Step("boot", 1.0)]), Step("boot", 4.0)])
    assert progress.spent("boot") == 4.0
    assert progress.spent("image", "boot") == 6.0
    assert progress.spent("template") == 0.0


def test_a_failed_step_has_its_time_and_its_place() -> None:
    heard: list[Event] = []
    progress = Progress(heard.append)
    with pytest.raises(ValueError, match="x"), progress.step("image"), progress.step("disk"):
        raise ValueError("x")
    assert [(e.step, e.state) for e in heard] == [
        ("image", "begin"), ("disk", "begin"), ("disk", "fail"), ("image", "fail"),
    ]  # fmt: skip
    with progress.step("undo"):
        pass
    assert [step.step for step in progress.steps] == ["image", "undo"]


def test_the_innermost_step_that_failed_is_known() -> None:
    """A failure is shown with its step, after the blocks around it have ended as well."""
    progress = Progress()
    with suppress(ValueError), progress.step("image"):
        with progress.step("bootstrap"):
            pass
        with progress.step("provision"):
            assert progress.under_way == "provision"
            raise ValueError
    assert progress.failed == "provision"
    with progress.step("image"):
        assert progress.failed == ""


def test_names_of_others_do_not_control_the_terminal() -> None:
    """Protects the terminal: a table's name, or what a guest printed, may be an escape sequence."""
    event = Event("dataset", "note", "not shop.\x1b]52;c;cHduZWQ=\x07 (MyISAM)\nnext\tline")
    assert event.text == "not shop.\\x1b]52;c;cHduZWQ=\\x07 (MyISAM)\nnext\tline"
