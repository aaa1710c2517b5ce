"""The steps of a service's job, heard as events and put together again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.progress import Event, Step

if TYPE_CHECKING:
    from lab.progress import Listener


class Heard:
    """Passes events on, and keeps how long steps took, as ``Progress`` does where they are made."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._open = [Step("job")]

    @property
    def steps(self) -> list[Step]:
        """The steps, with their parts in them."""
        return self._open[0].steps

    def __call__(self, event: Event) -> None:
        """Hear an event; an end whose begin was heard of another service's life is passed over."""
        self._listener(event)
        if event.state == "begin":
            beside = self._open[-1].steps
            found = next((step for step in beside if step.step == event.step), Step(event.step))
            if found not in beside:
                beside.append(found)
            self._open.append(found)
        elif event.state != "note" and event.step in [step.step for step in self._open[1:]]:
            while self._open.pop().step != event.step:
                pass
            place = next(s for s in self._open[-1].steps if s.step == event.step)
            place.seconds += event.seconds
