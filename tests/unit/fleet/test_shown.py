"""Hosts as they are shown: their states, and which has what labs are cloned from."""

from __future__ import annotations

from dataclasses import replace

from lab.fleet.choose import TemplateName, template_name, template_of
from lab.fleet.hosts import LATE, Facts, Host, Version
from lab.views.fleet import capture_rows, host_view

HOST = Host("h1", 1, "up", "https://h1:7443", ("nvme",), "1", 1.0, Facts())
SIZE = 768 << 20, 1, 0


def _with(name: str, *templates: str, datasets: tuple[str, ...] = ()) -> Host:
    versions = tuple(Version(one, 1, "", "mariadb") for one in datasets)
    return replace(HOST, name=name, facts=Facts(templates=templates, versions=versions))


def test_a_host_is_shown_as_it_was_heard_of() -> None:
    """Protects from values that nobody has measured: they are shown as not known."""
    assert host_view(HOST, 100.0).disk is None
    assert (host_view(HOST, 100.0).state, host_view(HOST, 100.0).heard_at) == ("up", 99.0)
    unsaid = host_view(HOST, 100.0)
    assert (unsaid.labs, unsaid.memory, unsaid.load, unsaid.templates) == (None,) * 4
    before = host_view(replace(HOST, epoch=3, facts=Facts(memory=9, labs=4, epoch=2)), 100.0)
    assert (before.labs, before.memory) == (None, None), "said before its last start"
    late = replace(HOST, age=LATE + 1, facts=Facts(memory=9, space=100, space_free=30))
    shown = host_view(late, 100.0)
    assert (shown.state, shown.disk and shown.disk.used) == ("late", 70)
    lost = host_view(
        replace(late, state="lost", epoch=3, facts=replace(late.facts, epoch=2)), 100.0
    )
    assert (lost.state, lost.labs) == ("lost", None), "its epoch is over, and so is what it said"


def test_the_name_of_a_template_is_read_back() -> None:
    """Protects the map of captures: options may have any characters."""
    given = ("pxc", "percona:8.0", 3, SIZE, "durable", "crm@2", "a/b")
    assert template_name(template_of(*given)) == TemplateName(*given)
    for other in ("", "pxc", "pxc/mariadb/three/1/x/y", "pxc/mariadb/3//x/y"):
        assert template_name(other) is None


def test_the_map_of_captures() -> None:
    """Protects who looks for where a lab starts fast: one row for a template, of all hosts."""
    plain = template_of("pxc", "", 3, SIZE, "", "", "")
    named = template_of("pxc", "mariadb:10.11", 3, SIZE, "", "", "")
    rows = capture_rows(
        [_with("h1", plain), _with("h2", plain, named), _with("h3", plain, "newer")], data=True
    )
    assert [(row.kind, row.what, sorted(row.hosts)) for row in rows] == [
        ("template", "pxc, 3 nodes of 768M", ["h1", "h3"]),
        ("template", "pxc, mariadb:10.11, 3 nodes of 768M", ["h2"]),
    ]


def test_the_map_of_captures_has_no_data_of_projects() -> None:
    """Protects projects: names of datasets are for administrators, contents of options for none."""
    secret = template_of("single", "mariadb:10.11", 1, SIZE, "", "", "0123456789ab")
    hosts = [
        _with("h1", secret, template_of("pxc", "", 3, SIZE, "", "crm@1", ""), datasets=("crm",))
    ]
    public = capture_rows(hosts, data=False)
    assert len(public) == 1
    assert public[0].what.startswith("single, mariadb:10.11, 1 node of 768M, options 012345")
    every = capture_rows(hosts, data=True)
    assert [row.what for row in every if "crm" in row.what] == [
        "pxc, 3 nodes of 768M, dataset crm@1", "crm@1"
    ]  # fmt: skip
