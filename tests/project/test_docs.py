"""What the documents say is so: links lead somewhere, examples parse, verbs and flags exist."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from lab.bench import costs
from lab.cli.commands import RootVerbs, root_command
from lab.config import labfile, servefile, settings
from lab.config.labfile import LabValues
from lab.config.servefile import Serve
from lab.config.settings import Settings
from lab.paths import Home
from lab.run import run
from tests import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
INLINE = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(r"^\s*(?:\$ )?(?:time )?(?:\.venv/bin/)?lab (.*)$", re.M)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}: {self.text.splitlines()[0][:40]}"


def blocks(*languages: str) -> list[Block]:
    return [
        Block(page, language, text)
        for page in PAGES
        for language, text in FENCE.findall(page.read_text())
        if language in languages
    ]


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    heads = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Protects readers from dead ends, in files and in headings."""
    dead = []
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    assert not dead


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_toml_examples_are_accepted(block: Block, tmp_path: Path) -> None:
    """Protects those who copy: every example is a file of its kind that loads."""
    if "blueprint" in block.text and "[serve" not in block.text:
        (tmp_path / "lab.toml").write_text(block.text)
        assert labfile.merge(labfile.read(tmp_path), {}).blueprint
    elif "currency" in block.text:
        (tmp_path / "prices.toml").write_text(block.text)
        assert costs.read(tmp_path / "prices.toml").month(1.0) > 0
    else:
        file = tmp_path / "config.toml"
        file.write_text(block.text)
        assert str(file) in settings.load(env={}, files=[file]).sources.values()


@pytest.mark.parametrize("block", blocks("sh", "bash"), ids=str)
def test_shell_recipes_parse(block: Block) -> None:
    """Protects those who copy: a recipe is at least a shell script."""
    run(["bash" if block.language == "bash" else "sh", "-n"], stdin=block.text.encode(), timeout=10)


def commands() -> Iterator[tuple[str, list[str]]]:
    """The page and words of each command of ours, in blocks and in running text."""
    for page in PAGES:
        text = page.read_text()
        # Blocks without a language are transcripts and drawings: only lines with a prompt count.
        for language, block in FENCE.findall(text):
            lines = COMMAND.findall(block) if language in ("sh", "bash") else prompted(block)
            yield from ((page.name, words(line)) for line in lines)
        for code in INLINE.findall(FENCE.sub("", text)):
            for line in COMMAND.findall(code):
                if "|" not in line.split(" ")[0] and line:
                    yield page.name, words(line)


def prompted(block: str) -> list[str]:
    lines = [line for line in block.splitlines() if line.startswith("$ ")]
    return list(COMMAND.findall("\n".join(lines)))


def words(line: str) -> list[str]:
    """The words of ours in a line: up to a pipe, a redirection or the user's own command."""
    line = re.split(r"\s(?:\||>|<|&&|\|\||--\s)", line.replace("\\|", "|"))[0]
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()


def unknown(command: Any, given: list[str]) -> list[str]:
    """What of the words ``given`` the command line does not know: verbs and flags."""
    found = []
    flags = {flag for parameter in command.params for flag in (*parameter.opts, "-h", "--help")}
    for word in given:
        verbs = getattr(command, "table", {})
        if word.startswith("-"):
            name = word.split("=")[0]
            if re.fullmatch(r"--?[a-z][a-z-]*", name) and name not in flags:
                found.append(word)
        elif verbs:
            options = [w for w in word.split("|") if re.fullmatch(r"[a-z]+", w)]
            found += [w for w in options if w not in verbs]
            known = [w for w in options if w in verbs]
            if known:
                command = command.get_command(Context(), known[0])
                flags |= {flag for p in command.params for flag in p.opts}
    return found


class Context:
    """As much of the library's context as looking up a verb takes."""

    resilient_parsing = True
    command_path = "lab"


def test_verbs_and_flags_exist() -> None:
    """Protects those who type what they read."""
    root = root_command()
    wrong = [f"{page}: lab {' '.join(given)}: {found}" for page, given in commands()
             if (found := unknown(root, given))]  # fmt: skip
    assert not wrong, "\n".join(wrong)


def test_the_check_of_commands_sees_commands() -> None:
    """Protects the check above from passing because it finds nothing."""
    root = root_command()
    assert len(list(commands())) > 40
    assert unknown(root, ["frobnicate"]) == ["frobnicate"]
    assert unknown(root, ["up", "pxc", "--nodez", "3"]) == ["--nodez"]
    assert unknown(root, ["image", "build|sell"]) == ["sell"]


def test_readme_lists_every_verb() -> None:
    """Protects verbs from being known to their authors only."""
    readme = (ROOT / "README.md").read_text()
    missing = [verb for verb in RootVerbs.table if f"| `lab {verb}" not in readme]
    assert not missing


def rows(page: str, heading: str) -> dict[str, str]:
    """The first table below a heading: name in the first column -> second column."""
    text = (ROOT / "docs" / page).read_text().split(f"\n{heading}\n", 1)[1]
    found = re.findall(r"^\| `(\w+)` \| (.*?) \|", text.split("\n## ")[0], re.M)
    return {name: value.strip("`") for name, value in found}


def test_every_setting_is_documented_with_its_default() -> None:
    """Protects docs/config.md from falling behind."""
    documented = rows("config.md", "## Settings")
    assert set(documented) == {field.name for field in fields(Settings)} - {"sources"}
    plain = Settings(home=Home(Path("/x")), owner="x")
    not_said = ("home", "owner", "libvirt_uri", "profiles", "serve")  # depends, or is a table
    shown = {k: v for k, v in documented.items() if k not in not_said}
    env = {f"LAB_{name.upper()}": value for name, value in shown.items()}
    read = settings.load(env=env, files=[])
    assert {name: getattr(read, name) for name in shown} == {
        name: getattr(plain, name) for name in shown
    }


def test_every_setting_of_the_service_is_documented_with_its_default() -> None:
    """Protects docs/api.md from falling behind."""
    documented = rows("api.md", "## Settings")
    assert set(documented) == {field.name for field in fields(Serve)}
    said = {name: value for name, value in documented.items() if value}
    yes_no = {name: value == "true" for name, value in said.items() if value in ("true", "false")}
    assert servefile.parse({**said, **yes_no}) == Serve()


def test_every_key_of_lab_toml_is_documented() -> None:
    """Protects docs/config.md from falling behind."""
    assert set(rows("config.md", "## lab.toml")) == set(LabValues.__annotations__)


def test_files_named_for_maintainers_exist() -> None:
    """Protects newcomers: the map shows the land, the lists of what to touch as well."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    text += guide.partition("\n## Add something\n")[2].partition("\n## ")[0]
    named = {code for code in INLINE.findall(FENCE.sub("", text)) if re.match(r"[\w.]+/", code)}
    named = {code.partition(" ")[0] for code in named if "NAME" not in code}
    assert len(named) > 20
    # A folder of a room is named without the room.
    places = ("", "lab/*/", "api/")
    missing = [n for n in named if not any(list(ROOT.glob(p + n.rstrip("/"))) for p in places)]
    assert not missing


def test_rooms_of_the_program_are_on_the_map() -> None:
    """Protects the map from gaps: every package and module of ``lab`` is mentioned."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = [p for p in (ROOT / "lab").iterdir() if p.is_dir() and (p / "__init__.py").exists()]
    assert [room.name for room in rooms if f"lab/{room.name}/" not in text] == []


MESSAGE = re.compile(r"^\*\*([a-z3-6].*?)\*\*", re.M)
ANYTHING = re.compile(
    r"\.\.\.|\bNAME\b|process N|qemu:\S+|\b\d[\w.]*|\bn\d\b|: (?=required)|; |\. *$|\bwsrep_.*"
)


def test_quoted_errors_are_errors() -> None:
    """Protects who searches the page for what is on the screen."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    sources = [*(ROOT / "lab").rglob("*.py"), *(ROOT / "images").glob("*.py")]
    sources += [ROOT / "scripts/setup-host", ROOT / "scripts/venv"]
    # Strings that follow each other are one; what is put into them stands for anything.
    code = re.sub(r'"\s*\n?\s*f?"', "", "\n".join(path.read_text() for path in sources))
    quoted = [part for message in MESSAGE.findall(page) for part in ANYTHING.split(message)]
    wanted = [part.strip(" ,:") for part in quoted if len(part.split()) > 1]
    assert len(wanted) > 10
    assert [part for part in wanted if part not in code] == []


REQUEST = re.compile(r"\b(GET|POST|PATCH|DELETE)\b|\?[a-z]+=")
WITHOUT_REQUESTS = re.compile(r"`lab |\bpage\b")


def test_hints_of_the_api_are_for_all_who_read_them() -> None:
    """Protects who uses `lab --remote` or the page: the service's hints are printed there too."""
    hints = {}
    for path in sorted((ROOT / "api").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                constants = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
                text = "".join(map(str, constants))
                hints[f"{path.relative_to(ROOT)}:{node.lineno}: {text}"] = text
    assert len(hints) > 50
    # Only clients of the API send If-Match.
    for_clients = [said for said, hint in hints.items()
                   if REQUEST.search(hint) and not WITHOUT_REQUESTS.search(hint)
                   and "ETag" not in hint]  # fmt: skip
    assert not for_clients, "\n".join(for_clients)
