"""The benchmark's own arithmetic and its pages; nothing is measured here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import load, machine, measure, report
from bench.__main__ import PAGE, PREFACE
from bench.figures import Figure, Results, Target, ratio, start_up
from bench.labs import Failed, Home, awake, ended, environment, one_line
from bench.measure import Log
from bench.probe import disk, pss, qemu_of, unmet
from lab.paths import Home as LabHome
from lab.state.store import Store

WARM = Figure("warm", "s", (2.0, 1.8, 9.0, 1.9, 2.2), Target(2.5, 1.5), "after the first")
COLD = Figure("cold", "s", (80.0,), Target(90, 45))
RESULTS = Results(
    {"processors": "2 (Some CPU)", "memory": "24G"},
    [WARM, ratio("cold to warm", COLD, WARM, Target(25, 60, at_least=True)), COLD],
    {
        "warm": {"start-up": [0.5, 0.4, 0.6], "clone": [0.01, 0.02, 0.03]},
        "cold": {"form": [20.0, 21.0, 19.0]},
    },
)


def test_a_median_does_not_mind_an_outlier() -> None:
    """Protects the figures from one bad run."""
    assert WARM.median == 2.0
    assert (WARM.reached, WARM.stretched) == ("yes", "no")


def test_failed_runs_are_misses() -> None:
    """Protects the table from hiding that something does not work."""
    figure = Figure("x", "s", (1.0, 1.0), Target(2, 1), failed=1)
    assert (figure.reached, figure.stretched) == ("no", "no")
    assert Figure("x", "s", (), Target(2)).reached == "no"
    assert Figure("x", "s", ()).reached == "-"
    all_or_none = Target(no_failure=True)
    assert Figure("x", "s", (1.0,), all_or_none).reached == "yes"
    assert Figure("x", "s", (1.0,), all_or_none, failed=1).reached == "no"


def test_a_ratio_is_of_medians_and_better_when_large() -> None:
    """Protects the one figure that is to be exceeded."""
    found = ratio("r", COLD, WARM, Target(25, 60, at_least=True))
    assert found.samples == (40.0,)
    assert (found.reached, found.stretched) == ("yes", "no")
    assert ratio("r", Figure("none", "s", ()), WARM, Target()).samples == ()


def test_start_up_is_what_no_step_accounts_for() -> None:
    """Protects the sum: parts add up to the whole."""
    steps = [
        {"step": "clone", "seconds": 0.25, "steps": [{"step": "x", "seconds": 0.2, "steps": []}]},
        {"step": "ready", "seconds": 0.75, "steps": []},
    ]
    parts = start_up(2.0, steps)
    assert parts == {"start-up": 1.0, "clone": 0.25, "ready": 0.75}


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (1.934, "s", "1.93 s"),
        (12.34, "s", "12.3 s"),
        (270.6, "MB", "271 MB"),
        (31.7, "x", "32x"),
        (1.068, "x", "1.07x"),
    ],
)
def test_numbers_have_the_digits_that_mean_something(value: float, unit: str, shown: str) -> None:
    """Protects readers from false precision."""
    assert report.number(value, unit) == shown


def test_text_holds_every_figure_and_fact() -> None:
    """Protects the terminal's table."""
    text = report.text(RESULTS)
    for word in ("Some CPU", "2.00 s", "1.80 s", "9.00 s", "≤ 2.5 s", "40x", "≥ 25x", "start-up"):
        assert word in text
    assert "What failed" not in text


def test_markdown_is_tables_of_even_width() -> None:
    """Protects the page: a row with another number of cells breaks its table."""
    page = report.page("# Title", {"Labs": RESULTS}, "")
    assert page.startswith("# Title\n\n## The machine\n\n|")
    tables = [part for part in page.split("\n\n") if part.startswith("|")]
    assert len(tables) == 4
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert "- warm: after the first." in page


def test_a_part_is_measured_without_the_others() -> None:
    """Protects figures of parts that were not measured now, and their commits, on the page."""
    first = Results({"commit": "old", "memory": "8G"}, [WARM])
    second = Results({"commit": "new", "memory": "16G"}, [COLD])
    page = report.page("# Title", {"Labs": first, "Topologies": first}, "")
    page = report.page("# Title", {"Captures": second, "Topologies": second}, page)
    titles = [line[3:] for line in page.splitlines() if line.startswith("## ")]
    assert titles == ["The machine", "Labs", "Captures", "Topologies"]
    labs, captures, topologies = page.split("\n## ")[2:]
    assert "commit old" in labs
    assert "| warm |" in labs
    for section in (captures, topologies):
        assert "commit new" in section
        assert "| warm |" not in section
    assert page.count("| memory | 16G |") == 1
    assert "8G" not in page


def test_failures_are_reported() -> None:
    """Protects readers: a page of figures does not hide what went wrong."""
    results = Results({}, [], failures=["warm up 3: it broke"])
    assert "warm up 3: it broke" in report.text(results)
    assert "- warm up 3: it broke" in report.page("x", {"Labs": results}, "")


def test_json_holds_all_samples() -> None:
    """Protects comparisons over time."""
    found = json.loads(report.as_json({"Labs": RESULTS}))["Labs"]
    assert found["figures"][0]["samples"] == list(WARM.samples)
    assert found["figures"][0]["reached"] == "yes"
    assert found["parts"]["warm"]["clone"] == [0.01, 0.02, 0.03]


def test_a_failed_attempt_does_not_stop_the_rest() -> None:
    """Protects a long run from one failure, and the failure from being forgotten."""
    said: list[str] = []
    log = Log(said.append)

    def broken() -> None:
        raise Failed("it broke")

    with log.attempt("this"):
        broken()
    assert log.failures == ["this: it broke"]
    assert said[-1].strip() == "FAILED: it broke"


def test_facts_come_from_doctor_without_paths_of_the_scratch() -> None:
    """Protects the page from what means nothing elsewhere."""
    doctor = [
        {"topic": "qemu", "value": "7.2.22"},
        {"topic": "storage", "value": "qcow2 at /var/lib/lab-bench-x"},
        {"topic": "sql client", "value": "/usr/bin/mariadb"},
    ]
    facts = machine.facts(
        doctor, load=(0.5, 1, 2), cpuinfo="model name\t: A CPU\n", memory=4 << 30, cores=2
    )
    assert facts == {
        "processors": "2 (A CPU)",
        "memory": "4G",
        "qemu": "7.2.22",
        "storage": "qcow2",
        "load average before": "0.50, 1.00, 2.00",
    }


def test_a_busy_machine_is_reported() -> None:
    """Protects readers from figures measured under other load."""
    assert machine.caution(0.3, 2) == ""
    caution = machine.caution(4.41, 2)
    assert "4.41 on 2 cores" in caution
    results = Results({}, [], caution=caution)
    assert caution in report.text(results)
    assert caution in report.page("x", {"Labs": results}, "")


def test_equal_failures_of_several_labs_are_one_line() -> None:
    """Protects the page from the same line eight times."""
    said = {one_line(f"lab: error: bench-ab12-{n}-n1 ended\n  why\n") for n in (1, 2)}
    assert said == {"LAB-n1 ended; why"}


def test_memory_is_that_of_the_guests_asked_for(tmp_path: Path) -> None:
    """Protects the figure from guests of other labs."""
    for pid, name, kilobytes in ((11, "lab-a-n1", 100), (12, "lab-a-n10", 5000), (13, "sh", 7)):
        process = tmp_path / str(pid)
        process.mkdir()
        (process / "cmdline").write_bytes(f"qemu\0-name\0guest={name},debug-threads=on\0".encode())
        (process / "smaps_rollup").write_text(f"x\nRss: 999 kB\nPss: {kilobytes} kB\nPss_Anon: 1\n")
    found = qemu_of(["lab-a-n1"], tmp_path)
    assert [process.name for process in found] == ["11"]
    assert pss(found) == 100 << 10


def test_disk_counts_blocks_not_holes(tmp_path: Path) -> None:
    """Protects the figure from sparse files, and from directories that are not there."""
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "full").write_bytes(os.urandom(100_000))
    assert 100_000 <= disk([tmp_path, tmp_path / "absent"]) < 1_000_000


def test_a_node_that_is_not_synced_is_unmet() -> None:
    """Protects the check that a lab called ready is ready."""
    good = {
        "wsrep_local_state_comment": "Synced",
        "wsrep_cluster_status": "Primary",
        "wsrep_ready": "ON",
        "wsrep_cluster_size": "3",
    }
    assert unmet(good, 3) == []
    assert unmet(good | {"wsrep_cluster_size": "2"}, 3) == ["wsrep_cluster_size is 2, not 3"]
    assert len(unmet({}, 3)) == 4


def test_commands_run_without_the_users_settings(tmp_path: Path) -> None:
    """Protects figures from LAB_ variables of whoever measures."""
    ours = {"LAB_ACCELERATOR": "kvm", "PYTHONDONTWRITEBYTECODE": "1"}
    env = environment({**ours, "LAB_HOME": "/x", "PATH": "/bin"}, tmp_path)
    assert env["LAB_HOME"] == str(tmp_path)
    assert not ours.keys() & env.keys()
    assert env["PATH"] == "/bin"


def test_a_failing_command_says_what_it_printed(tmp_path: Path) -> None:
    """Protects those who read why a benchmark failed."""
    with pytest.raises(Failed, match=r"lab frobnicate exited 2: .*no command 'frobnicate'"):
        Home(tmp_path, "abcd").run("frobnicate")


def test_commands_still_running_are_ended() -> None:
    """Protects the machine from what an interrupted benchmark leaves."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], text=True)
    with pytest.raises(KeyboardInterrupt), ended(process):
        raise KeyboardInterrupt
    assert process.returncode == -15


def test_labs_are_recorded_for_the_listing(tmp_path: Path) -> None:
    """Protects the figure of `lab ls` from listing nothing."""
    measure.record_labs(Home(tmp_path, "abcd"), 3)
    with Store(LabHome(tmp_path)) as store:
        assert [len(found.nodes) for found in store.labs_with_nodes()] == [3, 3, 3]


def test_names_of_labs_are_valid_and_of_this_run_only() -> None:
    """Protects the labs of others: guests of all homes share one name space."""
    one, other = Home(Path("/x"), "aaaa").name(8), Home(Path("/x"), "bbbb").name(8)
    assert one != other
    assert len(one) <= 24


def test_the_page_is_one_that_was_rendered() -> None:
    """Protects docs/benchmarks.md from being edited by hand."""
    assert PAGE.read_text().startswith(PREFACE.strip())


def test_the_daemon_is_kept_awake(tmp_path: Path) -> None:
    """Protects figures from holding the start of libvirt's daemon."""
    pytest.importorskip("libvirt", reason="no libvirt-python")
    with awake("test:///default"):
        pass
    with pytest.raises(Failed), awake(f"qemu+unix:///system?socket={tmp_path}/none"):
        pytest.fail("no daemon listens at this socket")


def test_load_runs_on_all_nodes_and_hides_the_password(tmp_path: Path) -> None:
    """Protects the figures of a used lab, and its password: load on every node, private files."""
    program, seen = tmp_path / "sysbench", tmp_path / "seen"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >>{seen}; file=${{1#--config-file=}}\n'
        f'stat -c %a "$file" >>{seen}; grep -E "port|password|time" "$file" >>{seen}\n'
    )
    program.chmod(0o755)
    lab = {"user": "lab", "password": "secret", "nodes": [{"sql_port": n} for n in (1, 2, 3)]}
    with load.load(lab, str(program), 60):
        pass
    lines = seen.read_text().splitlines()
    commands = [line for line in lines if line.startswith("--config-file")]
    assert [line.split()[-1] for line in commands] == ["prepare", "run", "run", "run"]
    assert not [line for line in commands if "secret" in line]
    assert {line for line in lines if line.isdecimal()} == {"600"}
    assert sorted(line for line in lines if "port" in line) == [
        "mysql-port=1", "mysql-port=1", "mysql-port=2", "mysql-port=3",
    ]  # fmt: skip


def test_load_that_fails_says_why(tmp_path: Path) -> None:
    program = tmp_path / "sysbench"
    program.write_text("#!/bin/sh\necho FATAL: no such option; exit 1\n")
    program.chmod(0o755)
    lab = {"user": "lab", "password": "secret", "nodes": [{"sql_port": 1}]}
    with pytest.raises(Failed, match="no such option"), load.load(lab, str(program), 1):
        pass
