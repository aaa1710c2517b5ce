"""What each verb prints, in every format: the text here is the golden one."""

from __future__ import annotations

import io
import json
import ssl
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest
import yaml

from lab.cli import main
from lab.cli.terminal.show import preview_text
from lab.cli.terminal.table import facts, table
from lab.cli.terminal.tree import topology_text, tree_text
from lab.cli.verbs import template as template_verbs
from lab.cli.verbs.dataset import shown
from lab.errors import StatementRefused
from lab.guest.authority import make
from lab.observe.ways import NodeResults, Rows
from lab.progress import Step
from lab.units import counted
from lab.views.host import Finding, GcReport, HostView
from lab.views.labs import LabView, Link, PlannedNode
from lab.views.snapshots import SnapshotView
from tests.support.cli_views import lab_view, preview_view, template_view
from tests.unit.cli.test_fake_lifecycle import HERE, FakeLifecycle, dataset_view

UP = """\
NODE  ROLE    STATE  SQL              SSH
n1    member  ready  127.0.0.1:23306  24306
n2    member  ready  127.0.0.1:23307  24307
n3    member  ready  127.0.0.1:23308  24308

lab       pxc (pxc, ready)
engine    mariadb 11.8.6
user      lab
password  s3cret
dsn       mysql://lab:s3cret@127.0.0.1:23306/
started   ready in 1.9 s (warm)
"""

ENV = """\
export LAB_NAME=pxc
export LAB_DSN=mysql://lab:s3cret@127.0.0.1:23306/
export LAB_DSN_N1=mysql://lab:s3cret@127.0.0.1:23306/
export LAB_DSN_N2=mysql://lab:s3cret@127.0.0.1:23307/
export LAB_DSN_N3=mysql://lab:s3cret@127.0.0.1:23308/
export LAB_HOST=127.0.0.1
export LAB_PORT=23306
export LAB_USER=lab
export LAB_PASSWORD='it'"'"'s $5'
export LAB_HOSTS=127.0.0.1,127.0.0.1,127.0.0.1
export LAB_PORTS=23306,23307,23308
export LAB_ENGINE=mariadb
export LAB_ENGINE_VERSION=11.8.6
export MYSQL_HOST=127.0.0.1
export MYSQL_TCP_PORT=23306
export MYSQL_PWD='it'"'"'s $5'
"""

Capture = pytest.CaptureFixture[str]


def out(capsys: Capture, *argv: str, world: FakeLifecycle | None = None, code: int = 0) -> str:
    assert main(argv, lifecycle=world or FakeLifecycle("pxc")) == code
    return capsys.readouterr().out


def test_up_ends_with_what_one_needs(capsys: Capture) -> None:
    """Protects the table of the issue: nodes, engine, password, DSN, time."""
    assert main(["up", "pxc"], lifecycle=FakeLifecycle()) == 0
    captured = capsys.readouterr()
    assert captured.out == UP
    assert captured.err == "percona cannot be reached: using mariadb\n"


def test_a_dry_run_makes_nothing_and_says_what_it_would(capsys: Capture) -> None:
    """Protects users who check how long it will take, and whether it would succeed."""
    world = FakeLifecycle()
    assert out(capsys, "up", "pxc", "--dry-run", world=world) == (
        "lab       pxc (pxc)\n"
        "nodes     3, 768M of memory each\n"
        "engine    mariadb\n"
        "profile   balanced\n"
        "image     mariadb-0123456789abcdef\n"
        "template  feedfacefeedface\n"
        "start     warm\n"
    )
    assert not [call for call in world.calls if call[0] == "CreateLab"]
    first = preview_view(image_exists=False, template="")
    assert "image     mariadb-0123456789abcdef, would be built first\n" in preview_text(first)
    assert "template  none yet: it would be formed and captured first\n" in preview_text(first)
    nodes = [
        PlannedNode(f"n{n}", f"{e}-0123456789abcdef", 1 << 29, 1, None)
        for n, e in ((1, "mariadb"), (2, "mysql"))
    ]
    mixed = preview_text(preview_view(each=tuple(nodes)))
    assert "image     mariadb-0123456789abcdef, n2: mysql-0123456789abcdef\n" in mixed
    cold = preview_view(template=None, start="cold", why_cold="requested")
    assert "template" not in preview_text(cold)
    assert "start    cold (requested)\n" in preview_text(cold)


def test_quiet_leaves_the_data(capsys: Capture) -> None:
    """Protects scripts: --quiet, before or behind the verb, silences talk and nothing else."""
    for argv in (["--quiet", "up", "pxc"], ["up", "pxc", "-q"]):
        assert main(argv, lifecycle=FakeLifecycle()) == 0
        assert capsys.readouterr() == (UP, "")


def test_cold_says_why(capsys: Capture) -> None:
    """Protects the reason: a slow start without one looks like a fault."""
    world = FakeLifecycle()
    world.views["pxc"] = lab_view(started="cold", why_cold="QEMU is another version", seconds=61.0)
    message = "started   ready in 61.0 s (cold: QEMU is another version)\n"
    assert message in out(capsys, "status", world=world)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (("image", "template"), "after 129 s for image and template, made on first use"),
        (("template",), "after 89 s for template, made on first use"),
        (("image",), "after 40 s for image, made on first use"),
    ],
)
def test_a_first_use_is_told_apart(capsys: Capture, steps: tuple[str, ...], said: str) -> None:
    """Protects the first impression: the wait was for what all further labs share."""
    took = {"image": 40.0, "template": 89.0}
    world = FakeLifecycle()
    world.views["pxc"] = lab_view(
        seconds=3.1,
        first_use_seconds=sum(took[step] for step in steps),
        steps=(*(Step(step, took[step]) for step in steps), Step("ready", 3.0)),
    )
    assert f"started   ready in 3.1 s (warm), {said}\n" in out(capsys, "status", world=world)


def test_json_is_the_whole_view(capsys: Capture) -> None:
    """Protects programs that read us: every field of the view, its names as they are."""
    view = json.loads(out(capsys, "up", "pxc", "-o", "json"))
    assert set(view) == set(LabView.__dataclass_fields__)
    assert view["dsn"] == "mysql://lab:s3cret@127.0.0.1:23306/"
    assert view["nodes"][2]["sql_port"] == 23308
    assert json.loads(out(capsys, "ls", "-o", "json"))[0]["name"] == "pxc"


def test_yaml_and_name(capsys: Capture) -> None:
    """Protects the other two formats."""
    assert yaml.safe_load(out(capsys, "status", "-o", "yaml"))["lab"]["nodes"][0]["name"] == "n1"
    assert out(capsys, "ls", "-o", "name", world=FakeLifecycle("a", "b")) == "a\nb\n"
    assert out(capsys, "up", "pxc", "--output", "name") == "pxc\n"


def test_ls(capsys: Capture) -> None:
    """Protects the columns, also of a lab that is missing from the state database."""
    now = time.time()
    world = FakeLifecycle()
    world.views = {
        "pxc": lab_view(created_at=now - 90.5, expires_at=now + 7170.9),
        "lost": lab_view(
            "lost", nodes=0, blueprint="", engine="", engine_version="", state="failed"
        ),
    }
    assert out(capsys, "ls", world=world) == (
        "NAME  BLUEPRINT  ENGINE          NODES  STATE   SQL              AGE    EXPIRES\n"
        "pxc   pxc        mariadb 11.8.6      3  ready   127.0.0.1:23306  1m30s  2h\n"
        "lost  -          -                   0  failed  -                -      never\n"
    )


def test_ls_of_a_lab_that_is_being_created(capsys: Capture) -> None:
    """Protects from taking for there what was only requested, until there is an order for it."""
    world = FakeLifecycle()
    asked = lab_view(state="creating", nodes=0, requested_nodes=2, engine_version="", started="")
    world.views = {"pxc": asked, "next": replace(asked, name="next", image="mariadb-0123456789ab")}
    rows = [line.split() for line in out(capsys, "ls", world=world).splitlines()[1:]]
    assert rows[0][:7] == ["pxc", "pxc", "mariadb", "requested", "2", "requested", "creating"]
    assert rows[1][:5] == ["next", "pxc", "mariadb", "2", "creating"]
    assert "engine    mariadb requested\n" in out(capsys, "status", "pxc", world=world)


def test_nothing_to_list_is_said_on_stderr(capsys: Capture) -> None:
    """Protects pipes: an empty list is no data, and JSON's is still a list."""
    assert main(["ls"], lifecycle=FakeLifecycle()) == 0
    assert capsys.readouterr() == ("", "no labs; `lab up pxc` creates one\n")
    assert out(capsys, "ls", "-o", "json", world=FakeLifecycle()) == "[]\n"


def test_status_shows_what_is_met_and_what_is_not(capsys: Capture) -> None:
    """Protects the way from "degraded" to the reason, and the proof that all was looked at."""
    text = out(capsys, "status", "pxc")
    assert text.startswith(UP)
    assert text.removeprefix(UP) == (
        "\n"
        "NODE  SQL  SIZE 3\n"
        "n1    ✓    ✓\n"
        "n2    ✗    ?\n"
        "n3    -    -\n"
        "\n"
        "n2: required: SQL answers; found: refused\n"
    )
    found = json.loads(out(capsys, "status", "pxc", "-o", "json"))["requirements"]
    assert found[1] == {
        "node": "n1", "name": "size 3", "what": "wsrep_cluster_size is 3", "met": True,
        "found": "3",
    }  # fmt: skip
    assert found[3]["met"] is None


def replicating(*links: Link, roles: Sequence[str], positions: Sequence[str] = ()) -> LabView:
    view = lab_view(nodes=len(roles), blueprint="replication", links=links)
    nodes = [
        replace(node, role=role, position=position)
        for node, role, position in zip(
            view.nodes, roles, positions or ["0-1-42"] * len(roles), strict=True
        )
    ]
    return replace(view, nodes=tuple(nodes))


def test_status_draws_who_replicates_from_whom(capsys: Capture) -> None:
    """Protects the first look at a topology: roles, links, positions and lag, and their data."""
    world = FakeLifecycle()
    view = replicating(
        Link("n1", "n2", "semi-sync"),
        Link("n2", "n3", "1h late"),
        roles=("source", "replica", "delayed"),
        positions=("0-1-42", "0-1-42", "0-1-40"),
    )
    n1, n2, n3 = view.nodes
    view = replace(view, nodes=(n1, replace(n2, behind=0), replace(n3, behind=2)))
    world.views["pxc"] = view
    assert out(capsys, "status", world=world).endswith(
        """
replication
└─ n1  source  0-1-42
   └─ n2  replica, semi-sync  0-1-42
      └─ n3  delayed, 1h late  0-1-40  2 transactions behind
"""
    )
    found = json.loads(out(capsys, "status", "-o", "json", world=world))["lab"]
    assert found["links"][1] == {"source": "n2", "replica": "n3", "kind": "1h late", "known": ""}
    assert [(node["position"], node["behind"]) for node in found["nodes"]][2] == ("0-1-40", 2)


def test_a_proxy_is_drawn_above_its_servers(capsys: Capture) -> None:
    """Protects the picture from saying that a proxy replicates from a server."""
    world = FakeLifecycle()
    view = replicating(Link("n1", "n2"), roles=("source", "replica", "proxy"))
    n1, n2, proxy = view.nodes
    proxy = replace(proxy, position="", services={"rw": 3306, "ro": 3307, "ssh": 22})
    world.views["pxc"] = replace(view, nodes=(n1, n2, proxy))
    assert out(capsys, "status", world=world).endswith(
        """
replication
└─ n3  proxy
   └─ n1  source  0-1-42
      └─ n2  replica  0-1-42
"""
    )


def test_status_names_the_options_of_the_lab(capsys: Capture) -> None:
    """Protects who has several labs of a blueprint from looking at the wrong one."""
    world = FakeLifecycle("pxc")
    assert "options" not in out(capsys, "status", world=world)
    chosen = {"semi_sync": True, "delay": 3600.0, "on": ["n3"], "set": ["max_connections=50"]}
    world.views["pxc"] = lab_view(options=chosen)
    text = out(capsys, "status", world=world)
    assert "\noptions   semi-sync, delay 1h on n3, set max_connections=50\n" in text


def test_topologies_that_are_no_trees() -> None:
    """Protects rings and fan-ins: each link is drawn once, and each node's facts once."""
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    ring = [Link("n3", "n1"), Link("n1", "n2"), Link("n2", "n3")]
    assert (
        topology_text(replicating(*ring, roles=["source"] * 3), plain)
        == """\
replication
`- n1  source  0-1-42
   `- n2  source  0-1-42
      `- n3  source  0-1-42
         `- n1  source
"""
    )
    fan = replicating(Link("n1", "n3"), Link("n2", "n3"), roles=("source", "source", "replica"))
    assert (
        topology_text(fan, plain)
        == """\
replication
|- n1  source  0-1-42
|  `- n3  replica  0-1-42
`- n2  source  0-1-42
   `- n3  replica
"""
    )
    members = replicating(roles=["member"] * 2, positions=["x" * 200] * 2)
    assert topology_text(members, plain).splitlines()[1] == f"|- n1  member  {'x' * 80}..."
    assert topology_text(lab_view(), plain) == ""
    gone = replicating(Link("n1", "n9"), roles=["source"] * 2)
    assert topology_text(gone, plain).splitlines()[2] == "`- n2  source  0-1-42"


def test_status_is_for_any_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects people whose terminal knows Latin-1 only from a traceback."""
    printed = io.BytesIO()
    with io.TextIOWrapper(printed, encoding="latin-1") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        assert main(["status", "pxc"], lifecycle=FakeLifecycle("pxc")) == 0
        stream.flush()
        assert b"n1    +    +\nn2    x    ?\n" in printed.getvalue()


def test_ca(capsys: Capture) -> None:
    """Protects `lab ca > ca.pem`: the certificate and nothing else."""
    assert out(capsys, "ca") == HERE.read_text()
    assert out(capsys, "ca", "--path") == f"{HERE}\n"


def test_env_of_a_published_lab(capsys: Capture) -> None:
    """Protects scripts from passwords in clear: the variables for checking the server are set."""
    world = FakeLifecycle()
    world.views["pxc"] = lab_view(ssl_ca="/srv/lab/ca.pem")
    text = out(capsys, "env", world=world)
    assert text.endswith("export LAB_SSL_CA=/srv/lab/ca.pem\nexport LAB_SSL_MODE=VERIFY_IDENTITY\n")
    assert "ca        /srv/lab/ca.pem\n" in out(capsys, "status", world=world)


def test_env(capsys: Capture) -> None:
    """Protects `eval`: any password is quoted for the shell, and for .env readers."""
    world = FakeLifecycle()
    world.views["pxc"] = lab_view(password="it's $5")
    assert out(capsys, "env", world=world) == ENV
    text = out(capsys, "env", "--format", "dotenv", world=world)
    assert "LAB_DSN=mysql://lab:s3cret@127.0.0.1:23306/\n" in text
    assert "LAB_PASSWORD='it\\'s $5'\n" in text
    assert json.loads(out(capsys, "env", "--format", "json", world=world))["LAB_PORT"] == "23306"


def test_env_as_urls(capsys: Capture) -> None:
    """Protects programs in other languages: each driver's own form, for any node."""
    world = FakeLifecycle()
    ends = {"rw": ("n1",), "ro": ("n2", "n3")}
    places = {"rw": ("127.0.0.1:23306",), "ro": ("127.0.0.1:23307", "127.0.0.1:23308")}
    world.views["pxc"] = lab_view(endpoints=ends, addresses=places)
    assert "LAB_DSN_RO=mysql://lab:s3cret@127.0.0.1:23307/\n" in out(capsys, "env", world=world)
    for words, wanted in (
        ("jdbc", "jdbc:mariadb://127.0.0.1:23306/?user=lab&password=s3cret"),
        ("jdbc --node n2", "jdbc:mariadb://127.0.0.1:23307/?user=lab&password=s3cret"),
        ("go --node 3", "lab:s3cret@tcp(127.0.0.1:23308)/"),
        ("sqlalchemy", "mariadb+pymysql://lab:s3cret@127.0.0.1:23306/"),
        ("node", "mysql://lab:s3cret@127.0.0.1:23306/"),
        ("rails", "mysql2://lab:s3cret@127.0.0.1:23306/"),
        ("jdbc -D crm", "jdbc:mariadb://127.0.0.1:23306/crm?user=lab&password=s3cret"),
        ("go --database crm", "lab:s3cret@tcp(127.0.0.1:23306)/crm"),
        ("sqlalchemy -D a/b", "mariadb+pymysql://lab:s3cret@127.0.0.1:23306/a%2Fb"),
        ("node -D crm", "mysql://lab:s3cret@127.0.0.1:23306/crm"),
    ):
        assert out(capsys, "env", "--format", *words.split(), world=world) == f"{wanted}\n"
    out(capsys, "env", "--node", "n7", world=world, code=3)
    published = "mysql://lab:it's@db.test:23306/?ssl-mode=VERIFY_IDENTITY"
    other: dict[str, Any] = {
        "engine": "mysql",
        "password": "it's",
        "ssl_ca": "/srv/ca.pem",
        "dsn": published,
    }
    world.views["pxc"] = lab_view(endpoints=ends, **other)
    for how, wanted in (
        ("shell", "LAB_DSN_N3='mysql://lab:it'\"'\"'s@127.0.0.1:23308/?ssl-mode=VERIFY_IDENTITY'"),
        ("jdbc", "?user=lab&password=it%27s&sslMode=VERIFY_IDENTITY"),
        ("go", "lab:it's@tcp(127.0.0.1:23306)/?tls=true"),
        ("sqlalchemy", "mysql+pymysql://lab:it%27s@127.0.0.1:23306/?ssl_ca=/srv/ca.pem"),
        ("sqlalchemy -D crm", "@127.0.0.1:23306/crm?ssl_ca=/srv/ca.pem"),
        ("go -D crm", "lab:it's@tcp(127.0.0.1:23306)/crm?tls=true"),
        ("node", "@127.0.0.1:23306/?ssl=%7B%22rejectUnauthorized%22%3Atrue%7D"),
        ("rails -D crm", "@127.0.0.1:23306/crm?sslca=/srv/ca.pem&ssl_mode=verify_identity"),
        (
            "dotenv -D crm",
            "LAB_DSN='mysql://lab:it\\'s@db.test:23306/crm?ssl-mode=VERIFY_IDENTITY'",
        ),
        ("dotenv -D crm", "LAB_DATABASE=crm\n"),
    ):
        assert wanted in out(capsys, "env", "--format", *how.split(), world=world)


def test_env_for_node_checks_names_of_hosts(capsys: Capture) -> None:
    """Protects accounts: mysql2 compares a certificate with the host's name, not an address."""
    found = lab_view(ssl_ca="/srv/ca.pem")
    world = FakeLifecycle()
    world.views["pxc"] = replace(
        found, nodes=tuple(replace(node, host="db.test") for node in found.nodes)
    )
    checked = "ssl=%7B%22rejectUnauthorized%22%3Atrue%2C%22verifyIdentity%22%3Atrue%7D"
    assert out(capsys, "env", "--format", "node", world=world).endswith(f"?{checked}\n")


def test_env_of_another_account(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects programs from the account that may do everything; no password is made up."""
    world = FakeLifecycle()
    world.views["pxc"] = lab_view(options={"user": ["app@crm", "ro@*"]})
    assert main(["env", "--account", "app", "--format", "dotenv"], lifecycle=world) == 0
    printed = capsys.readouterr()
    assert "LAB_DSN=mysql://app@127.0.0.1:23306/\n" in printed.out
    assert "LAB_PASSWORD=\n" in printed.out
    assert "set LAB_ACCOUNT_PASSWORD" in printed.err
    monkeypatch.setenv("LAB_ACCOUNT_PASSWORD", "p@ss")
    for how, wanted in (
        ("node", "mysql://app:p%40ss@127.0.0.1:23306/crm"),
        ("go", "app:p@ss@tcp(127.0.0.1:23306)/crm"),
        ("jdbc", "jdbc:mariadb://127.0.0.1:23306/crm?user=app&password=p%40ss"),
    ):
        argv = ["env", "--account", "app", "-D", "crm", "--format", how]
        assert out(capsys, *argv, world=world) == f"{wanted}\n"
    assert main(["env", "--account", "lab_x"], lifecycle=world) == 3
    assert "its accounts: app, ro" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["mariadb", "mysql"])
def test_sqlalchemy_checks_servers(capsys: Capture, tmp_path: Path, engine: str) -> None:
    """Protects accounts of published labs from servers with another's certificate, or name."""
    from sqlalchemy import create_engine

    ca = tmp_path / "ca.pem"
    ca.write_bytes(make("test").certificate)
    world = FakeLifecycle()
    world.views["pxc"] = lab_view(engine=engine, ssl_ca=str(ca))
    url = create_engine(out(capsys, "env", "--format", "sqlalchemy", world=world).strip())
    _, words = url.dialect.create_connect_args(url.url)
    connection: Any = pymysql.connect(**words, defer_connect=True)
    context = connection.ctx
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    (one,) = context.get_ca_certs()
    assert one["subject"] == ((("commonName", "test"),),)


def test_env_passes_over_a_node_that_is_stopped(capsys: Capture) -> None:
    """Protects logins: another program may listen at the port of a node that is stopped."""
    world = FakeLifecycle()
    found = lab_view(
        endpoints={"rw": ("n1", "n2"), "ro": ("n1", "n2", "n3")},
        addresses={"rw": ("h:1", "h:2"), "ro": ("h:1", "h:2", "h:3")},
    )
    stopped = [replace(node, state="stopped") for node in found.nodes]
    for states, rw, ro in (
        ([stopped[0], *found.nodes[1:]], 23307, "h:2"),
        ([*stopped[:2], found.nodes[2]], 23306, "h:3"),
        (stopped, 23306, "h:1"),
    ):
        world.views["pxc"] = replace(found, nodes=tuple(states))
        text = out(capsys, "env", "--format", "dotenv", world=world)
        assert f"LAB_PORT={rw}\n" in text
        assert f"LAB_DSN_RO=mysql://lab:s3cret@{ro}/\n" in text


def test_sql(capsys: Capture) -> None:
    """Protects results: NULL, binary data and line breaks do not break the table."""
    world = FakeLifecycle("pxc")
    assert out(capsys, "sql", "-e", "SELECT", world=world) == "a     b\n1     NULL\n0xff  x\\ny\n"
    assert json.loads(out(capsys, "sql", "-e", "SELECT", "-o", "json", world=world)) == {
        "columns": ["a", "b"],
        "rows": [[1, None], ["0xff", "x\ny"]],
        "affected": 2,
    }
    assert out(capsys, "sql", "-e", "SELECT", "-o", "name", world=world) == "1\n0xff\n"
    world.rows = Rows((), (), 1)
    assert main(["sql", "-e", "DELETE"], lifecycle=world) == 0
    assert capsys.readouterr() == ("", "ok, 1 row affected\n")


def test_host_init(capsys: Capture) -> None:
    """Protects what a person runs as root: whole commands, and exit code 5 until they did."""
    world = FakeLifecycle()
    text = (
        "did   zfs create x\n"
        "did   write pool = tank/lab into /c\n"
        "ok    volumes are below tank/lab: ZFS 2.3.9, 3G of 4G free\n"
    )
    assert out(capsys, "host", "init", "--pool", "tank/lab", world=world) == text
    assert world.called("init_host")[0] == "tank/lab"
    assert main(["host", "init"], lifecycle=world) == 2
    assert "lab host init --pool tank/lab" in capsys.readouterr().err
    world.pool = "tank/other"
    world.host = HostView("tank/other", "2.3.9", 0, 0, (), ("zfs allow x", "echo y"), "")
    assert out(capsys, "host", "init", world=world, code=5) == "run   zfs allow x\nrun   echo y\n"
    assert world.called("init_host")[0] == "tank/other"


def test_gc_and_doctor(capsys: Capture) -> None:
    """Protects the reports, and doctor's exit code: 5 if something must change."""
    world = FakeLifecycle()
    assert out(capsys, "gc", world=world) == (
        "removed  lab old\nleft     guest lab-x-n1: not recorded\n"
    )
    assert out(capsys, "gc", "--dry-run", world=world).startswith("would remove  lab old\n")
    world.gc_report = GcReport((), ())
    assert out(capsys, "gc", world=world) == ""
    text = "LEVEL  TOPIC  FOUND\nwarn   kvm    no\n       -> TCG is used\nok     qemu   7.2\n"
    assert out(capsys, "doctor", world=world) == text
    world.findings.append(Finding("libvirt", "fail", "not installed", "apt install"))
    assert out(capsys, "doctor", "-o", "name", world=world, code=5) == "libvirt\n"


def test_images_and_templates(capsys: Capture) -> None:
    """Protects the lists and the facts."""
    assert out(capsys, "image", "ls") == (
        "KEY               RECIPE   ENGINE          STATE  SIZE   BUILD  AGE  USED BY  USE"
        "      LAST USE\n"
        "0123456789abcdef  mariadb  mariadb 11.8.6  ready  700M  61.2 s  2h   2        current"
        "  never\n"
    )
    text = "used by   template:feed, lab:pxc\nuse       current\nlast use  never\nkernel    6.12\n"
    assert text in out(capsys, "image", "show", "mariadb")
    assert out(capsys, "image", "build", "mariadb", "-o", "name") == "0123456789abcdef\n"
    assert out(capsys, "template", "ls").splitlines()[1].split()[:5] == [
        "feedfacefeedface", "pxc", "-", "3", "768M",
    ]  # fmt: skip
    assert out(capsys, "template", "build", "pxc", "-o", "name") == "feedfacefeedface\n"
    assert out(capsys, "template", "ls").splitlines()[1].endswith("RAM was refused")


def test_templates_that_differ_in_options() -> None:
    """Protects who removes one: the rows of two templates of a blueprint are not the same."""
    plain = template_view()
    chain = replace(plain, options={"topology": "chain", "semi_sync": True})
    heads, *rows = template_verbs.shown([plain, chain], 0.0).splitlines()
    at = heads.index("OPTIONS")
    assert [row[at : heads.index("NODES")].strip() for row in rows] == [
        "-", "topology chain, semi-sync"]  # fmt: skip


def test_a_template_that_is_being_formed_has_no_start_yet() -> None:
    """Protects from a "cold" that only means that nothing was captured so far."""
    being = replace(template_view(), state="building", warm=False, size=0, form_seconds=0.0)
    heads, row = template_verbs.shown([being], 0.0).splitlines()
    at = heads.index("START")
    assert row[at : heads.index("SIZE")].strip() == "-"


def test_one_is_not_counted_as_several() -> None:
    assert [counted(n, "node") for n in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]


def test_engines(capsys: Capture) -> None:
    """Protects what a user reads before the first lab: what can be had here, and why not."""
    assert out(capsys, "engine", "ls") == (
        "ENGINE          SERVER              BLUEPRINTS     PACKAGES                  BUILD"
        "        IMAGES  TEMPLATES  RUN BY\n"
        "mariadb:11.8 *  MariaDB 11.8        galera,single  Debian trixie             yes"
        "               1          -  project, 2026-11-27\n"
        "percona:8.0     Percona Server 8.0  galera,single  http://percona/ps-80/apt  unreachable"
        "       1          -  nobody\n"
        "mariadb:10.11   MariaDB 10.11       galera,single  Debian trixie             yes"
        "               1          1  this host, 2026-11-22; project, 2026-11-27\n"
        "mysql:8.4       MySQL 8.4           galera,single  Debian trixie             yes"
        "               1          -  this host, 2026-11-22\n"
        "* the default series of its engine\n"
        "RUN BY: who ran labs on it last, this host and the tests of lab's project\n"
        "Percona Server 8.0: http://percona/ps-80/apt did not answer\n"
    )
    assert out(capsys, "engine", "ls", "-o", "name") == (
        "mariadb:11.8\npercona:8.0\nmariadb:10.11\nmysql:8.4\n"
    )
    [first, *_] = json.loads(out(capsys, "engine", "ls", "-o", "json"))
    assert first["packages"] == ["Debian trixie"]


def test_logs(capsys: Capture) -> None:
    """Protects lines: each ends once, whether it came with a line break or not."""
    assert out(capsys, "logs") == "one\ntwo\n"


def test_extend(capsys: Capture) -> None:
    """Protects the answer: how long, and until when."""
    assert out(capsys, "extend", "2h").startswith("pxc expires: 2h (")
    assert out(capsys, "extend", "none") == "pxc expires: never\n"


def test_version(capsys: Capture) -> None:
    """Protects both ways to ask."""
    assert out(capsys, "version") == out(capsys, "--version")
    assert set(json.loads(out(capsys, "version", "-o", "json"))) == {"lab", "python"}


def test_table_aligns_by_what_is_seen() -> None:
    """Protects alignment with wide and combining characters, and the terminal from data."""
    assert table(("A", "B"), [("日本", "1"), ("é", "\x1b[2J")]) == (
        "A     B\n日本  1\né     \\x1b[2J\n"
    )
    assert table(("N", "X"), [("1", ""), ("22", "")], right={0}) == " N  X\n 1\n22\n"
    assert facts([("a", "1"), ("none", ""), ("long", "2")]) == "a     1\nlong  2\n"


def test_snapshot(capsys: Capture) -> None:
    """What was taken is named on stdout; a list is a table."""
    assert out(capsys, "snapshot", "take", "--label", "mine") == "mine.20261121t110000\n"
    assert out(capsys, "snapshot", "ls", "-o", "name") == "origin\n"
    assert out(capsys, "rollback", "--to", "mine", "--node", "2", "-o", "name") == "pxc\n"


def test_taking_a_snapshot_says_what_it_cost(capsys: Capture) -> None:
    """Protects stdout, which is the label; the pause is talk."""
    assert main(["snapshot", "take"], lifecycle=FakeLifecycle("pxc")) == 0
    captured = capsys.readouterr()
    assert captured.out == "manual.20261121t110000\n"
    assert captured.err == "nodes were paused for 0.13 s; 31M of RAM on disk\n"
    assert main(["snapshot", "take", "--disks-only"], lifecycle=FakeLifecycle("pxc")) == 0
    said = "nodes were paused for 0.13 s; disks only: taken with disks only\n"
    assert capsys.readouterr().err == said
    assert main(["-q", "snapshot", "take"], lifecycle=FakeLifecycle("pxc")) == 0
    assert capsys.readouterr().err == ""


def family(now: float) -> FakeLifecycle:
    """A lab whose snapshots have children, a branch, and a removed parent."""

    def taken(name: str, parent: str, **more: Any) -> SnapshotView:
        label = f"{name}.20261121t110000"
        return SnapshotView(
            label,
            name,
            1_795_258_800.0,
            parent=f"lab:pxc@{parent}",
            warm=True,
            ram=31 << 20,
            **more,
        )

    template = "template:feedface@formed"
    first = "first.20261121t110000"
    world = FakeLifecycle("pxc")
    world.snapshots = [
        SnapshotView("origin", "origin", None, parent=template),
        replace(taken("first", ""), parent=template, protected=True, branches=("try-1", "try-2")),
        taken("second", first, current=True, expires_at=now + 7200.5),
        replace(taken("lone", "gone.20261121t110000"), warm=False),
        taken("third", first),
    ]
    return world


def test_the_list_of_snapshots(capsys: Capture) -> None:
    """Protects who looks for what uses disk, what expires and what stays."""
    rows = out(capsys, "snapshot", "ls", world=family(time.time())).splitlines()
    assert rows[0].split() == ["LABEL", "NAME", "TAKEN", "AGE", "RAM", "EXPIRES", "PROTECTED"]
    ends = [row.split()[-3:] for row in rows[1:]]
    assert ends == [
        ["-", "never", "-"], ["31M", "never", "yes"], ["31M", "2h", "-"],
        ["-", "never", "-"], ["31M", "never", "-"],
    ]  # fmt: skip


def test_the_tree_of_snapshots(capsys: Capture) -> None:
    """Protects the picture of what descends from what, in full."""
    assert (
        out(capsys, "snapshot", "ls", "--tree", world=family(time.time()))
        == """\
template feedface
└─ origin
   ├─ first.20261121t110000  31M  protected
   │  ├─ -> lab try-1
   │  ├─ -> lab try-2
   │  ├─ second.20261121t110000  31M  expires in 2h  * you are here
   │  └─ third.20261121t110000  31M
   └─ lone.20261121t110000
"""
    )


def test_the_tree_of_a_branch_begins_with_its_parent() -> None:
    """Protects the way up, and terminals without Unicode from question marks."""
    views = [
        SnapshotView("origin", "origin", None, parent="lab:shop@mine.1", current=True),
        SnapshotView("a.1", "a", 0.0, parent="lab:shop@mine.1"),
    ]
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert tree_text(views, 0.0, plain) == ("shop@mine.1\n`- origin  * you are here\n   `- a.1\n")
    assert tree_text([replace(views[0], parent="")], 0.0, plain) == "origin  * you are here\n"
    assert tree_text([], 0.0, plain) == ""


def test_branches(capsys: Capture) -> None:
    """One is shown as a new lab is, several as a list; data is a list in any case."""
    one = out(capsys, "branch", "pxc", "try")
    assert "\nparent    lab:pxc@origin\n" in one
    assert "\ndsn       mysql://" in one
    many = out(capsys, "branch", "pxc", "try", "--count", "2").splitlines()
    assert [row.split()[0] for row in many] == ["NAME", "try-0", "try-1"]
    assert out(capsys, "branch", "pxc", "try", "--count", "2", "-o", "name") == "try-0\ntry-1\n"
    found = json.loads(out(capsys, "branch", "pxc", "try", "-o", "json"))
    assert [lab["parent"] for lab in found] == ["lab:pxc@origin"]


def test_a_dataset_that_is_being_loaded() -> None:
    view = replace(dataset_view("shop"), state="building", tables=(), created_at=100.0)
    lines = [line.split() for line in shown(view, 190.0).splitlines()]
    assert ["loading", "since", "1m30s"] in lines
    assert not [line for line in lines if line[0] in ("tables", "age", "loaded")]


def test_datasets(capsys: Capture) -> None:
    text = out(capsys, "dataset", "ls")
    assert text.splitlines()[1].split()[:2] == ["shop@1", "ready"]
    assert "about 7 rows" in out(capsys, "dataset", "show", "shop")
    assert out(capsys, "dataset", "ls", "-o", "name") == "shop@1\nshop@2\n"
    assert out(capsys, "dataset", "refresh", "shop", "-o", "name") == "shop@2\n"
    assert out(capsys, "dataset", "create", "a", "--from", "a.sql", "-o", "name") == "a@1\n"
    assert "customers.mail  an e-mail address" in out(capsys, "dataset", "scan", "shop")


ONE, TWO = Rows(("a",), ((1,),), 1), Rows(("b",), ((2,), (None,)), 2)
DONE = Rows((), (), 0)


def test_each_result_of_several_statements_is_printed(capsys: Capture) -> None:
    """Protects `lab sql -e 'A; B'` and CALL: no result is left out, in no format."""
    world = FakeLifecycle("shop")
    world.results = (ONE, TWO)
    assert out(capsys, "sql", "-e", "A; B", world=world) == "a\n1\n\nb\n2\nNULL\n"
    assert world.called("results") == ["shop", None, "A; B", {"database": ""}]
    found = json.loads(out(capsys, "sql", "-e", "A; B", "-o", "json", world=world))
    assert [one["rows"] for one in found] == [[[1]], [[2], [None]]]
    assert out(capsys, "sql", "-e", "A; B", "-o", "name", world=world) == "1\n2\nNULL\n"
    world.results = (ONE, DONE)  # a CALL of a routine that selects once
    assert json.loads(out(capsys, "sql", "-e", "CALL", "-o", "json", world=world))["rows"] == [[1]]
    world.fails["result"] = StatementRefused(1146, "Table 'x.y' doesn't exist", "42S02")
    assert main(["sql", "-e", "A; B"], lifecycle=world) == 6
    printed = capsys.readouterr()
    assert printed.out == "a\n1\n"
    assert printed.err.endswith("lab: error: ERROR 1146 (42S02): Table 'x.y' doesn't exist\n")


def test_results_of_all_nodes_are_labelled(capsys: Capture) -> None:
    """Protects `--all-nodes`: one table where the results are alike, else each by its node."""
    world = FakeLifecycle("shop")
    world.everywhere = [NodeResults("n1", (ONE, DONE)), NodeResults("n2", (ONE,))]
    argv = ("sql", "-D", "crm", "--all-nodes", "-e", "A")
    assert out(capsys, *argv, world=world) == "NODE  a\nn1    1\nn2    1\n"
    assert world.called("everywhere") == ["shop", "A", {"database": "crm"}]
    world.everywhere[1] = NodeResults("n2", (TWO,), "ERROR 1 (HY000): no", 6)
    assert main([*argv], lifecycle=world) == 6
    printed = capsys.readouterr()
    assert printed.out == "n1:\na\n1\nn2:\nb\n2\nNULL\n"
    assert printed.err == "  ERROR 1 (HY000): no\n"
    assert main([*argv, "-o", "json"], lifecycle=world) == 6
    found = json.loads(capsys.readouterr().out)
    assert [(one["node"], one["error"]) for one in found] == [
        ("n1", ""), ("n2", "ERROR 1 (HY000): no"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-o", "json"], "-o is for the results of -e"),
        (["--all-nodes"], "--all-nodes needs statements"),
        (["--all-nodes", "--node", "2", "-e", "A"], "exclude each other"),
    ],
)
def test_what_a_script_cannot_have_is_refused(
    capsys: Capture, argv: list[str], message: str
) -> None:
    """Protects from flags that are ignored."""
    assert main(["sql", *argv], lifecycle=FakeLifecycle("shop")) == 2
    assert message in capsys.readouterr().err
