"""Facts of engines and proxies have one home each: a further one needs no code elsewhere."""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.blueprints.proxy import PROXIES
from lab.config.enginefile import families
from lab.run import run
from tests import ROOT

ALLOWED = {
    "lab/datasets/source.py": "the schemes of URLs that users write",
    "lab/datasets/backup.py": "what the server of a backup calls itself",
    "lab/datasets/datadir.py": "what the server of a data directory calls itself",
}
"""Files that may name a server, and what it is there."""

MENTIONED = {
    "lab/blueprints/__init__.py": "an example",
    "lab/blueprints/dialects.py": "a table by dialect",
    "lab/blueprints/dr.py": "a table by dialect",
    "lab/blueprints/galera.py": "the families of a blueprint",
    "lab/blueprints/replication.py": "the families of a blueprint",
    "lab/blueprints/single.py": "the families of a blueprint",
    "lab/blueprints/versions.py": "a table by dialect",
    "lab/cli/flags.py": "an example",
    "lab/cli/verbs/archive.py": "an example",
    "lab/cli/verbs/ca.py": "an example",
    "lab/cli/verbs/dataset.py": "an example",
    "lab/cli/verbs/engine.py": "an example",
    "lab/cli/verbs/image.py": "an example",
    "lab/cli/verbs/matrix.py": "an example",
    "lab/cli/verbs/node_access.py": "an example",
    "lab/cli/verbs/up.py": "an example",
    "lab/cli/verbs/upgrade.py": "an example",
    "lab/config/enginefile.py": "dialects as a type, an example",
    "lab/datasets/accounts.py": "a table by dialect",
    "lab/datasets/backup.py": "a form of the family",
    "lab/datasets/collations.py": "a table by dialect",
    "lab/datasets/datadir.py": "a form of the family",
    "lab/datasets/directory.py": "a form of the family",
    "lab/datasets/kinds.py": "words of both families",
    "lab/datasets/live.py": "a table by dialect",
    "lab/datasets/of_mysql.py": "words of both families",
    "lab/datasets/source_dialect.py": "what a dump says of its server",
    "lab/datasets/redo.py": "a form of the family",
    "lab/datasets/scripts.py": "words of both families",
    "lab/datasets/source.py": "a form of the family",
    "lab/datasets/survey.py": "a table by dialect",
    "lab/datasets/tabbed.py": "a form of the family",
    "lab/imagebuild/bootstrap.py": "a variable of packages",
    "lab/lifecycle/datasets/outside.py": "a table by dialect",
    "lab/lifecycle/datasets/physical.py": "a table by dialect",
    "lab/lifecycle/datasets/spool.py": "words of both families",
    "lab/lifecycle/labs/query.py": "variables of clients",
    "lab/names.py": "an example",
    "lab/pytest_plugin.py": "an example",
    "lab/requests/images.py": "an example",
    "lab/requests/labs.py": "an example",
    "lab/spec.py": "an example",
    "lab/users.py": "reserved accounts",
    "lab/views/catalog.py": "an example",
    "lab/views/labs.py": "an example",
    "lab/views/upgrades.py": "an example",
}
"""Files with the name of a family other than MySQL in a text, and what for."""


def named() -> set[str]:
    found = {name for one in families() for name in (one.engine, one.name, one.dialect)}
    return found | {one.recorded for one in families() if one.recorded} | set(PROXIES)


def compared(source: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each constant that ``source`` decides by."""
    for node in ast.walk(ast.parse(source)):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) != "Literal":
            parts = [node.slice]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            parts = node.args[:1] if node.func.attr == "get" else []
        for part in parts:
            for one in part.elts if isinstance(part, (ast.Tuple, ast.List, ast.Set)) else [part]:
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    yield one.lineno, one.value


@pytest.mark.parametrize(
    "source",
    [
        'if engine == "mariadb": pass',
        'if engine in ("mysql", "percona-server"): pass',
        'titles["percona"]',
        'titles.get("mariadb")',
        'match proxy:\n    case "haproxy": pass',
        'x = 1 if options.proxy != "router" else 2',
    ],
)
def test_what_is_seen(source: str) -> None:
    """Protects the next test from one that sees nothing."""
    assert {text for _, text in compared(source)} & named()


def test_no_module_decides_by_the_name_of_an_engine_or_a_proxy() -> None:
    """Protects the promise of engines.toml and of the table of proxies."""
    names, found, allowed = named(), [], set()
    for room in ("lab", "api"):
        for path in sorted((ROOT / room).rglob("*.py")):
            place = str(path.relative_to(ROOT))
            hits = [(line, text) for line, text in compared(path.read_text()) if text in names]
            if place in ALLOWED and hits:
                allowed.add(place)
            else:
                found += [f"{place}:{line}: {text}" for line, text in hits]
    assert not found
    assert allowed == set(ALLOWED)


def texts(source: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each constant of ``source`` that is no documentation."""
    tree = ast.parse(source)
    words = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in words:
            yield node.lineno, node.value


def test_which_texts_are_seen() -> None:
    """Protects the next test from one that sees nothing, and comments from it."""
    source = '"""MariaDB"""\nx = f"of {y} MariaDB"  # MariaDB\n"""MariaDB"""\nrun(["mariadb"])'
    assert [line for line, text in texts(source) if "mariadb" in text.lower()] == [2, 4]


def test_no_other_file_names_a_family() -> None:
    """Protects users of one family from words, programs and files of another one.

    MySQL's is also the name of the protocol, and of files and tables of all families.
    """
    names, found, mentioned = {one.engine for one in families()} - {"mysql"}, [], set()
    assert names == {"mariadb", "percona"}
    for room in ("lab", "api"):
        for path in sorted((ROOT / room).rglob("*.py")):
            place = str(path.relative_to(ROOT))
            for line, text in texts(path.read_text()):
                if any(name in text.lower() for name in names):
                    mentioned.add(place)
                    found += [f"{place}:{line}: {text}"] if place not in MENTIONED else []
    assert not found
    assert mentioned == set(MENTIONED), "the list has no others"


TIDB = """
[tidb.tidb]
title = "TiDB"
dialect = "mysql"
authentication = "mysql_native_password"
client = "tidb-client"
tls_option = "verify-server=FULL"
jdbc_tls = "sslMode=ENFORCED&ca={ca}"
loads_datasets = true

[tidb.tidb.series]
"8.5" = "tidb"
"""
SCRIPT = r"""
import json
from types import SimpleNamespace as Some
from lab.api.web.labs import _client
from lab.blueprints import Engine, Member, server
from lab.blueprints.single import Single
from lab.cli.verbs import env
from lab.config import enginefile
from lab.config.profile import EngineProfile
from lab.datasets import survey
from lab.lifecycle.datasets.engine import default_engine

engine = Engine("tidb", "8.5", "[mysqld]\n", "/etc/my.cnf", "tidb", 1, 1, service="tidb.service")
plan, member = Single(engines={"tidb": "TiDB"}), Member("n1", 1, "10.77.0.1")
view = Some(engine="tidb", user="lab", password="x", ssl_ca="/home/lab ca.pem", unencrypted="")
foreign = survey.Found(dialect="mariadb", version="10.11.6-MariaDB")
found = {
    "recipe": enginefile.recipe("tidb:8.5", plan.engines, "single"),
    "named": enginefile.engines(),
    "unlock": server.unlock(engine, "lab", "secret", tls=False),
    "client": server.client(engine)[0],
    "renew": plan.renew(engine),
    "files": plan.files(member, [], engine, 1 << 30, EngineProfile())["/etc/my.cnf"].content,
    "clients": {name: one.tls_option for name, one in enginefile.clients().items()},
    "datasets": default_engine(plan),
    "misfits": [one.what for one in survey.suits(foreign, "tidb", "8.5.0")],
    "jdbc": env.jdbc(view, Some(address="127.0.0.1:4000"), "crm"),
    "page": _client(view),
}
print(json.dumps(found, default=bytes.decode))
"""


def test_a_further_family_is_data(tmp_path: Path) -> None:
    """Protects what engines.toml says: a server of a dialect that is here needs no code."""
    copy = tmp_path / "lab"
    (copy / "recipes").mkdir(parents=True)
    for path in (ROOT / "lab").iterdir():
        if path.name not in ("recipes", "__pycache__"):
            (copy / path.name).symlink_to(path)
    for path in (ROOT / "images").iterdir():
        (copy / "recipes" / path.name).symlink_to(path)
    (copy / "recipes" / "engines.toml").unlink()
    text = (ROOT / "images" / "engines.toml").read_text()
    (copy / "recipes" / "engines.toml").write_text(text + TIDB)
    argv = [sys.executable, "-B", "-c", SCRIPT]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = json.loads(run(argv, timeout=60, env=environment, cwd=tmp_path).stdout)
    assert found["recipe"] == "tidb"
    assert found["named"][-2:] == ["tidb", "tidb:8.5"]
    assert "IDENTIFIED WITH mysql_native_password AS '*" in found["unlock"]
    assert found["client"] == "tidb-client"
    assert found["renew"] == "ALTER INSTANCE RELOAD TLS"
    assert found["files"].endswith("skip_log_bin\n")
    assert found["clients"]["tidb-client"] == "verify-server=FULL"
    assert found["datasets"] == "tidb"
    assert found["misfits"] == ["the dump is of MariaDB 10.11.6, the server is MySQL 8.5.0"]
    tls = "sslMode=ENFORCED&ca=/home/lab%20ca.pem"
    assert found["jdbc"] == f"jdbc:mysql://127.0.0.1:4000/crm?user=lab&password=x&{tls}"
    assert found["page"] == "tidb-client --ssl-ca=lab-ca.pem --verify-server=FULL"
