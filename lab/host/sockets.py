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

from lab.errors import HostUnfit
from lab.values import dataclass

_SOCK_DIAG, _BY_FAMILY, _DONE, _ERROR = 4, 20, 3, 2  # linux/netlink.h, linux/sock_diag.h
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_INFO = 2  # INET_DIAG_INFO: struct tcp_info
_ESTABLISHED, _LISTEN = 1, 10  # net/tcp_states.h
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_ATTRIBUTE = struct.Struct("=HH")  # struct rtattr
_ASKED = struct.Struct("=BBBBI48x")  # struct inet_diag_req_v2
_FOUND = struct.Struct(">4xH")  # struct inet_diag_msg: the port of this end
_BODY = 72
"""Bytes of that, before the attributes."""
_LAST_RECEIVED = 52
"""Where tcp_info has tcpi_last_data_recv: milliseconds, also since the connection began."""
_BUFFER = 1 << 17
_LONGEST = 2.0
"""Seconds for the kernel's answer."""


@dataclass(frozen=True)
class Connection:
    """A TCP connection to a port of this host, which its client has not closed."""

    port: int
    quiet: float
    """Seconds since data came of the client, or since the connection began."""


def connections(ports: Set[int]) -> list[Connection]:
    """The connections to ``ports``; raises HostUnfit if they cannot be listed."""
    return [one for one in _listed(_ESTABLISHED) if one.port in ports]


def listening(ports: Set[int]) -> set[int]:
    """Those of ``ports`` at which a program listens; raises HostUnfit."""
    return {one.port for one in _listed(_LISTEN)} & ports


def _listed(state: int) -> Iterator[Connection]:
    if sys.platform != "linux":
        raise HostUnfit("TCP connections can be watched on Linux only")
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asked:
            asked.settimeout(_LONGEST)
            what = (socket.AF_INET, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, 1 << state)
            request = _ASKED.pack(*what)
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


def _messages(answer: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(answer):
        size, kind, *_ = _HEADER.unpack_from(answer, at)
        yield kind, answer[at + _HEADER.size : at + size]
        at += max(_HEADER.size, (size + 3) & ~3)


def _read(body: bytes) -> Connection:
    *_, port = _FOUND.unpack_from(body)
    quiet, at = 0.0, _BODY
    while at + _ATTRIBUTE.size <= len(body):
        size, kind = _ATTRIBUTE.unpack_from(body, at)
        if kind == _INFO and size >= _ATTRIBUTE.size + _LAST_RECEIVED + 4:
            (millis,) = struct.unpack_from("=I", body, at + _ATTRIBUTE.size + _LAST_RECEIVED)
            quiet = millis / 1000
        at += max(_ATTRIBUTE.size, (size + 3) & ~3)
    return Connection(port, quiet)
