"""What holds for the files of the repository, whatever they do."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

from lab.config import tomlfile
from lab.run import run
from tests import ROOT

# In pieces, so that this file does not hold what it forbids.
REGISTRIES = (
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("npmjs", "org"),
    ("npmjs", "com"),
    ("crates", "io"),
    ("rubygems", "org"),
    ("proxy", "golang", "org"),
    ("deb", "debian", "org"),
    ("security", "debian", "org"),
    ("archive", "ubuntu", "com"),
    ("security", "ubuntu", "com"),
    ("docker", "io"),
)
FORBIDDEN_IN_CODE = (
    ("mock", ".", "patch", "pass a fake instead"),
    ("shell", "=", "True", "run argv lists through lab/run.py"),
    ("from _py", "test", "", "its private names change with minor versions"),
)

NOT_OURS = re.compile(r"/(\.git|\.venv|\.?\w*cache\w*|build|dist|[^/]+\.egg-info)/")


def tracked() -> list[Path]:
    """The repository's files: what git would commit; without git, all that is not ignored."""
    if shutil.which("git") and (ROOT / ".git").exists():
        listing = run(
            ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            timeout=30,
        ).stdout
        paths = [ROOT / name for name in listing.split("\0") if name]
    else:
        paths = [path for path in ROOT.rglob("*") if not NOT_OURS.search(f"{path}/")]
    return sorted({path for path in paths if path.is_file() and not path.is_symlink()})


def texts() -> list[tuple[Path, str]]:
    """Path (from the root) and text of each file that is text."""
    found = []
    for path in tracked():
        data = path.read_bytes()
        if b"\0" not in data:
            found.append((path.relative_to(ROOT), data.decode(errors="replace")))
    return found


@pytest.mark.parametrize("parts", REGISTRIES)
def test_no_registry_host_is_named(parts: tuple[str, ...]) -> None:
    """Protects users behind mirrors: where packages come from is the machine's business."""
    host = ".".join(parts)
    found = [str(path) for path, text in texts() if host in text]
    assert not found, f"{host} is named in {', '.join(found)}"


@pytest.mark.parametrize(("before", "sign", "after", "instead"), FORBIDDEN_IN_CODE)
def test_forbidden_in_code(before: str, sign: str, after: str, instead: str) -> None:
    """Protects the seams (no patching from outside) and the users (no shell strings)."""
    what = before + sign + after
    found = [str(path) for path, text in texts() if path.suffix == ".py" and what in text]
    assert not found, f"{what} in {', '.join(found)}: {instead}"


def test_the_program_puts_nothing_in_the_place_of_modules() -> None:
    """Protects from new releases of packages: a stand-in answers only what it was written for."""
    found = [
        str(path)
        for path, text in texts()
        if path.suffix == ".py" and path.parts[0] != "tests" and "sys.modules" in text
    ]
    assert not found


INSTALL = re.compile(r"\bpip3? install ((?:[^`|#\n\\]|\\\n)+)")
QUOTED = re.compile(r"""'[^']*'|"[^"]*"|\S+""")
OURS = re.compile(r"(?<![-/\w])(?:mysql-)?lab\[(?:client|datasets|dev|host|serve|trace)[],](?! @ )")
"""An extra of ours, named without the place that it comes from."""


def test_installs_name_packages_that_are_meant() -> None:
    """Protects from code of strangers: `lab` is somebody else's on the package index.

    What is installed has a path or a URL, or is one of our dependencies.
    """
    metadata = (ROOT / "pyproject.toml").read_text()
    known = {name.lower() for name in re.findall(r'^ +"([\w-]+)\W', metadata, re.M)}
    known |= {"click", "croniter", "python-dateutil"}  # DBOS needs them
    known |= {"uv"}  # writes the pins
    known -= {"mysql-lab"}
    found = []
    for path, text in texts():
        if path.parts[0] == "tests" or path.name in {"CHANGELOG.md", "pyproject.toml"}:
            continue
        found += [f"{path}: {match[0]}" for match in OURS.finditer(text)]
        for line in INSTALL.findall(text):
            for word in (quoted.strip("'\"") for quoted in QUOTED.findall(line)):
                name = re.match(r"[\w-]*", word)
                given = word.startswith(("-", "$", "{", ".", "/")) or " @ " in word
                given |= word.endswith(".txt")  # of -r
                if not given and name and name[0].lower() not in known:
                    found.append(f"{path}: {word} in `pip install {line}`")
    assert not found


def test_mypy_checks_all_python() -> None:
    """Protects programs beside the packages: what no test runs is at least checked by its types."""
    project = ROOT / "pyproject.toml"
    mypy = tomlfile.loads(project.read_bytes(), project)["tool"]["mypy"]
    assert mypy["strict"]
    checked = {Path(name) for name in mypy["files"]} | {Path("api")}  # by the link lab/api
    assert (ROOT / "lab/api").readlink() == Path("../api")
    unchecked = [
        str(path)
        for path, text in texts()
        if path.suffix == ".py" or re.match(r"#!.*\bpython", text)
        if path not in checked and not (path.suffix == ".py" and {*path.parents} & checked)
    ]
    assert not unchecked, "neither named in nor below `files` of [tool.mypy]"


def test_workflows_run_targets_that_exist() -> None:
    """Protects runners that we do not have: a target that was renamed fails here, not there."""
    rules = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        workflow = yaml.safe_load(path.read_text())
        scripts = [s["run"] for j in workflow["jobs"].values() for s in j["steps"] if "run" in s]
        lines = [line.split(">")[0].split() for script in scripts for line in script.splitlines()]
        for words in lines:
            if "make" in words[:2]:
                targets = {word for word in words[words.index("make") + 1 :] if "=" not in word}
                assert targets <= rules, path
            assert [word for word in words if word.startswith(".ci/")] in ([], [".ci/run"])


def test_jobs_of_workflows_end_by_their_own_limits() -> None:
    """Protects their reports: a runner that cuts a job lets it neither sum up nor clean up."""
    budget = int(re.findall(r"^BUDGET=(\d+)", (ROOT / ".ci/run").read_text(), re.M)[0])
    usual = re.findall(r"^TEST_TIMEOUT \?= (\d+)", (ROOT / "Makefile").read_text(), re.M)
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            script = "\n".join(step.get("run", "") for step in job["steps"])
            limit = budget if ".ci/run" in script else 0
            if re.search(r"make .*\btest", script):
                limit = int((re.findall(r"TEST_TIMEOUT=(\d+)", script) or usual)[0])
            assert limit < 60 * job["timeout-minutes"], f"{path.name}: {name}"


def test_git_works_in_containers_of_workflows() -> None:
    """Protects tests that list our files: there the checkout belongs to another user than root."""
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            scripts = [step.get("run", "") for step in job["steps"]]
            trusts = any("safe.directory" in script for script in scripts)
            assert trusts or "container" not in job, f"{path.name}: {name}"


def test_make_help_lists_every_target() -> None:
    """Protects newcomers: what can be done is what `make help` shows."""
    makefile = (ROOT / "Makefile").read_text()
    phony = {
        name for line in re.findall(r"^\.PHONY:(.*)$", makefile, re.M) for name in line.split()
    }
    rules = set(re.findall(r"^([a-z][\w-]*):", makefile, re.M))
    if "GNU" not in run(["sh", "-c", "make --version || :"], timeout=30).stdout:
        pytest.skip("needs GNU make")
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    shown = run(["make", "-C", ROOT, "help"], timeout=30, env=quiet | {"MAKEFLAGS": ""}).stdout
    listed = {line.split()[0] for line in shown.splitlines() if line and ":" not in line.split()[0]}
    assert phony == rules, "every target is .PHONY, and the other way round"
    assert phony <= listed, f"make help says nothing about {sorted(phony - listed)}"
