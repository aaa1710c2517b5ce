"""``make test-zfs``: the platform tests on real ZFS, wherever this machine can have it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from lab.errors import HostUnfit, Interrupted, InvalidSpec, LabError
from lab.progress import Event, Progress
from lab.units import parse_size
from testvm import build, cache, host, kept, machine, runner
from testvm.beside import Beside
from testvm.release import RELEASES, Release, find, selected

TIMEOUT = 2400.0
"""Seconds that the tests of one release may take, boot included."""
LIMIT = 86400.0
"""Seconds after which a release is given up that ends by none of its own time limits."""

Say = Callable[[str], object]


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit status."""
    options = _parser().parse_args(words)
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        return int(options.verb(options))
    except KeyboardInterrupt:
        return _fail(Interrupted("interrupted"))
    except LabError as error:
        return _fail(error)


def _test(options: argparse.Namespace) -> int:
    tests = options.words
    why = _why_in_a_guest(options)
    if not why:
        _say("this host has ZFS: no guest is needed")
        os.environ.update(runner.handed_over(options.give, options.give))
        return _selected(runner.on_host(tests, timeout=options.timeout), tests)
    _say(f"in a guest, as {why}")
    first, *others = releases = _releases(options.releases)
    words = {release: selected(release, releases, tests) for release in releases}
    # An emulated guest keeps little more than one core busy.
    beside = [Beside(_command(one, options, words[one]), timeout=LIMIT) for one in others]
    status = _test_release(first, options, words[first])
    return max([status, *(one.end(sys.stdout.buffer) for one in beside)])


def _why_in_a_guest(options: argparse.Namespace) -> str:
    """Why the tests do not run on this host itself; empty if they do."""
    if options.kvm:
        return "KVM within a machine was asked for"
    return "releases were named" if options.releases else host.why_not()


def _load(options: argparse.Namespace) -> machine.Load:
    if options.kvm:
        return machine.Load.KVM
    return machine.Load.GUESTS if options.give else machine.Load.TESTS


def _command(release: Release, options: argparse.Namespace, tests: Sequence[str]) -> list[str]:
    """The command that tests one release only, with the same options."""
    words = [
        sys.executable,
        "-m",
        "testvm",
        "test",
        "--releases",
        release.suite,
        "--timeout",
        f"{options.timeout:g}",
    ]
    words += ["--memory", f"{options.memory >> 20}M"]
    words += ["--give", str(options.give)] if options.give else []
    words += ["--kvm"] if options.kvm else []
    return [*words, "--", *tests]


def _test_release(release: Release, options: argparse.Namespace, tests: Sequence[str]) -> int:
    try:
        accelerator = machine.accelerator()
        with _image(release) as image:
            _say(f"{release.suite}: booting ({accelerator})")
            status = runner.in_guest(
                image, release, tests, sys.stdout.buffer,
                accelerator=accelerator, memory=options.memory, timeout=options.timeout,
                load=_load(options), given=options.give,
            )  # fmt: skip
    except HostUnfit as error:
        _say(f"{release.suite}: skipped because {_because(error)}")
        return 0
    except LabError as error:
        return _fail(error)
    return _selected(status, tests)


def _build(options: argparse.Namespace) -> int:
    for release in _releases(options.releases):
        with _image(release) as image:
            _say(f"{release.suite}: {image}")
    return 0


def _keep(options: argparse.Namespace) -> int:
    release = options.release
    say = partial(_tell, release)
    with _image(release) as image:
        accelerator = machine.accelerator()
        say(f"booting ({accelerator}); Ctrl-C ends it")
        kept.keep(
            cache.directory(), image, release, say,
            accelerator=accelerator, memory=options.memory, load=_load(options),
            given=options.give,
        )  # fmt: skip
    return 0


def _exec(options: argparse.Namespace) -> int:
    argv = options.words or ["pytest"]
    if argv[0] == "pytest":
        argv = [*runner.PYTEST, *runner.pytest_options(argv[1:])]
    return kept.execute(cache.directory(), options.release, argv, sys.stdout.buffer)


def _console(options: argparse.Namespace) -> int:
    _tell(options.release, "Ctrl-] leaves")
    kept.console(cache.directory(), options.release)
    return 0


def _image(release: Release) -> AbstractContextManager[Path]:
    progress = Progress(partial(_show, release))

    def make(out: Path) -> None:
        build.check_host(out)
        _tell(release, "building the image, once")
        build.build(release, out, log=home / f"{release.suite}.build.log", progress=progress)

    home = cache.directory()
    waiting = partial(_tell, release, "waiting for another process that builds the image")
    return cache.image(home, release.suite, build.key(release), make, waiting)


def _releases(named: str) -> tuple[Release, ...]:
    try:
        return find(named)
    except ValueError as error:
        raise InvalidSpec(str(error)) from None


def _selected(status: int, tests: Sequence[str]) -> int:
    # `make test PYTEST="-k restore"` may well mean no test of ours.
    return 0 if tests and status == runner.NO_TESTS else status


def _show(release: Release, event: Event) -> None:
    if event.state == "begin":
        _tell(release, event.text)
    elif event.state in {"end", "fail"}:
        ended = "took" if event.state == "end" else "failed after"
        _tell(release, f"{event.step} {ended} {event.seconds:.0f} s")


def _because(error: LabError) -> str:
    return f"{error.what} ({error.hint})" if error.hint else error.what


def _tell(release: Release, text: str) -> None:
    _say(f"{release.suite}: {text}")


def _say(text: str) -> None:
    print(f"test-zfs: {text}", flush=True)  # noqa: T201


def _fail(error: LabError) -> int:
    _say(f"failed: {error.what}")
    for line in error.details:
        print(f"  {line}")  # noqa: T201
    if error.hint:
        print(f"hint: {error.hint}", flush=True)  # noqa: T201
    return error.exit_code


def _interrupted(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="testvm", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    test = _verb(verbs, "test", _test, "run the platform tests; what follows -- goes to pytest")
    _add_releases(test)
    _add_machine(test)
    test.add_argument("--timeout", type=float, default=TIMEOUT, metavar="SECONDS")
    test.add_argument("words", nargs="*", metavar="PYTEST")
    _add_releases(_verb(verbs, "build", _build, "build the images that are missing"))
    keep = _verb(verbs, "keep", _keep, "boot a guest and keep it running until Ctrl-C")
    _add_release(keep)
    _add_machine(keep)
    run = _verb(verbs, "exec", _exec, "copy the checkout into the kept guest, run a command there")
    _add_release(run)
    run.add_argument("words", nargs="*", metavar="COMMAND")
    _add_release(_verb(verbs, "console", _console, "a shell in the kept guest; Ctrl-] leaves"))
    return parser


def _verb(
    verbs: Any, name: str, function: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    parser.set_defaults(verb=function)
    return parser


def _add_releases(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--releases", default="", metavar="SUITES", help="all if empty")


def _add_release(parser: argparse.ArgumentParser) -> None:
    suites = {release.suite: release for release in RELEASES}
    parser.add_argument(
        "--release", default=RELEASES[-1], type=suites.__getitem__, metavar="|".join(suites)
    )


def _add_machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--memory", type=parse_size, default=machine.MEMORY, metavar="SIZE")
    parser.add_argument(
        "--give", type=Path, metavar="FILE", help="let the guest read FILE, as a disk"
    )
    parser.add_argument(
        "--kvm", action="store_true", help="with KVM in the guest; where it is emulated, so is SVM"
    )


if __name__ == "__main__":
    sys.exit(main())
