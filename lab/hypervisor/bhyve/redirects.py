"""Ports of the host that lead to guests: rules of pf(4), in an anchor for each guest.

The anchor is ``lab/<guest>``: an anchor rule with an asterisk evaluates only what is directly
below it (pf.conf(5)), and names of guests are unique on a host. Nothing outside of ``lab/`` is
changed; the main ruleset, which is the administrator's, must have the anchor.

Formats: pf.conf(5); print_rule and print_fromto in sbin/pfctl/pfctl_parser.c, pfctl_show_anchors
and main in sbin/pfctl/pfctl.c, print_status in pfctl_parser.c of FreeBSD 13 to 15.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterable, Iterator

from lab.errors import CommandFailed, HostUnfit, LabError, PortTaken
from lab.host.freebsd import ANCHOR, ANCHOR_ADVICE, GATEWAY_ADVICE, PF_ADVICE, leads
from lab.hypervisor import Forward
from lab.hypervisor.bhyve.place import Place
from lab.names import EVERYWHERE, GuestName
from lab.run import run

_SECONDS = 30.0
_FORWARDING = "net.inet.ip.forwarding"
_GUEST = re.compile(r"lab-[a-z0-9][a-z0-9.-]*-n[1-9]")


class PfRedirects:
    """See Redirects for the contract. ``place``: the guests' directories."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def ports(self) -> dict[int, GuestName]:
        """See Redirects."""
        check()
        return self._place.ports()


def check() -> None:
    """Raise HostUnfit, with the remedy, unless our rules are in effect."""
    status = _asked("-s", "info")
    if re.search(r"^Status: Enabled\b", status, re.MULTILINE) is None:
        raise _unfit("pf is disabled", PF_ADVICE)
    if not leads(_asked("-s", "nat")):
        raise _unfit(
            f"pf's main ruleset does not lead to the anchor {ANCHOR}",
            ANCHOR_ADVICE,
        )
    output = run(["sysctl", "-n", _FORWARDING], timeout=_SECONDS).stdout.strip()
    if output != "1":
        raise _unfit(
            f"{_FORWARDING} is {output or 'unknown'}: this host forwards no packets",
            GATEWAY_ADVICE,
        )


def rules(forwards: Iterable[Forward]) -> str:
    """The rules that redirect ``forwards`` to the addresses of their guest."""
    return "".join(f"{_rule(forward)}\n" for forward in forwards)


def load(guest: GuestName, forwards: Iterable[Forward]) -> None:
    """Replace the rules of ``guest``; raises HostUnfit."""
    try:
        _pfctl("-a", f"{ANCHOR}/{guest}", "-f", "-", stdin=rules(forwards))
    except CommandFailed as failed:
        raise _refused(f"redirecting ports to {guest}", failed) from failed


def sweep(there: Iterable[str]) -> None:
    """Remove the rules of guests other than ``there``; raises HostUnfit if pf refuses."""
    kept = set(there)
    for guest in _loaded():
        if guest not in kept:
            try:
                _pfctl("-a", f"{ANCHOR}/{guest}", "-F", "nat")
            except CommandFailed as failed:
                raise _refused(f"removing the ports of {guest}", failed) from failed


def check_free(guest: GuestName, forwards: Iterable[Forward], taken: dict[int, GuestName]) -> None:
    """Raise PortTaken if a program listens on a port of ``forwards``, or ``taken`` has it.

    pf would redirect the connections of such a program.
    """
    for forward in forwards:
        other = taken.get(forward.host_port, guest)
        if other != guest:
            raise _taken(guest, f"port {forward.host_port} leads to {other}")
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # Without SO_REUSEADDR: with it FreeBSD allows a port on which another program listens,
            # if the addresses differ (*:24001 and 192.0.2.10:24001).
            try:
                probe.bind((forward.address, forward.host_port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    why = f"{forward.address}:{forward.host_port}: {error.strerror}"
                    raise _taken(guest, why) from None


def _rule(forward: Forward) -> str:
    # (self): all addresses of this host, also later ones: the kernel resolves it to the group of
    # all interfaces (pfi_dynaddr_setup in sys/netpfil/pf/pf_if.c). Not "any": that would redirect
    # forwarded packets too.
    at = "(self)" if forward.address == EVERYWHERE else forward.address
    return (
        f"rdr pass inet proto tcp from any to {at} port {forward.host_port}"
        f" -> {forward.to} port {forward.guest_port}"
    )


def _loaded() -> Iterator[str]:
    """The guests that have rules; none if pf is not loaded, as it has no rules then."""
    try:
        output = _pfctl("-a", ANCHOR, "-s", "Anchors")
    except LabError:
        return
    for line in output.splitlines():
        parent, _, guest = line.strip().rpartition("/")
        if parent == ANCHOR and _GUEST.fullmatch(guest):
            yield guest


def _asked(*arguments: str) -> str:
    try:
        return _pfctl(*arguments)
    except CommandFailed as failed:
        raise _refused("querying pf", failed) from failed


def _pfctl(*arguments: str, stdin: str = "") -> str:
    return run(["pfctl", *arguments], timeout=_SECONDS, stdin=stdin.encode()).stdout


def _refused(doing: str, failed: CommandFailed) -> HostUnfit:
    output = failed.stderr
    if "/dev/pf: No such file" in output:
        return _unfit("pf is not loaded", PF_ADVICE)
    if "/dev/pf: Permission denied" in output:
        return _unfit("only root may change pf's rules", "run lab as root")
    details = [line for line in output.splitlines() if line.strip()][-5:]
    return HostUnfit(
        f"{doing}: pf reports an error", hint="`lab doctor` checks pf", details=details
    )


def _unfit(why: str, hint: str) -> HostUnfit:
    return HostUnfit(f"labs cannot be published to other machines: {why}", hint=hint)


def _taken(guest: GuestName, why: str) -> PortTaken:
    return PortTaken(f"starting {guest}: one of its ports is taken", details=[why])
