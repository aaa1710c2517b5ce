"""Protects the host: what a server, an archive or a dump says is no option of a program.

All argv in the code are looked at: a bare variable (no text of ours before it, no option that takes
it as its value) stands behind ``--``, or is in ``OURS`` because its text cannot begin with ``-``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from lab import names
from lab.errors import InvalidSpec

ROOT = Path(__file__).resolve().parents[2]
DOORS = frozenset(
    {"run", "output", "feed", "lines", "conversation", "on_terminal", "Popen", "execvp", "execv",
     "execve", "_run", "_output", "zfs"}
)  # fmt: skip
"""Functions whose arguments, or the first or second of them, are an argv."""
VARIABLES = frozenset({"argv", "command"})
READS = (
    "lab.run", "from lab import run", "subprocess", ".channel(", ".run(", "execv", "commands.zfs"
)  # fmt: skip
"""A module without any of these runs no programs."""

OURS: dict[str, frozenset[str]] = {
    # argv of others, which are checked where they are put together
    "*": frozenset(
        {"argv", "*argv", "*arguments", "*isolated(network=False)", "*isolated(network=True)",
         "*isolate.isolated(network=False)", "*isolate.contained(job.root)",
         "*isolate.contained(root)", "*gpg", "*options", "program",
         "list(argv)", "remedy.argv", "sys.executable"}
    ),
    # an option of ours first, in each of them: --tables is --ignore-table=..., and so on
    "lab/datasets/live.py": frozenset({"*more", "*own"}),
    # numbers, absolute paths, and names of our recipes
    "lab/guest/nocloud.py": frozenset({"*geometry"}),
    "lab/imagebuild/bootstrap.py": frozenset({"str(root)", "suite"}),
    "lab/imagebuild/build.py": frozenset({"*split", "*unpack", "*source", "*isolated"}),
    # behind `python -c`, and absolute paths
    "lab/imagebuild/foreign/apart.py": frozenset({"*asked", "*link", "*words"}),
    "lab/imagebuild/disk.py": frozenset(
        {"*(f'::{path}' for path in sorted(parents))", "disk", "esp", "source",
         "str(root_size(size) // _BLOCK)", "str(size // _BLOCK)"}
    ),
    "lab/imagebuild/contain.py": frozenset({"*command"}),  # that of its caller
    "lab/imagebuild/isolate.py": frozenset({"*mapped", "*userns.confined()"}),
    "lab/imagebuild/userns.py": frozenset({"*confined()", "*words", "path", "str(process)"}),
    "lab/cli/backend/local.py": frozenset({"what"}),  # the name of a lab that exists, or --ahead
    "lab/storage/flatten.py": frozenset({"os.fspath(top)"}),
    "testvm/build.py": frozenset(
        {"*(job.root / name for name in REMOVED)", "*_chroot(job)", "*within",
         "job.out / 'disk.raw'", "job.root / 'opt/python'", "str(DISK // 4096)",
         "str(_CHROOT)", "str(job.root)"}
    ),
    "testvm/machine.py": frozenset({"*words", "emulator"}),
    "testvm/runner.py": frozenset({"*([] if named else [TESTS])", "*pytest_options(options)"}),
    # in a guest: databases are checked, names of files are ours, engines' facts are those of an
    # image that was checked
    "lab/lifecycle/datasets/loader.py": frozenset(
        {"*_plain(databases)", "*_plain(paths[at:at + _TABLES_AT_ONCE])", "apply", "name",
         "with_accounts", "engine.config_path", "engine.service", "self.engine.config_path",
         "self.engine.service", "str(size)"}
    ),
    # in a guest: names of scripts of a table of ours, and numbers
    "lab/lifecycle/bench/client.py": frozenset(
        {"command", "script", "str(_PART)", "str(len(found))"}
    ),
    "lab/lifecycle/labs/node_access.py": frozenset(
        {"*_journal(ctx, name, node, source, lines)",
         "*engine_units(ctx, node_of(ctx, name, node).image)"}
    ),
    "lab/lifecycle/captures/system.py": frozenset(
        {"engine.config_path", "engine.user", "former", "*family_of(engine.name).checks"}
    ),
    "lab/lifecycle/labs/upgrade.py": frozenset({"*engine_units(ctx, new.key)"}),
    "lab/lifecycle/nodes/readiness.py": frozenset({"*engine_units(ctx, node.image)"}),
    # of our programs in a guest, which know no options; units of engines' facts, names of nodes,
    # numbers, and variables of a table of ours
    "lab/blueprints/rejoin.py": frozenset({"*words"}),
    "lab/blueprints/server.py": frozenset(
        {"*history", "*program", "engines[m.name].service", "str(own)"}
    ),
    "lab/blueprints/switchover.py": frozenset(
        {"*own.lead", "*self._role(node).follow", "new.node", "self.engines[member.name].service",
         "self.engines[node].service", "str(newest.epoch)"}
    ),
    # statements of SQL, which are no argv
    "lab/blueprints/group.py": frozenset(
        {"*self.renewal(engine)", "_login(own)",
         "*server.accounts(engine, user, password, self.options, tls=tls)"}
    ),
    "lab/blueprints/replication.py": frozenset({"*statements"}),
    # one word behind the address of a node, where a shell reads it
    "lab/cli/terminal/in_node.py": frozenset(
        {"*with_options(self._way, 'ControlMaster=no')", "command"}
    ),
    # behind `sh -c SCRIPT sh`: absolute paths of ours, and a number
    "lab/hypervisor/agent.py": frozenset({"f'{mode:o}'", "path"}),
    # the same, with paths of users, which the script puts behind `--`
    "lab/cli/verbs/copy.py": frozenset({"*wanted", "*words", "own"}),
    "lab/lifecycle/labs/query.py": frozenset({"found"}),  # a program's absolute path
    # names of volumes, snapshots and file systems, which begin with the name of a pool
    "lab/storage/zfs/commands.py": frozenset({"*args", "*args[:-1]", "*columns", "args[-1]"}),
    "lab/storage/zfs/driver.py": frozenset({"*args", "found.name", "name"}),
    "lab/storage/zfs/setup.py": frozenset({"*args", "dataset", "f'{HOME}={home}'"}),
}  # fmt: skip
"""Variables that cannot begin with ``-``, by module; `*`: of all modules."""


def expressions(items: Sequence[ast.expr]) -> Iterator[str]:
    """The bare variables of an argv that are not behind ``--``."""
    is_value = False
    for item in items:
        inner = item.value if isinstance(item, ast.Starred) else item
        if isinstance(item, ast.Constant) and isinstance(item.value, str):
            if item.value == "--":
                return
            is_value = item.value.startswith("-") and len(item.value) > 1 and "=" not in item.value
            continue
        if isinstance(inner, ast.List | ast.Tuple):
            yield from expressions(inner.elts)
        elif not _is_safe(inner, starred=isinstance(item, ast.Starred), is_value=is_value):
            yield ast.unparse(item)
        is_value = False


def _is_safe(item: ast.expr, *, starred: bool, is_value: bool) -> bool:
    if isinstance(item, ast.JoinedStr) and isinstance(item.values[0], ast.Constant):
        return True
    if isinstance(item, ast.IfExp):
        return all(isinstance(one, ast.Constant) for one in (item.body, item.orelse))
    if isinstance(item, ast.Name) and item.id.isupper():
        return True  # a constant of the module
    return is_value and not starred


def argvs(tree: ast.AST) -> Iterator[Sequence[ast.expr]]:
    """The argv in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _of_call(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if isinstance(node.value, ast.List | ast.Tuple) and any(
                isinstance(one, ast.Name) and one.id in VARIABLES for one in targets
            ):
                yield node.value.elts
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.List) and node.value.elts:
            starts = isinstance(node.value.elts[0], ast.Starred | ast.Name | ast.Constant)
            if starts and any(map(_is_constant, node.value.elts)):
                yield node.value.elts


def _of_call(call: ast.Call) -> Iterator[Sequence[ast.expr]]:
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if name in DOORS and call.args:
        first = call.args[0]
        if isinstance(first, ast.List | ast.Tuple):
            yield first.elts
        elif name == "zfs" or (name in ("run", "_run") and _is_constant(first)):
            yield call.args
        elif len(call.args) > 1 and isinstance(call.args[1], ast.List | ast.Tuple):
            yield call.args[1].elts  # behind the node in which it runs, or a program's path


def _is_constant(item: ast.expr) -> bool:
    return (isinstance(item, ast.Name) and item.id.lstrip("_").isupper()) or (
        isinstance(item, ast.Constant) and isinstance(item.value, str)
    )


def modules() -> list[Path]:
    """The program's modules that run programs.

    Those of images/guest are left out: they run in a guest, as its root, and root of a guest has
    all that an option could give there. Those of lab/fake run no programs.
    """
    found = []
    for top in ("lab", "api", "testvm"):
        for path in sorted((ROOT / top).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            if place.startswith(("lab/api", "lab/recipes", "lab/fake")):
                continue
            if any(word in path.read_text(encoding="utf-8") for word in READS):
                found.append(path)
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_variable_can_become_an_option(path: Path) -> None:
    place = path.relative_to(ROOT).as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {one for argv in argvs(tree) for one in expressions(argv)}
    found -= OURS["*"] | OURS.get(place, frozenset())
    assert not found, f"{place}: put them behind `--`, or check them and add them to OURS: {found}"


@pytest.mark.parametrize("place", [one for one in OURS if one != "*"])
def test_the_table_has_what_there_is(place: str) -> None:
    """A line of ``OURS`` that is left over would let the next variable of that name through."""
    tree = ast.parse((ROOT / place).read_text(encoding="utf-8"))
    found = {one for argv in argvs(tree) for one in expressions(argv)}
    assert found >= OURS[place]


def test_a_variable_before_the_dashes_is_found() -> None:
    wrong = ast.parse('run(["mariadb-dump", f"--x={a}", "-B", value, *databases, "--", name])')
    assert [list(expressions(one)) for one in argvs(wrong)] == [["*databases"]]


@pytest.mark.parametrize(
    "check",
    [names.check_lab_name, names.check_host, names.parse_node, names.check_dataset_name],
)
def test_no_name_of_ours_begins_with_a_dash(check: Callable[[str], object]) -> None:
    for wrong in ("-x", "--result-file=x", "-"):
        with pytest.raises(InvalidSpec):
            check(wrong)
