"""The examples of docs/client.md and docs/ci.md, run against a service on the fakes."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from lab.lifecycle.datasets import dataset
from lab.requests.datasets import CreateDataset
from tests import ROOT
from tests.support.lifecycle_world import make_image
from tests.support.serve_process import environment
from tests.support.serve_world import Site, site

DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
MARIADB = """\
#!/bin/sh
# In place of the client, which the fakes have no server for: notes each lab that it is called for.
set -eu
[ "$1" = -u ] && [ "$2" = "$LAB_USER" ] && [ -n "$MYSQL_PWD$MYSQL_HOST" ]
case $* in
    *"-P "*) echo "$LAB_DSN $*" | grep -qE -e "-P [0-9]{4,5} -N -e SET wsrep_sync_wait = 1;" ;;
    *CREATE*) [ "$LAB_PORT" = "$MYSQL_TCP_PORT" ] && echo "$LAB_DSN" >> dsn ;;
    *) exit "${TEST_FAILS:-0}" ;;
esac
"""


def blocks(page: str, heading: str, language: str) -> list[str]:
    """The examples in a section of a page."""
    section = (DOCS / page).read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ")[0]
    found = [text for kind, text in FENCE.findall(section) if kind == language]
    assert found, f"{page} has no {language} below {heading}"
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("docs"), max_ttl=7 * 86400.0) as found:
        yield found


@pytest.fixture
def env(here: Site, tmp_path: Path) -> dict[str, str]:
    """A CI machine: the program on its PATH, a token, and the page's test script."""
    [text] = [text for text in blocks("ci.md", "A job", "sh") if "# test.sh:" in text]
    for path, content in ((tmp_path / "test.sh", text), (tmp_path / "bin/mariadb", MARIADB)):
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)
    known = {"LAB_URL": str(here.client.base_url).rstrip("/"), "LAB_TOKEN": here.token(),
             "LAB_HOME": str(tmp_path / "none"), "XDG_CONFIG_HOME": str(tmp_path / "config"),
             "CI_JOB_ID": "71", "TMPDIR": str(tmp_path),
             "PATH": f"{tmp_path}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
             }  # fmt: skip
    outside = {name: its for name, its in os.environ.items() if not name.startswith("MYSQL_")}
    return {**outside, **known}


def run(
    argv: list[str], env: Mapping[str, str], where: Path, code: int = 0
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        argv, env=env, cwd=where, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def nothing_is_left(here: Site) -> bool:
    return not here.ask("GET", "/v1/labs").json()["items"]


def test_python(here: Site, env: Mapping[str, str], tmp_path: Path) -> None:
    """Protects who copies: each example does what it says and leaves nothing."""
    (tmp_path / "shop.sql.gz").write_bytes(gzip.compress(b"CREATE TABLE people (id INT);\n"))
    printed = [run([sys.executable, "-c", text], env, tmp_path).stdout
               for text in blocks("client.md", "Python", "python")]  # fmt: skip
    assert re.match(r"mysql://lab:\w+@127.0.0.1:\d+/\nn1 127.0.0.1 \d+\nn2", printed[0])
    assert "Event(step='clone', state='begin'" in printed[1]
    assert printed[1].endswith("['orders']\n")
    assert printed[2] == "['shop@1']\n"
    with here.service.core.contexts.use() as ctx:
        assert dataset.datasets(ctx) == []
    assert nothing_is_left(here)


def test_shell(here: Site, env: Mapping[str, str], tmp_path: Path) -> None:
    """Protects the page's claim that the command line works as it does here."""
    [script] = blocks("client.md", "The command line", "sh")
    printed = run(["sh", "-eu", "-c", script], env, tmp_path).stdout
    assert len(re.findall(r"^lab +orders \(pxc, ", printed, re.M)) == 4  # up, status, stop, start
    assert nothing_is_left(here)


@pytest.mark.rare
def test_pytest(here: Site, env: Mapping[str, str], tmp_path: Path) -> None:
    """Protects the example of the plugin, as it stands on the page."""
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    for tests in blocks("client.md", "pytest", "python"):
        (tmp_path / "test_page.py").write_text(tests)
        message = run([*argv, "--lab", "pxc", "--lab-scope", "session"], env, tmp_path).stdout
        assert "2 passed" in message
    assert nothing_is_left(here)


@pytest.mark.rare
def test_ci_systems(here: Site, env: Mapping[str, str], tmp_path: Path) -> None:
    """Protects pipelines: what the files have a runner do works, in that order."""
    github, gitlab = (yaml.safe_load(text) for text in blocks("ci.md", "With a service", "yaml"))
    steps = [step["run"] for step in github["jobs"]["integration"]["steps"] if "run" in step]
    run(["sh", "-e", "-c", "\n".join(steps)], env, tmp_path)
    job = gitlab["integration"]
    run(["sh", "-e", "-c", "\n".join(job["script"])], env, tmp_path)
    assert [one["name"] for one in here.ask("GET", "/v1/labs").json()["items"]] == ["ci-71"]
    run(["sh", "-e", "-c", "\n".join(job["after_script"])], env, tmp_path)
    assert len((tmp_path / "dsn").read_text().split()) == 2
    assert nothing_is_left(here)


@pytest.mark.rare
def test_jobs_on_a_host(env: Mapping[str, str], tmp_path: Path) -> None:
    """Protects who copies: a job with its test script, and a lab for several steps."""
    local = {**environment(tmp_path / "host"), "PATH": env["PATH"], "BUILD": "9"}
    job, _ = blocks("ci.md", "A job", "sh")
    assert "exit code" not in run(["sh", "-c", job], local, tmp_path).stdout
    failed = run(["sh", "-c", job], {**local, "TEST_FAILS": "4"}, tmp_path, code=4)
    assert failed.stdout.endswith("exit code 4\n")
    [steps] = blocks("ci.md", "A lab for several steps", "sh")
    run(["sh", "-c", steps], local, tmp_path)
    variables = dict(line.split("=", 1) for line in (tmp_path / "lab.env").read_text().splitlines())
    assert {"LAB_DSN", "LAB_PORTS", "MYSQL_PWD"} <= set(variables)
    assert run(["lab", "ls", "-o", "name"], local, tmp_path).stdout == ""


@pytest.fixture
def shop(here: Site, tmp_path: Path) -> Iterator[None]:
    """A dataset."""
    dump = tmp_path / "shop.sql"
    dump.write_text("CREATE TABLE people (id INT PRIMARY KEY);\n")
    with here.service.core.contexts.use() as ctx:
        make_image(ctx)
        dataset.create(ctx, CreateDataset(name="shop", source=str(dump)))
    yield
    with here.service.core.contexts.use() as ctx:
        dataset.remove(ctx, "shop")


def names(here: Site) -> list[str]:
    return sorted(one["name"] for one in here.ask("GET", "/v1/labs").json()["items"])


@pytest.mark.rare
@pytest.mark.usefixtures("shop")
def test_pull_requests(here: Site, env: Mapping[str, str], tmp_path: Path) -> None:
    """Protects pull requests: one lab for all of its pushes, which goes when it is closed."""
    texts = blocks("ci.md", "A database for each pull request", "yaml")
    github, gitlab = (yaml.safe_load(text) for text in texts)
    [push, close] = [one["run"] for one in github["jobs"]["database"]["steps"] if "run" in one]
    drop = gitlab["drop-database"]["script"]
    for name, pushed, closed in (
        ("pr-7", push, close),
        ("mr-7", "\n".join(gitlab["database"]["script"]), "\n".join(drop)),
    ):
        known = {**env, "LAB_NAME": name}
        (tmp_path / "dsn").unlink(missing_ok=True)
        for _ in range(2):
            pushes = run(["sh", "-e", "-c", pushed], known, tmp_path)
            assert "error" not in pushes.stderr
        assert len(set((tmp_path / "dsn").read_text().split())) == 1
        assert names(here) == [name]
        for _ in range(2):  # also one that was never opened, or is gone
            run(["sh", "-e", "-c", closed], known, tmp_path)
        assert nothing_is_left(here)


@pytest.mark.rare
@pytest.mark.usefixtures("shop")
def test_a_hook_of_git(here: Site, env: Mapping[str, str], tmp_path: Path) -> None:
    """Protects a developer's branches from each other's data."""
    prepare, hook = blocks("ci.md", "A database for each pull request", "sh")
    (tmp_path / "migrate.sh").write_text('#!/bin/sh\n[ -n "$LAB_DSN" ]\n')
    (tmp_path / "migrate.sh").chmod(0o755)
    run(["sh", "-eu", "-c", prepare], env, tmp_path)
    who = {f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER")
           for what in ("NAME", "EMAIL")}  # fmt: skip
    known = {**env, **who, "GIT_CONFIG_GLOBAL": os.devnull}
    tree = tmp_path / "tree"
    run(["git", "init", "-q", "-b", "trunk", str(tree)], known, tmp_path)
    run(["git", "commit", "-q", "--allow-empty", "-m", "x"], known, tree)
    path = tree / ".git/hooks/post-checkout"
    path.write_text(hook)
    path.chmod(0o755)
    found: dict[str, str] = {}
    for branch in ("Feature/A_long_name", "trunk", "Feature/A_long_name"):
        there = run(["git", "branch", "--list", branch], known, tree).stdout
        run(["git", "checkout", "-q", *([] if there else ["-b"]), branch], known, tree)
        written = (tree / ".env").read_text()
        assert found.setdefault(branch, written) == written
    assert (tree / ".env").stat().st_mode & 0o777 == 0o600
    assert len(set(found.values())) == 2
    labs = [name for name in names(here) if name != "main"]
    assert len(labs) == 2
    run(["lab", "down", *labs], env, tmp_path)
    run(["lab", "down", "main"], env, tmp_path)
    assert nothing_is_left(here)


@pytest.fixture
def script(tmp_path: Path) -> list[str]:
    """The command that runs the script of docs/ci.md that needs nothing but curl and jq."""
    path = tmp_path / "ci.sh"
    path.write_text(next(t for t in blocks("ci.md", "With a service", "sh") if "#!/bin/sh" in t))
    return ["sh", str(path)]


CURL = pytest.mark.skipif(
    not (shutil.which("curl") and shutil.which("jq")),
    reason="needs curl and jq: `make setup-tests` installs them",
)


@CURL
def test_reset_by_curl(here: Site, env: Mapping[str, str], tmp_path: Path) -> None:
    """Protects tests in other languages: the request of the page rolls a lab back."""
    *_, script = blocks("client.md", "pytest", "sh")
    here.make("mine", token=env["LAB_TOKEN"])
    here.ask("POST", "/v1/labs/mine/snapshots?wait=60", {"name": "loaded"})
    answer = run(["sh", "-eu", "-c", script], {**env, "LAB_NAME": "mine"}, tmp_path).stdout
    assert json.loads(answer)["state"] == "succeeded"
    here.ask("DELETE", "/v1/labs/mine?wait=60")
    assert nothing_is_left(here)


@CURL
@pytest.mark.parametrize("waits", [64, 0], ids=["waits", "answered at once"])
def test_curl(
    here: Site,
    env: Mapping[str, str],
    tmp_path: Path,
    script: list[str],
    monkeypatch: pytest.MonkeyPatch,
    waits: int,
) -> None:
    """Protects the script without our program: it cleans up, and tells what was refused.

    Also where a create is answered with its job (202), as too many requests wait already.
    """
    monkeypatch.setattr(here.service.core.limits.waits, "per_token", waits)
    run(script, {**env, "CI_JOB_ID": f"first-{waits}"}, tmp_path)
    assert (tmp_path / "dsn").read_text().startswith("mysql://lab:")
    failing = {**env, "CI_JOB_ID": f"second-{waits}", "TEST_FAILS": "3"}
    run(script, failing, tmp_path, code=3)
    refused = run(script, {**env, "LAB_TOKEN": "lab_nobody"}, tmp_path, code=1)
    assert "token" in refused.stderr
    here.settled()
    assert nothing_is_left(here)
    assert [path.name for path in tmp_path.glob("tmp.*")] == []
    audit = here.ask("GET", "/v1/audit?limit=500").json()["items"]
    assert env["LAB_TOKEN"] not in json.dumps(audit)


@CURL
def test_curl_and_a_job_that_fails(
    here: Site,
    env: Mapping[str, str],
    tmp_path: Path,
    script: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Protects a pipeline from a wait without an end, and its log from silence."""
    monkeypatch.setattr(here.service.core.limits.waits, "per_token", 0)
    # As if the disk had space when the job was submitted.
    monkeypatch.setattr("lab.api.jobs.submit._FILL", frozenset())
    floor = here.service.core.settings.space_floor
    here.change(space_floor=1 << 62)
    try:
        failed = run(script, {**env, "CI_JOB_ID": "full"}, tmp_path, code=1)
    finally:
        here.change(space_floor=floor)
    assert "kept free" in failed.stderr
    assert "null" not in failed.stderr
    here.settled()
    assert nothing_is_left(here)


@CURL
def test_curl_and_a_lab_that_takes_too_long(
    here: Site,
    env: Mapping[str, str],
    tmp_path: Path,
    script: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Protects the host: what a pipeline no longer waits for is cancelled, or removed."""
    monkeypatch.setattr(here.service.core.limits.waits, "per_token", 0)
    late = run(script, {**env, "CI_JOB_ID": "late", "LAB_SECONDS": "0"}, tmp_path, code=7)
    assert "not ready after 0 s" in late.stderr
    assert not (tmp_path / "dsn").exists()
    here.settled()
    assert nothing_is_left(here)


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="needs curl and jq")
@pytest.mark.parametrize("waits", [64, 0], ids=["waits", "refused"])
def test_a_script(
    here: Site, env: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: int
) -> None:
    """Protects who copies the script of docs/api.md: also where requests may not wait."""
    monkeypatch.setattr(here.service.core.limits.waits, "per_token", waits)
    [script] = blocks("api.md", "A lab for a script", "sh")
    known = {**env, "CI_JOB": f"script-{waits}"}
    assert run(["sh", "-eu", "-c", script], known, tmp_path).stdout.startswith("mysql://lab:")
    monkeypatch.undo()
    gone = here.ask("GET", "/v1/jobs?kind=delete").json()["items"][0]
    assert here.ask("GET", f"/v1/jobs/{gone['id']}?wait=20").json()["state"] == "succeeded"
    assert nothing_is_left(here)
