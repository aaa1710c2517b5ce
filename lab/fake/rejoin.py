"""The guest's programs ``rejoin``, ``rest`` and ``identity`` in guests of the fake hypervisor.

Of a Galera cluster that went down they pretend three kinds of trouble, see ``Inside.apart``. A
node that lost its view finds the others once these are a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lab.errors import CommandFailed
from lab.fake.guests import Record
from lab.fake.inside import Inside, members, read_inside, status, write_inside

_VIEW = "/run/lab-view"
_HISTORY = "00000000-0000-0000-0000-000000000001"


def rejoin(record: Record, peers: Sequence[Record], word: str) -> str:
    """Do what ``word`` says to ``record`` and return what is printed; ``peers`` with itself."""
    if word == "state":
        return _state(record, peers)
    inside = read_inside(record.disks)
    if word == "bootstrap":
        for peer in peers:
            if read_inside(peer.disks).apart == "lost view":
                _repair(peer)
    elif word == "transfer":
        newest = max((read_inside(peer.disks) for peer in peers), key=lambda i: len(i.statements))
        write_inside(record.disks, replace(inside, statements=list(newest.statements)))
    elif word != "restart":
        raise CommandFailed(["/usr/lib/lab/rejoin"], 2, stderr=f"what is {word}?")
    if word != "restart" or inside.apart == "failed":
        _repair(record)
    return ""


def rest(inside: Inside, words: Sequence[str]) -> str:
    """Do what ``words`` say to a guest, and return what is printed; raises CommandFailed."""
    match list(words):
        case ["view"]:
            inside.put(_VIEW, b"", "660")
        case ["stop", *_]:
            inside.apart = "failed"
            return f"{_history(inside)}:{len(inside.statements)}\n"
        case ["at", seqno] if int(seqno) >= len(inside.statements) and _VIEW in inside.files:
            inside.apart = ""
            del inside.files[_VIEW], inside.modes[_VIEW]
        case _:
            raise CommandFailed(["/usr/lib/lab/rest"], 2, stderr=f"what is {' '.join(words)}?")
    return ""


def service(inside: Inside, words: Sequence[str]) -> None:
    """Start or stop the server, as ``systemctl`` with these words does."""
    inside.apart = "failed" if words[0] == "stop" else ""
    inside.joined, inside.left = 0, False


def identify(inside: Inside, words: Sequence[str]) -> None:
    """Give a server that does not run the identities in ``words``; raises CommandFailed."""
    if inside.apart != "failed" or (words[3:] and int(words[4]) < len(inside.statements)):
        raise CommandFailed(["/usr/lib/lab/identity"], 1, stderr="the server runs, or was ahead")
    inside.identity = list(words)


def _history(inside: Inside) -> str:
    """The UUID of the cluster that a node is of."""
    return inside.identity[3] if inside.identity[3:] else _HISTORY


def _repair(record: Record) -> None:
    write_inside(record.disks, replace(read_inside(record.disks), apart=""))


def _state(record: Record, peers: Sequence[Record]) -> str:
    inside = read_inside(record.disks)
    whole = sum(not read_inside(peer.disks).apart for peer in peers)
    server = {"failed": "failed", "lost view": "activating"}.get(inside.apart, "active")
    lines = [f"server\t{server}", f"position\t{_history(inside)}:{len(inside.statements)}"]
    lines.append("doubtful\tno")
    if server == "active":
        values = status(whole, members(record.disks), inside.apart)
        lines += [f"{name}\t{value}" for name, value in values.items()]
    if inside.apart in ("", "failed"):
        lines += ["me\tx", "member\tx"]
    return "".join(f"{line}\n" for line in lines)
