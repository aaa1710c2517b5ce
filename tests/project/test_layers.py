"""Imports point one way, as CONTRIBUTING.md draws it; this keeps it so."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests import ROOT

# From the top down. A room is a module or package of `lab`. It may import rooms of its own row and
# of those below, never one above.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"__main__", "cli", "api", "pytest_plugin"}),
    frozenset({"client"}),
    frozenset({"lifecycle"}),
    frozenset({"views"}),
    frozenset({"observe"}),
    frozenset({"fake"}),
    frozenset(
        {
            "imagebuild", "state", "storage", "hypervisor", "guest", "blueprints", "host",
            "exchange", "datasets", "requests", "fleet", "bundle", "bench",
        }
    ),
    frozenset(
        {
            "config", "keys", "marks", "locks", "remembered", "drafts", "paths", "spec", "sizes",
            "request", "options", "names", "schedule", "texts", "units", "errors", "run", "wait",
            "undo", "progress", "suggest", "values", "users", "passwords", "distribution",
        }
    ),
)  # fmt: skip

# The same within a room: its folders from the top down, and files that have a floor of their own.
# "" are the other files at the room's top.
FLOORS: dict[str, tuple[frozenset[str], ...]] = {
    "lifecycle": (
        frozenset({"", "service"}),
        frozenset({"host"}),
        frozenset({"archives", "datasets", "bench"}),
        frozenset({"labs"}),
        frozenset({"snapshots"}),
        frozenset({"captures"}),
        frozenset({"nodes"}),
        frozenset({"images"}),
        frozenset({"core"}),
    ),
    "cli": (
        frozenset({"", "commands"}),
        frozenset({"verbs"}),
        frozenset({"app", "flags", "complete", "manual"}),
        frozenset({"backend", "terminal"}),
    ),
    "client": (frozenset({""}),),
    "api": (
        frozenset({""}),
        frozenset({"web"}),
        frozenset({"routes"}),
        frozenset({"wire"}),
        frozenset({"http", "background"}),
        frozenset({"jobs"}),
        frozenset({"core"}),
        frozenset({"events", "telemetry"}),
    ),
}


def room_of(module: str) -> str | None:
    """The room of a dotted module name; None for `lab` itself and for foreign modules."""
    first, *rest = module.split(".")
    return rest[0] if first == "lab" and rest else None


def layer_of(room: str) -> int:
    """The row of ``room``, 0 is the top; raises for an unknown one."""
    for number, rooms in enumerate(LAYERS):
        if room in rooms:
            return number
    raise AssertionError(
        f"{room} is a new room: give it a place in LAYERS, ARCHITECTURE.md and CONTRIBUTING.md"
    )


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] == "api":  # `lab/api` is a link to it
        parts = ("lab", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source: str, module: str, *, package: bool = False) -> Iterator[tuple[int, str]]:
    """Line and dotted name of all that ``source`` imports, late and typing imports too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                keep = len(parents) - node.level + (1 if package else 0)
                base = ".".join([*parents[:keep], *([base] if base else [])])
            for alias in node.names:
                # `from lab import run` imports the room `run`.
                yield node.lineno, f"{base}.{alias.name}"


def wrong_way(source: str, module: str, *, package: bool = False) -> list[str]:
    """The imports of ``source`` that point upwards, as lines for a person."""
    room = room_of(module)
    found = []
    for line, name in imported(source, module, package=package):
        target = room_of(name)
        if target is None or target == room or name == "lab.__version__":
            continue
        if room is None:
            found.append(f"{module}:{line} imports {name}; the package itself imports no room")
        elif layer_of(target) < layer_of(room):
            found.append(f"{module}:{line} imports {name}; {room} lies below {target}")
    return found


def floor_of(module: str, room: str) -> tuple[int, str] | None:
    """The floor of a module of ``room``, 0 is the top, and its folder; None if it is elsewhere."""
    if not module.startswith(f"lab.{room}."):
        return None
    parts = module.split(".")[2:]
    top = ROOT / ("api" if room == "api" else f"lab/{room}")
    known = frozenset().union(*FLOORS[room])
    folder = parts[0] if parts[0] in known or (top / parts[0]).is_dir() else ""
    for number, folders in enumerate(FLOORS[room]):
        if folder in folders:
            return number, folder
    raise AssertionError(f"{module} is in a new folder: give it a place in FLOORS")


def wrong_floor(source: str, module: str, room: str, *, package: bool = False) -> list[str]:
    """The imports of ``source`` that point to a higher floor of its own room."""
    here = floor_of(module, room)
    if here is None:
        return []
    found = []
    for line, name in imported(source, module, package=package):
        target = floor_of(name, room)
        if target is not None and target[0] < here[0]:
            found.append(
                f"{module}:{line} imports {name}; {here[1]} lies below {target[1] or room}"
            )
    return found


@pytest.mark.parametrize("room", FLOORS)
def test_imports_within_a_room_point_down(room: str) -> None:
    """Protects the floors of large rooms: a part that calls a verb makes a knot."""
    found = []
    for path in sources():
        source, module, package = read(path)
        found += wrong_floor(source, module, room, package=package)
    assert not found, "\n".join(found)


def test_an_import_to_a_higher_floor_is_found() -> None:
    """Protects the check itself."""
    assert wrong_floor("from lab.lifecycle.labs import up", "lab.lifecycle.nodes.form", "lifecycle")
    assert not wrong_floor(
        "from lab.lifecycle.nodes import form", "lab.lifecycle.labs.up", "lifecycle"
    )
    assert wrong_floor("from lab.cli.verbs.up import up", "lab.cli.flags", "cli")
    assert wrong_floor("from lab.cli.app import App", "lab.cli.terminal.failure", "cli")
    assert not wrong_floor("from lab.cli import flags", "lab.cli.verbs.up", "cli")


def sources() -> list[Path]:
    return sorted(path for top in ("lab", "api") for path in (ROOT / top).rglob("*.py"))


def read(path: Path) -> tuple[str, str, bool]:
    return path.read_text(), module_name(path), path.name == "__init__.py"


def test_imports_point_down() -> None:
    """Protects the straight line: a lower room that calls a higher one makes a knot."""
    found = []
    for path in sources():
        source, module, package = read(path)
        if room := room_of(module):
            layer_of(room)
        found += wrong_way(source, module, package=package)
    assert not found, "\n".join(found)


def file_of(name: str) -> str:
    """The module in a dotted name of a module, or of something in one."""
    path = ROOT / name.replace(".", "/")
    return name if path.is_dir() or path.with_suffix(".py").exists() else name.rpartition(".")[0]


def circles(uses: Mapping[str, set[str]]) -> list[str]:
    """Who imports itself by way of others; ``uses``: who imports whom."""

    def reached(name: str, seen: set[str]) -> set[str]:
        for target in uses.get(name, set()) - seen:
            seen.add(target)
            reached(target, seen)
        return seen

    return sorted(name for name in uses if name in reached(name, set()))


def test_rooms_do_not_import_each_other_in_circles() -> None:
    """Protects the rows themselves: rooms of one row may use each other, one way only."""
    uses: dict[str, set[str]] = {}
    for path in sources():
        source, module, package = read(path)
        if room := room_of(module):
            targets = {room_of(name) for _, name in imported(source, module, package=package)}
            uses.setdefault(room, set()).update(t for t in targets if t and t != room)
    found = circles(uses)
    assert not found, f"these rooms import each other in a circle: {', '.join(found)}"


@pytest.mark.parametrize("room", sorted(frozenset().union(*LAYERS)))
def test_files_of_a_room_do_not_import_each_other_in_circles(room: str) -> None:
    """Protects each room from a knot inside: typing and late imports count as well.

    Imports by name do not: `lab.blueprints.blueprint` finds its topologies with `import_module`,
    and they import what all share from `lab.blueprints`.
    """
    uses: dict[str, set[str]] = {}
    for path in sources():
        source, module, package = read(path)
        if room_of(module) == room:
            names = {name for _, name in imported(source, module, package=package)}
            # `from lab.lifecycle.labs import up`, `from lab.lifecycle.labs.up import up`: one file.
            files = {file_of(n) for n in names if room_of(n) == room}
            uses[module] = files - {module}
    assert uses, f"{room} is in LAYERS, but no such room exists"
    found = circles(uses)
    assert not found, f"these files import each other in a circle: {', '.join(found)}"


@pytest.mark.parametrize("room", FLOORS)
def test_folders_of_a_room_do_not_import_each_other_in_circles(room: str) -> None:
    """Protects the floors: folders of one floor may use each other, one way only."""
    uses: dict[str, set[str]] = {}
    for path in sources():
        source, module, package = read(path)
        if here := floor_of(module, room):
            targets = {
                floor_of(name, room) for _, name in imported(source, module, package=package)
            }
            uses.setdefault(here[1], set()).update(t[1] for t in targets if t and t != here)
    found = circles(uses)
    assert not found, f"these folders import each other in a circle: {', '.join(found)}"


def test_a_circle_is_found() -> None:
    """Protects the check itself."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("lab.run", "import lab.lifecycle.labs.up"),
        ("lab.storage.qcow2", "from lab.lifecycle.labs import up"),
        ("lab.storage.qcow2", "from lab import lifecycle"),
        ("lab.storage.qcow2", "from ..lifecycle import up"),
        ("lab.storage.qcow2", "def late():\n    from lab.cli import main"),
        ("lab.lifecycle.labs.up", "import lab.api"),
        ("lab.imagebuild.build", "from lab.lifecycle.labs.up import up"),
    ],
)
def test_an_import_that_points_up_is_found(module: str, source: str) -> None:
    """Protects the check itself: every form of import that it must see."""
    assert wrong_way(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("lab.lifecycle.labs.up", "from lab.storage import Storage"),
        ("lab.cli.verbs.up", "from lab.lifecycle.labs import up"),
        ("lab.storage.qcow2", "from lab.storage.zfs import Zfs"),
        ("lab.storage.qcow2", "from . import zfs"),
        ("lab.imagebuild.build", "from lab.run import run"),
        ("lab.run", "import subprocess"),
    ],
)
def test_an_import_that_points_down_or_stays_is_fine(module: str, source: str) -> None:
    """Protects the check itself from crying wolf."""
    assert not wrong_way(source, module)


def test_a_room_without_a_place_is_an_error() -> None:
    """Protects LAYERS from falling behind the tree."""
    with pytest.raises(AssertionError, match="new room"):
        layer_of("helpers")
