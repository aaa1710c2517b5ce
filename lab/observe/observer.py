"""When labs are observed: as often as there is need, and not twice at the same time.

Unless a command worked on a lab: the round of before says nothing any more, and may hang.
A lab that somebody watches or waits for is looked at every second, at once after a command worked
on it, and every ten seconds else. All readers get the last observation; one that comes after a
pause may wait for the next. So what observing costs does not depend on how many read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import field

from lab.observe.round import Observation
from lab.values import dataclass
from lab.wait import Deadline

WATCHED_EVERY = 1.0
"""Seconds from the begin of a round to that of the next, while somebody reads."""
IDLE_EVERY = 10.0
"""Seconds between rounds while nobody reads, and for labs with slow servers."""
TOO_OLD = 30.0
"""Seconds after which an observation says nothing about a lab any more."""
_WATCHING = 3.0
"""Seconds after a read for which the reader is expected again."""
_RATE = 20.0
"""Rounds a second for all labs together, other than at once after commands; for many labs more."""
_SELDOM = 20.0
"""Seconds after which each of many labs is looked at all the same, before it is too old."""
_BURST = 40.0
_AT_ONCE = 4
"""Rounds of a lab that may run at the same time: the last one, and void ones that hang."""
_TICK = 1.0
"""Seconds after which new labs are noticed that no command of ours made."""

Look = Callable[[], Observation]
"""One round of questions to a lab. It raises nothing."""


@dataclass
class _Lab:
    """What is known of a lab. Times are of the monotonic clock."""

    what: Hashable
    """Which lab of the name this is."""
    began: float = float("-inf")
    """When its last round began."""
    seen: float = float("-inf")
    """When the round began whose observation is ``last``."""
    since: float = float("-inf")
    """When its readers began to read."""
    wanted: float = float("-inf")
    """When a reader last wanted it."""
    changed: float = float("-inf")
    """When a command last worked on it."""
    running: bool = False
    """Whether its last round has yet to end."""
    rounds: int = 0
    """How many of its rounds have yet to end."""
    last: Observation | None = None

    @property
    def void(self) -> bool:
        """Whether a command worked on it after the last round began."""
        return self.changed > self.began

    @property
    def free(self) -> bool:
        """Whether a round may begin: none runs, or one that is void.

        That one may not end before its time is over: a command has paused or ended the guests that
        it asks.
        """
        return self.rounds < _AT_ONCE and (self.void or not self.running)

    def due(self) -> float:
        """When the next round is to begin."""
        if self.void:
            return self.changed
        watched = self.wanted + _WATCHING > self.began + WATCHED_EVERY
        slow = self.last is not None and self.last.slow
        return self.began + (WATCHED_EVERY if watched and not slow else IDLE_EVERY)

    def fresh(self) -> bool:
        """Whether its observation is of the time since somebody reads it, or of just before."""
        return self.seen >= max(self.since - WATCHED_EVERY, self.changed)


@dataclass
class _Rate:
    """How many rounds may begin now."""

    left: float = _BURST
    at: float = field(default_factory=time.monotonic)

    def pause(self, labs: int) -> float:
        """Seconds until one more round may begin."""
        left = self.left + (time.monotonic() - self.at) * self._a_second(labs)
        return max(0.0, (1.0 - left) / self._a_second(labs))

    @staticmethod
    def _a_second(labs: int) -> float:
        return max(_RATE, labs / _SELDOM)

    def take(self, now: float, labs: int) -> bool:
        """Whether one more round may begin, of so many labs."""
        self.left = min(_BURST, self.left + (now - self.at) * self._a_second(labs))
        self.at = now
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


class Observer:
    """Observes the labs that ``known`` returns, by name, each with which lab of that name it is.

    ``begin`` returns the rounds of the named labs; both are called in the observer's thread, and
    ``failed`` with what they raise; the next look is a second later then. Each round runs in a
    thread of its own, so that a lab that does not answer delays no other. Safe for use by several
    threads.
    """

    def __init__(
        self,
        known: Callable[[], Mapping[str, Hashable]],
        begin: Callable[[Collection[str]], Mapping[str, Look]],
        failed: Callable[[Exception], object],
    ) -> None:
        self._known, self._begin, self._failed = known, begin, failed
        self._labs: dict[str, _Lab] = {}
        lock = threading.Lock()
        # Two, so that readers that wait wake the observer and not each other.
        self._work, self._news = threading.Condition(lock), threading.Condition(lock)
        self._known_at = float("-inf")
        self._rate = _Rate()
        self._woken = self._ending = self._begun = False
        self._thread = threading.Thread(target=self._run, name="lab-observer", daemon=True)
        self.rounds = 0
        """How many rounds have ended."""

    def start(self) -> None:
        """Begin to observe."""
        self._thread.start()

    def stop(self) -> None:
        """End; a round that waits for an answer is left to itself."""
        with self._work:
            self._ending = True
            self._work.notify_all()
            self._news.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def last(self, name: str, what: Hashable) -> Observation | None:
        """The last observation of a lab that is not too old; ``what``: as ``known`` returns it."""
        with self._work:
            one = self._labs.get(name)
            last = one.last if one is not None and one.what == what else None
        return last if last is not None and last.at + TOO_OLD > time.time() else None

    def want(self, labs: Mapping[str, Hashable]) -> bool:
        """Somebody reads these labs, and will again; whether all observations are fresh."""
        with self._work:
            stale = self._stale(labs)
            if stale:
                self._wake()
        return not stale

    def wait(self, labs: Mapping[str, Hashable], seconds: float) -> bool:
        """Want observations of ``labs``, and wait until they are fresh, or for so many seconds.

        Not for labs that a command has removed or changed since the caller read of them. Whether
        all are fresh.
        """
        began, deadline = time.monotonic(), Deadline.after(seconds)
        if self.want(labs):
            return True
        with self._news:
            while stale := self._stale(labs):
                other = [name for name in stale if not self._is(name, labs[name])]
                known = self._known_at > began
                if self._ending or deadline.passed or (known and len(other) == len(stale)):
                    return False
                self._news.wait(deadline.left)
        return True

    def _stale(self, labs: Mapping[str, Hashable]) -> list[str]:
        """The labs whose observations are not fresh; somebody reads all of these."""
        now, stale = time.monotonic(), []
        for name, what in labs.items():
            if not self._is(name, what):
                stale.append(name)
                continue
            one = self._labs[name]
            if one.wanted + _WATCHING < now:
                one.since = now
            one.wanted = now
            if not one.fresh():
                stale.append(name)
        return stale

    def _is(self, name: str, what: Hashable) -> bool:
        one = self._labs.get(name)
        return one is not None and one.what == what

    def watched(self) -> set[str]:
        """The labs that somebody reads."""
        now = time.monotonic()
        with self._work:
            return {name for name, one in self._labs.items() if one.wanted + _WATCHING >= now}

    def changed(self, name: str) -> None:
        """A command has worked on a lab: it is looked at at once, and earlier looks are void."""
        with self._work:
            one = self._labs.get(name)
            if one is not None:
                one.changed = time.monotonic()
            self._wake()

    def _wake(self) -> None:
        self._woken = True
        self._work.notify_all()

    def _run(self) -> None:
        while True:
            with self._work:
                if not self._ending and not self._woken:
                    self._work.wait(self._pause())
                if self._ending:
                    return
                self._woken = False
            try:
                self._tick()
            except Exception as error:  # noqa: BLE001  # the next look takes place whatever happened
                self._failed(error)
                self._rest()

    def _rest(self) -> None:
        """Wait for a moment, also if somebody reads: what failed fails again."""
        deadline = Deadline.after(_TICK)
        with self._work:
            while not (self._ending or deadline.passed):
                self._work.wait(deadline.left)

    def _pause(self) -> float:
        """Seconds until the next round, or the next look for new labs."""
        now, waiting = time.monotonic(), [one for one in self._labs.values() if one.free]
        least = 0.01 if any(one.void for one in waiting) else self._rate.pause(len(self._labs))
        due = [one.due() for one in waiting]
        return max(0.01, least, min([*due, now + _TICK]) - now)

    def _tick(self) -> None:
        before = time.monotonic()
        known = self._known()
        now = time.monotonic()
        with self._work:
            began, self._begun = self._begun, True
            for name in self._labs.keys() - known.keys():
                del self._labs[name]
            for name, what in known.items():
                one = self._labs.get(name)
                if one is None or one.what != what:
                    # At the beginning all of them are new, and take turns.
                    self._labs[name] = _Lab(what, changed=now if began else float("-inf"))
            due = self._due(now)
            for name in due:
                self._labs[name].running, self._labs[name].began = True, now
                self._labs[name].rounds += 1
            self._known_at = before
            self._news.notify_all()
        begun: set[str] = set()
        try:
            for name, look in (self._begin(due) if due else {}).items():
                args = (self._labs[name], now, look)
                threading.Thread(
                    target=self._round, args=args, name=f"lab-observe-{name}", daemon=True
                ).start()
                begun.add(name)
        finally:
            for name in due:
                if name not in begun:  # it is gone, nobody can be asked, or no thread starts
                    self._ended(self._labs[name], now, None)

    def _due(self, now: float) -> list[str]:
        found = [
            (one.due(), name) for name, one in self._labs.items() if one.free and one.due() <= now
        ]
        return [
            name
            for _, name in sorted(found)
            if self._labs[name].void or self._rate.take(now, len(self._labs))
        ]

    def _round(self, one: _Lab, began: float, look: Look) -> None:
        last = None
        try:
            last = look()
        except Exception as error:  # noqa: BLE001  # its lab is looked at again
            self._failed(error)
        finally:
            self._ended(one, began, last)

    def _ended(self, one: _Lab, began: float, last: Observation | None) -> None:
        with self._work:
            one.rounds -= 1
            if began == one.began:
                one.running = False
            if last is not None:
                self.rounds += 1
                if began > one.seen:  # else one that began later was faster
                    one.last, one.seen = last, began
            self._work.notify_all()
            self._news.notify_all()
