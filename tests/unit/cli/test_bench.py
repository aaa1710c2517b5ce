"""``lab bench``: from words to requests, labs that are made for it, and what is printed."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from PIL import Image, ImageColor

from lab.bench.experiments import variants
from lab.bench.plot import bars, bars_as_png, page
from lab.bench.stats import compare
from lab.cli import main
from lab.errors import NotReady
from lab.requests.benches import CompareBench, RunBench
from lab.requests.labs import CreateLab
from lab.views.benches import BenchView, NodeUse
from tests.support.cli_views import bench_view, compare_view
from tests.unit.cli.test_fake_lifecycle import _ANSWERS, FakeLifecycle

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory without a lab.toml of somebody else's."""
    monkeypatch.chdir(tmp_path)


def called(world: FakeLifecycle, method: str) -> list[object]:
    return [call[1] for call in world.calls if call[0] == method]


def test_a_run_of_a_lab(capsys: Capture) -> None:
    """Protects each flag from being parsed and forgotten."""
    world = FakeLifecycle("shop")
    line = (
        "bench run oltp_read_write shop --threads 1,2,4 --seconds 90 --warm-up 5s --tables 3"
        " --rows 100 --rate 50 --proxied --label nightly"
    )
    assert main(line.split(), lifecycle=world) == 0
    assert world.called("RunBench")[0] == RunBench(
        lab="shop", workload="oltp_read_write", threads=(1, 2, 4), seconds=90.0, warm_up=5.0,
        tables=3, rows=100, rate=50, proxied=True, label="nightly",
    )  # fmt: skip
    assert not called(world, "CreateLab")
    out = capsys.readouterr().out
    assert "coordinated omission" in out
    assert "guests were emulated" in out
    assert "1.0 at 2 s" in out, "the stall"
    assert "on disk unknown" in out


def test_a_lab_is_made_and_removed() -> None:
    world = FakeLifecycle()
    line = "bench run tpcc-like --blueprint galera --nodes 2 --set a=1 -o name"
    assert main(line.split(), lifecycle=world) == 0
    (asked,) = called(world, "CreateLab")
    assert isinstance(asked, CreateLab)
    assert asked.options == {"client": True, "set": ("a=1",)}
    assert asked.name.startswith("bench-")
    assert asked.ttl, "a command that is killed leaves it to `lab gc`"
    assert called(world, "RunBench")[0].lab == asked.name  # type: ignore[attr-defined]
    assert not world.views
    world.fails["RunBench"] = NotReady("x")
    assert main(line.split(), lifecycle=world) == 7
    assert not world.views, "also if it fails"


def test_two_labs_are_made_and_compared(capsys: Capture) -> None:
    world = FakeLifecycle()
    line = ["bench", "compare", "oltp_insert", "--blueprint", "single", "--set", "z=0"]
    line += ["--a", "--set a=1 --profile durable", "--b", "--set a=2", "--expect", "+5%"]
    assert main([*line, "--rounds", "12", "--order", "turns"], lifecycle=world) == 0
    a, b = called(world, "CreateLab")
    assert isinstance(a, CreateLab)
    assert isinstance(b, CreateLab)
    assert (a.options["set"], b.options["set"]) == (("z=0", "a=1"), ("z=0", "a=2"))
    assert (a.profile, b.profile) == ("durable", "")
    asked = world.called("CompareBench")[0]
    assert isinstance(asked, CompareBench)
    assert (asked.a, asked.b, asked.rounds, asked.order) == (a.name, b.name, 12, "turns")
    assert asked.said_b == "single --set z=0 --set a=2"
    assert not world.views
    out = capsys.readouterr().out
    assert "B is slower: -50.0 %" in out
    assert "expected: -50%" in out


def test_two_labs_that_exist_are_compared() -> None:
    world = FakeLifecycle("x", "y")
    assert (
        main(["bench", "compare", "import", "--lab-a", "x", "--lab-b", "y"], lifecycle=world) == 0
    )
    assert not called(world, "CreateLab")
    assert sorted(world.views) == ["x", "y"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("bench run oltp_reed_write shop", "there is no workload 'oltp_reed_write'"),
        ("bench run import shop --nodes 3", "--nodes is of a lab that is made"),
        ("bench run import shop --ttl 1h", "--ttl is of a lab that is made"),
        ("bench run import shop --timeout 9s", "--timeout is of a lab that is made"),
        ("bench compare import --lab-a a --lab-b b --ttl 1h", "--ttl is of a lab that is made"),
        ("bench run import", "no blueprint is named"),
        ("bench run import shop --threads 1,x", "--threads: 'x' is not a whole number"),
        ("bench compare import --blueprint single", "A and B have the same flags"),
        ("bench compare import --lab-a x", "name the two labs: give both"),
        ("bench compare import --lab-a x --lab-b y --a z", "leave them or --lab-a out"),
        ("bench compare import --lab-a x --lab-b y --order both", "not one of auto"),
        ("bench compare import --blueprint single --a --nodez --b x", "nodez"),
        ("bench compare import --blueprint single --a --help --b x", "--help"),
        ("bench export --format xml", "neither csv nor json"),
    ],
)
def test_what_is_refused(line: str, said: str, capsys: Capture) -> None:
    assert main(line.split(), lifecycle=FakeLifecycle("shop")) == 2
    assert said in capsys.readouterr().err


def test_results_are_listed_shown_and_exported(capsys: Capture) -> None:
    world = FakeLifecycle()
    world.kept_benches = [bench_view(), compare_view()]
    assert main(["bench", "ls"], lifecycle=world) == 0
    out = capsys.readouterr().out
    assert "100.0/s with 4 threads" in out
    assert "B is slower: -50.0 %" in out
    assert "too few results for change points: 1 of 20" in out
    assert main(["bench", "show", "pull", "-o", "json"], lifecycle=world) == 0
    assert json.loads(capsys.readouterr().out)["tps"]["verdict"] == "slower"
    assert main(["bench", "export"], lifecycle=world) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert dict(zip(header.split(","), line.split(","), strict=True))["tps"] == "100.000"
    assert main(["bench", "show", "nowhere"], lifecycle=world) == 3


def test_a_change_of_results_is_said(capsys: Capture) -> None:
    world = FakeLifecycle()
    world.kept_benches = [
        bench_view(f"{number:08}", at=float(number), tps=100.0 + number % 3 - (number > 12) * 20)
        for number in range(24)
    ]
    assert main(["bench", "ls"], lifecycle=world) == 0
    assert "changes at 00000013" in capsys.readouterr().out


def test_a_comment_for_a_pull_request(tmp_path: Path, capsys: Capture) -> None:
    """Protects the gate: 1 if it is slower, 2 where too little is known to judge, else 0."""
    world = FakeLifecycle()
    world.kept_benches = [compare_view(), compare_view(2.0, id="77aa0022", label="better")]
    assert main(["bench", "ci", "pull"], lifecycle=world) == 1
    assert "**B is slower**" in capsys.readouterr().out
    assert main(["bench", "ci", "better"], lifecycle=world) == 0
    assert main(["bench", "ci", "pull", "--baseline", "x"], lifecycle=world) == 2
    world.kept_benches = [
        *(bench_view(f"b{number}", label="main", tps=100.0 + number) for number in range(6)),
        *(bench_view(f"n{number}", label="pull", tps=70.0 + number) for number in range(5)),
    ]
    assert main(["bench", "ci", "pull"], lifecycle=world) == 2
    assert main(["bench", "ci", "pull", "--baseline", "main"], lifecycle=world) == 1
    assert "**slower** than the baseline" in capsys.readouterr().out
    assert main(["bench", "export", "--label", "pull", "--format", "json"], lifecycle=world) == 0
    (tmp_path / "base.json").write_text(capsys.readouterr().out)
    assert main(["bench", "ci", "main", "--baseline", "base.json"], lifecycle=world) == 0
    assert "faster" in capsys.readouterr().out
    assert main(["bench", "ci", "pull", "--baseline", "nothing"], lifecycle=world) == 3
    idle = [bench_view(f"i{number}", label="idle", tps=0.0) for number in range(6)]
    world.kept_benches += idle
    assert main(["bench", "ci", "pull", "--baseline", "idle"], lifecycle=world) == 2
    large = [bench_view(f"l{number}", label="large", rows=9) for number in range(6)]
    world.kept_benches += large
    assert main(["bench", "ci", "pull", "--baseline", "large"], lifecycle=world) == 3
    for bad in ("[{}]", "[" * 10_000, '[{"x": ' + "[" * 10_000):
        (tmp_path / "bad.json").write_text(bad)
        assert main(["bench", "ci", "pull", "--baseline", "bad.json"], lifecycle=world) == 2
    slow = compare([1.0] * 8, [1.5] * 8, more=False)
    even = compare([1.0] * 8, [1.0] * 8, more=True)
    world.kept_benches.append(compare_view(1.0, id="77", rate=20, tps=even, p95=slow))
    assert main(["bench", "ci", "77"], lifecycle=world) == 1, "a rate says nothing: latency does"
    few = compare([1.0] * 4, [0.5] * 4, more=True)
    world.kept_benches.append(compare_view(1.0, id="78", tps=few))
    capsys.readouterr()
    assert main(["bench", "ci", "78"], lifecycle=world) == 2
    assert "too few rounds" in capsys.readouterr().out


def test_an_experiment_has_a_lab_of_each_profile(tmp_path: Path, capsys: Capture) -> None:
    """Protects who reads it: the original beside ours, the factor, and that it was emulated."""
    world = FakeLifecycle()
    line = "bench experiment dump-import --count 400 --plot out.svg --set a=1"
    assert main(line.split(), lifecycle=world) == 0
    labs = called(world, "CreateLab")
    assert [one.profile for one in labs] == ["durable", "balanced", "disposable"]  # type: ignore[attr-defined]
    runs = called(world, "RunBench")
    assert {(one.workload, one.rows, one.label) for one in runs} == {  # type: ignore[attr-defined]
        ("import", 400, "experiment-dump-import")
    }
    assert not world.views
    out = capsys.readouterr().out
    assert "UFS2" in out
    assert "profile durable" in out
    assert "100 times fewer" in out
    assert "guests were emulated" in out
    plot = (tmp_path / "out.svg").read_text()
    assert plot.startswith("<svg ")
    assert "guests were emulated" in plot
    assert main(["bench", "experiment", "dump-inport"], lifecycle=world) == 2
    assert (
        main(["bench", "experiment", "create-tables", "--profile", "durable"], lifecycle=world) == 2
    )
    world.fails["RunBench"] = NotReady("x")
    assert main(["bench", "experiment", "create-tables"], lifecycle=world) == 7
    assert not world.views


def test_an_experiment_has_a_lab_of_each_buffer_pool(tmp_path: Path, capsys: Capture) -> None:
    """Protects who reads it: pools are shares of the data; and the page is whole."""
    world = FakeLifecycle()
    line = "bench experiment buffer-pool --plot out.html --profile durable --set a=1"
    assert main(line.split(), lifecycle=world) == 0
    labs = called(world, "CreateLab")
    given = [str(one.options) for one in labs]  # type: ignore[attr-defined]
    sizes = [re.findall(r"innodb_buffer_pool_size=(\d+)M", text) for text in given]
    assert sizes == [["6"], ["10"], ["19"], ["30"]]
    assert all("a=1" in text for text in given)
    assert {one.profile for one in labs} == {"durable"}  # type: ignore[attr-defined]
    assert {one.threads for one in called(world, "RunBench")} == {(6,)}  # type: ignore[attr-defined]
    out = capsys.readouterr().out
    assert "pool of 22 % of the data (10M)" in out
    assert "70 times fewer; 6 threads" in out
    plot = (tmp_path / "out.html").read_text()
    assert plot.count("<tr>") == 1 + 8 + 4
    assert "<svg " in plot
    small = variants("buffer-pool", 1000)
    assert len(small) == 1, "all are the least that servers take"
    tpcc = "bench experiment tpcc --count 2 -o json"
    assert main(tpcc.split(), lifecycle=world) == 0
    assert {one.warehouses for one in called(world, "RunBench")[4:]} == {2}  # type: ignore[attr-defined]


def test_an_experiment_has_a_plot_as_png(tmp_path: Path) -> None:
    """Protects comments and chats, which show no SVG; its text needs no font of the host."""
    line = ["bench", "experiment", "dump-import", "--count", "400", "--plot", "out.PNG"]
    assert main(line, lifecycle=FakeLifecycle()) == 0
    found = (tmp_path / "out.PNG").read_bytes()
    assert found.startswith(b"\x89PNG\r\n\x1a\n")
    with Image.open(io.BytesIO(found)) as image:
        image.load()
    assert image.width == 2 * 760
    assert len(image.getcolors(image.width * image.height) or ()) > 2
    names = image.crop((0, 2 * 64, 2 * 240, 2 * 160))
    assert len(names.getcolors(names.width * names.height) or ()) > 2, "there is no text"


def test_without_pillow_nothing_is_measured(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the hour that the labs take: what is missing is found before."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    world = FakeLifecycle()
    line = ["bench", "experiment", "dump-import", "--plot", "out.png"]
    assert main(line, lifecycle=world) == 5
    assert not world.calls
    error = capsys.readouterr().err
    assert "a plot as PNG requires the Python package PIL, which is not installed" in error
    assert main([*line[:-1], "out.svg"], lifecycle=world) == 0


@pytest.mark.parametrize(
    ("plot", "said"), [("out.pdf", "no .svg, .png or .html"), ("absent/out.svg", "no directory")]
)
def test_a_plot_that_cannot_be_written_is_refused_before(
    plot: str, said: str, capsys: Capture
) -> None:
    """Protects the hour that the labs take."""
    world = FakeLifecycle()
    assert main(["bench", "experiment", "dump-import", "--plot", plot], lifecycle=world) == 2
    assert said in capsys.readouterr().err
    assert not world.calls


def test_a_png_has_the_bars_of_the_svg() -> None:
    """Protects from two drawings: same places, widths and colours."""
    values = [("a", 0.0), ("b", 1.0), ("c", 2.0)]
    notes = ["a note " * 40]
    root = ET.fromstring(bars("t", "s", values, notes))  # noqa: S314  our own
    with Image.open(io.BytesIO(bars_as_png("t", "s", values, notes))) as image:
        image.load()
    assert image.size == (2 * int(root.attrib["width"]), 2 * int(root.attrib["height"]))
    below = [one.text or "" for one in root.iter("{http://www.w3.org/2000/svg}text")][-3:]
    assert " ".join(below) == notes[0].strip(), "all of a long note is shown"
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        colour = ImageColor.getrgb(box.attrib["fill"])
        left, top, width = (int(2 * float(box.get(key, 0))) for key in ("x", "y", "width"))
        ends = [image.getpixel((x, top)) for x in range(left, left + width)]
        assert set(ends) <= {colour}
        if left:
            assert image.getpixel((left + width, top)) != colour


PRICES = """\
currency = "$"
[price]
disk_gb = 0.5
vcpu = 10
ram_gb = 2.25
[cluster]
data_gb = 700
nodes = 3
vcpus = 4
ram_gb = 16
"""


def used(monkeypatch: pytest.MonkeyPatch, *sizes: int | None) -> None:
    """Let runs have these bytes on disk, one after the other; the client's are not counted."""
    left = iter(sizes)

    def answer(asked: RunBench) -> BenchView:
        view = bench_view(lab=asked.lab, workload=asked.workload)
        client = NodeUse("c1", "client", {}, 0.1, 1, 9_000_000_000)
        server = replace(view.steps[0].nodes[0], disk=next(left))
        return replace(view, steps=(replace(view.steps[0], nodes=(server, client)),))

    answers: dict[Any, Any] = _ANSWERS
    monkeypatch.setitem(answers, RunBench, answer)


def rows_of(out: str) -> dict[str, list[str]]:
    """The cells of the cost table, by what a row is of."""
    lines = out.split("\n\n")[1].splitlines()
    cells = [
        re.split(r" {2,}", line.strip()) for line in lines if line.startswith(("orig", "ours"))
    ]
    return {one[1]: one[2:] for one in cells if len(one) > 2}


def test_costs_by_the_prices_of_a_user(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the arithmetic: disk in proportion, processors and memory of each node as given."""
    used(monkeypatch, 200_000_000, 100_000_000, 50_000_000)
    (tmp_path / "prices.toml").write_text(PRICES)
    line = "bench experiment tpcc --prices prices.toml --plot out.html"
    assert main(line.split(), lifecycle=FakeLifecycle()) == 0
    out = capsys.readouterr().out
    found = rows_of(out)
    assert found["profile durable"] == ["0.200", "700.0", "1278.00 $"], "3 * (350 + 40 + 36)"
    assert found["profile balanced"] == ["0.100", "350.0", "753.00 $"]
    assert found["profile disposable"] == ["0.050", "175.0", "490.50 $"]
    figures = {one.split()[0] for cells in found.values() for one in cells if one.endswith(".00 $")}
    assert {"243.00", "118.00", "2700.00", "4980.00", "1400.00"} <= figures
    assert "3 nodes; of each: 4 vCPU, 16 GB of RAM, 700 GB on disk with profile durable" in out
    written = (tmp_path / "out.html").read_text()
    assert written.count("<table>") == 2
    assert "<td>490.50 $</td>" in written


@pytest.mark.parametrize(
    ("sizes", "unknown"),
    [
        ((200_000_000, None, 50_000_000), {"profile balanced"}),
        ((None, 1, 2), {"profile durable", "profile balanced", "profile disposable"}),
    ],
    ids=["one", "the first"],
)
def test_costs_of_what_was_not_observed_are_unknown(
    sizes: tuple[int | None, ...],
    unknown: set[str],
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Protects from figures that nobody measured; the first profile is what others refer to."""
    used(monkeypatch, *sizes)
    (tmp_path / "prices.toml").write_text(PRICES)
    line = ["bench", "experiment", "tpcc", "--prices", "prices.toml"]
    assert main(line, lifecycle=FakeLifecycle()) == 0
    found = rows_of(capsys.readouterr().out)
    assert {where for where, cells in found.items() if cells[-1] == "unknown"} == unknown
    assert found["profile disposable"][0] != "unknown"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("currency = '$'\n", "price is missing"),
        (PRICES.replace('"$"', '"doubloons"'), "a code of three letters"),
        (PRICES.replace("data_gb = 700", "data_gb = 0"), "a number above 0"),
        (PRICES.replace("vcpu = 10", "vcpu = nan"), "a number from 0 to"),
        (PRICES.replace("vcpu = 10", f"vcpu = 1{'0' * 400}"), "a number from 0 to"),
        (PRICES.replace("vcpu = 10", "vcpu = inf"), "a number from 0 to"),
        (PRICES.replace("nodes = 3", "nodes = 1.5"), "a whole number"),
        (PRICES.replace("disk_gb", "disc_gb"), "disc_gb"),
        ("currency = ", "not valid TOML"),
        ("#" * 70_000, "more than 64K"),
        (None, "cannot be read"),
    ],
)
def test_prices_that_cannot_be_used_are_refused_before_a_lab_is_made(
    text: str | None, said: str, tmp_path: Path, capsys: Capture
) -> None:
    if text is not None:
        (tmp_path / "prices.toml").write_text(text)
    world = FakeLifecycle()
    line = ["bench", "experiment", "tpcc", "--prices", "prices.toml"]
    assert main(line, lifecycle=world) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "prices.toml" in error
    assert not world.calls


def test_only_an_experiment_about_costs_has_prices(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "prices.toml").write_text(PRICES)
    world = FakeLifecycle()
    line = ["bench", "experiment", "dump-import", "--prices", "prices.toml"]
    assert main(line, lifecycle=world) == 2
    assert "only of: tpcc" in capsys.readouterr().err
    line[2] = "tpcc"
    assert main([*line, "-o", "json"], lifecycle=world) == 2
    assert "not part of -o json" in capsys.readouterr().err
    assert not world.calls


def test_bars_are_valid_whatever_their_names() -> None:
    text = bars("a <b> & c", "s", [("<x>", 0.0), ("y", 2.0)], ["&"])
    root = ET.fromstring(text)  # noqa: S314  our own
    widths = [float(one.attrib["width"]) for one in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths[1:] == [0.0, 410.0]
    assert bars("", "", [])
    whole = page("a <b>", [(("<h>",), [("<c>",)])], text, ["<n>"])
    assert "<b>" not in whole.replace("&lt;", "")
    assert "&lt;c&gt;" in whole
