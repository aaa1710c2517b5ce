"""Doubles of pfctl(8) and sysctl(8): what pf keeps and refuses, without FreeBSD.

Run as ``pf_double.py ROOT PROGRAM ARGUMENT...``; ``install`` writes the programs that tests put
on PATH. ROOT holds ``calls``, a line for each, ``pf.json`` (the machine), and what the kernel
would: ``pf``, a file of rules for each anchor.

Read from sbin/pfctl of FreeBSD:

- pfctl.c, main: the device is opened first (an error without permission), names of anchors that
  begin with ``_`` are refused, a word that is no option ends with the usage
- pfctl.c, pfctl_show_anchors: two spaces before each name, one level; an anchor that does not
  exist is a message and no failure; pfctl_test_altqsupport: what is said each time
- pfctl.c, pfctl_rules, parse.y: a rule that is not understood is named by its line, and none of
  the file is loaded; what is loaded replaces all that was there
- pfctl_parser.c: print_rule (``port = N``), print_status; an anchor without rules and children is
  no more (pf_remove_if_empty_ruleset in sys/netpfil/pf/pf_ruleset.c)
- pf.conf(5): the grammar of ``rdr``, as far as rules here go; what an asterisk leads to
"""

from __future__ import annotations

import getopt
import json
import os
import re
import shlex
import sys
from ipaddress import IPv4Address
from pathlib import Path
from typing import NoReturn

RULE = re.compile(
    r"rdr (?:pass )?inet proto tcp from any to (?P<at>\(self\)|\S+) port (?P<port>\d+)"
    r" -> (?P<to>\S+) port (?P<guest_port>\d+)"
)


def install(directory: Path, root: Path, /, **machine: object) -> None:
    """Write the programs into ``directory``, which exists, for a host with pf.

    ``pf``: enabled, disabled, missing (not loaded) or denied; ``main``: the translation rules of
    the main ruleset, as they are printed; ``forwarding``: net.inet.ip.forwarding.
    """
    (root / "pf").mkdir()
    usual = {"pf": "enabled", "main": ['rdr-anchor "lab/*" all'], "forwarding": "1"}
    (root / "pf.json").write_text(json.dumps(usual | machine))
    argv = [sys.executable, "-I", "-S", os.fspath(Path(__file__).absolute()), os.fspath(root)]
    for name in ("pfctl", "sysctl"):
        program = directory / name
        program.write_text(f'#!/bin/sh\nexec {shlex.join([*argv, name])} "$@"\n')
        program.chmod(0o755)


def change(root: Path, /, **machine: object) -> None:
    """Another machine."""
    path = root / "pf.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | machine))


def loaded(root: Path) -> dict[str, list[str]]:
    """The rules of each anchor, as they were loaded."""
    return {
        path.name.replace("|", "/"): path.read_text().splitlines()
        for path in sorted((root / "pf").iterdir())
    }


def led(root: Path, address: str, port: int) -> str:
    """Where a connection from another machine to ``port`` would be led; empty: nowhere."""
    machine = json.loads((root / "pf.json").read_text())
    if machine["pf"] != "enabled" or machine["forwarding"] != "1":
        return ""
    for line in machine["main"]:
        anchor = re.match(r'rdr-anchor "([^"]*)/\*"', line)
        for name, rules in loaded(root).items():
            if anchor and name.rpartition("/")[0] == anchor[1]:
                for rule in filter(None, map(RULE.fullmatch, rules)):
                    if rule["at"] in (address, "(self)") and int(rule["port"]) == port:
                        return f"{rule['to']}:{rule['guest_port']}"
    return ""


def die(message: str) -> NoReturn:
    print(f"pfctl: {message}", file=sys.stderr)
    sys.exit(1)


def usage() -> NoReturn:
    print("usage: pfctl [-AdeghMmNnOPqRSrvz] [-a anchor] [-D macro=value]", file=sys.stderr)
    sys.exit(1)


def pfctl(root: Path, arguments: list[str]) -> int:
    try:
        options, rest = getopt.getopt(arguments, "a:AdD:eqf:F:ghi:k:K:mMnNOo:Pp:rRs:St:T:vx:z")
    except getopt.GetoptError:
        usage()
    given = dict(options)
    if rest or not options:
        usage()
    anchor = given.get("-a", "")
    if {"-f", "-F"} & given.keys() and (anchor.startswith("_") or "/_" in anchor):
        die("anchor names beginning with '_' cannot be modified from the command line")
    machine = json.loads((root / "pf.json").read_text())
    refusals = {"missing": "No such file or directory", "denied": "Permission denied"}
    if machine["pf"] in refusals:
        die(f"/dev/pf: {refusals[machine['pf']]}")
    print("No ALTQ support in kernel\nALTQ related functions disabled", file=sys.stderr)
    path = root / "pf" / anchor.replace("/", "|")
    if "-s" in given:
        return show(root, given["-s"], anchor, machine)
    if not anchor:
        die("the double keeps the main ruleset from everybody")
    if "-F" in given:
        if given["-F"] not in ("nat", "all"):
            usage()
        path.unlink(missing_ok=True)
        print("nat cleared", file=sys.stderr)
    if given.get("-f") == "-":
        return load(path, sys.stdin.read())
    return 0


def show(root: Path, what: str, anchor: str, machine: dict[str, object]) -> int:
    if what == "info":
        word = str(machine["pf"]).capitalize()
        print(f"Status: {word} for 12 days 03:04:05".ljust(45) + "Debug: Urgent\n")
        print("State Table                          Total             Rate")
    elif what == "nat":
        main = machine["main"]
        rules = loaded(root).get(anchor, []) if anchor else main
        assert isinstance(rules, list)
        for rule in rules:
            print(re.sub(r" port (\d+) ->", r" port = \1 ->", rule))
    elif what == "Anchors":
        names = [name for name in loaded(root) if name.startswith(f"{anchor}/" if anchor else "")]
        depth = anchor.count("/") + 1 if anchor else 0
        children = dict.fromkeys("/".join(name.split("/")[: depth + 1]) for name in names)
        for child in children:
            print(f"  {child}")
        if anchor and not children:
            print(f"Anchor '{anchor}' not found.", file=sys.stderr)
    else:
        print(f"pfctl: Unknown show modifier '{what}'", file=sys.stderr)
        usage()
    return 0


def load(path: Path, text: str) -> int:
    wrong = [n for n, line in enumerate(text.splitlines(), 1) if line and not understood(line)]
    if wrong or (text and not text.endswith("\n")):
        for number in wrong or [len(text.splitlines())]:
            print(f"stdin:{number}: syntax error", file=sys.stderr)
        die("Syntax error in config file: pf rules not loaded")
    if text:
        path.write_text(text)
    else:
        path.unlink(missing_ok=True)
    return 0


def understood(line: str) -> bool:
    rule = RULE.fullmatch(line)
    if rule is None:
        return False
    try:
        for address in (rule["at"].replace("(self)", "127.0.0.1"), rule["to"]):
            IPv4Address(address)
    except ValueError:
        return False
    return all(0 < int(rule[port]) < 65536 for port in ("port", "guest_port"))


def sysctl(root: Path, arguments: list[str]) -> int:
    if arguments == ["-n", "net.inet.ip.forwarding"]:
        print(json.loads((root / "pf.json").read_text())["forwarding"])
        return 0
    print(f"sysctl: unknown oid '{arguments[-1]}'", file=sys.stderr)
    return 1


if __name__ == "__main__":
    where = Path(sys.argv[1])
    with (where / "calls").open("a") as calls:
        calls.write(shlex.join(sys.argv[2:]) + "\n")
    sys.exit({"pfctl": pfctl, "sysctl": sysctl}[sys.argv[2]](where, sys.argv[3:]))
