"""TCP connections to ports of this host, as the Linux kernel knows them: whose data came when.

The kernel lists them over a netlink socket, to everybody and by no other program (sock_diag(7),
linux/inet_diag.h). It knows also those that the program at the port has not accepted or read yet:
so it tells when somebody wants something of a process that is stopped. Only those of our network
namespace are listed.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator, Set
from contextlib import suppress
from pathlib import Path

from lab.errors import HostUnfit
from lab.values import dataclass

_SOCK_DIAG, _BY_FAMILY, _DONE, _ERROR = 4, 20, 3, 2  # linux/netlink.h, linux/sock_diag.h
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_INFO = 2  # INET_DIAG_INFO: struct tcp_info
_BYTECODE = 1  # INET_DIAG_REQ_BYTECODE
_SOURCE, _TARGET = (2, 3), (4, 5)  # INET_DIAG_BC_S_GE and _LE, INET_DIAG_BC_D_GE and _LE
_OPERATION = struct.Struct("=BBH")  # struct inet_diag_bc_op
_ESTABLISHED, _LISTEN = 1, 10  # net/tcp_states.h
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_ATTRIBUTE = struct.Struct("=HH")  # struct rtattr
_ASKED = struct.Struct("=BBBBI48x")  # struct inet_diag_req_v2
_ENDS = struct.Struct(">4xHH4s12x4s")  # struct inet_diag_msg: the ports, the addresses
_INODE = struct.Struct("=68xI")
_BODY = 72
"""Bytes of that, before the attributes."""
_LAST_RECEIVED = 52
"""Where tcp_info has tcpi_last_data_recv: milliseconds, also since the connection began."""
_BUFFER = 1 << 17
_LONGEST = 2.0
"""Seconds for the kernel's answer."""


End = tuple[bytes, int]
"""An IPv4 address, as 4 bytes, and a port."""


@dataclass(frozen=True)
class Connection:
    """A TCP connection to a port of this host, which its client has not closed."""

    port: int
    client: End
    quiet: float
    """Seconds since data came of the client, or since the connection began."""

    @property
    def key(self) -> tuple[int, End]:
        """Which one it is."""
        return self.port, self.client


@dataclass(frozen=True)
class _Socket:
    here: End
    there: End
    inode: int
    quiet: float


def connections(ports: Set[int]) -> list[Connection]:
    """The connections to ``ports``; raises HostUnfit if they cannot be listed."""
    found = _listed(_ESTABLISHED, ports, _SOURCE)
    return [Connection(one.here[1], one.there, one.quiet) for one in found if one.here[1] in ports]


def own(ports: Set[int]) -> set[tuple[int, End]]:
    """The keys of connections to ``ports`` whose client is this process; raises HostUnfit."""
    ours = _own_inodes()
    found = _listed(_ESTABLISHED, ports, _TARGET)
    return {(one.there[1], one.here) for one in found if one.inode in ours}


def listening(ports: Set[int]) -> set[int]:
    """Those of ``ports`` at which a program listens; raises HostUnfit."""
    return {one.here[1] for one in _listed(_LISTEN, ports, _SOURCE)} & ports


def arrivals() -> tuple[int, int] | None:
    """How many TCP connections and segments came to our network namespace, from itself, too.

    None where that is unknown. While the first stays the same nobody has connected, and while the
    second does nobody has sent anything. To know that costs a twentieth of a list, for which the
    kernel goes through the table of all connections that there could be (RFC 4022:
    tcpPassiveOpens and tcpInSegs, in /proc/net/snmp).
    """
    try:
        lines = Path("/proc/net/snmp").read_text(encoding="ascii").splitlines()
        names, values = (line.split() for line in lines if line.startswith("Tcp:"))
        opened, received = (int(values[names.index(n)]) for n in ("PassiveOpens", "InSegs"))
    except (OSError, ValueError, IndexError):
        return None
    return opened, received


def _listed(state: int, ports: Set[int], of: tuple[int, int]) -> Iterator[_Socket]:
    """Those of a state whose port ``of`` one end is between the lowest and highest of ``ports``."""
    if not ports:
        return
    if sys.platform != "linux":
        raise HostUnfit("TCP connections can be watched on Linux only")
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asked:
            asked.settimeout(_LONGEST)
            what = (socket.AF_INET, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, 1 << state)
            request = _ASKED.pack(*what) + _between(of, min(ports), max(ports))
            size = _HEADER.size + len(request)
            asked.send(_HEADER.pack(size, _BY_FAMILY, _REQUEST_DUMP, 0, 0) + request)
            while True:
                answer = asked.recv(_BUFFER)
                for kind, body in _messages(answer):
                    if kind == _DONE:
                        return
                    if kind == _ERROR:
                        (number,) = struct.unpack_from("=i", body)
                        raise OSError(-number, os.strerror(-number))
                    yield _read(body)
    except (OSError, struct.error) as error:
        raise HostUnfit(f"the kernel does not list TCP connections: {error}") from error


def _between(of: tuple[int, int], lowest: int, highest: int) -> bytes:
    """The attribute by which the kernel leaves out connections with other ports ``of`` one end.

    A program of two comparisons, each with its port in a second word: bytes to jump if it is true
    (to the next one; the end accepts), and if it is not (beyond the end: refused).
    """
    at_least, at_most = of
    ends = ((at_least, 20, lowest), (at_most, 12, highest))
    program = b"".join(
        _OPERATION.pack(code, 8, refused) + _OPERATION.pack(0, 0, port)
        for code, refused, port in ends
    )
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(program), _BYTECODE) + program


def _messages(answer: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(answer):
        size, kind, *_ = _HEADER.unpack_from(answer, at)
        yield kind, answer[at + _HEADER.size : at + size]
        at += max(_HEADER.size, (size + 3) & ~3)


def _read(body: bytes) -> _Socket:
    port, far_port, here, there = _ENDS.unpack_from(body)
    (inode,) = _INODE.unpack_from(body)
    quiet, at = 0.0, _BODY
    while at + _ATTRIBUTE.size <= len(body):
        size, kind = _ATTRIBUTE.unpack_from(body, at)
        if kind == _INFO and size >= _ATTRIBUTE.size + _LAST_RECEIVED + 4:
            (millis,) = struct.unpack_from("=I", body, at + _ATTRIBUTE.size + _LAST_RECEIVED)
            quiet = millis / 1000
        at += max(_ATTRIBUTE.size, (size + 3) & ~3)
    return _Socket((here, port), (there, far_port), inode, quiet)


def _own_inodes() -> set[int]:
    """Of the sockets of this process."""
    found = set()
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208  a path for each costs more
        with suppress(OSError, ValueError):
            target = os.readlink(f"/proc/self/fd/{entry}")  # noqa: PTH115
            if target.startswith("socket:["):
                found.add(int(target[8:-1]))
    return found
