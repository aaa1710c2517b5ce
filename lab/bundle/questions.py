"""What is asked of each node of a bundle, under the names that pt-stalk (Percona Toolkit) uses.

Who knows its files finds them here: ``<time>-<name>``, in two rounds. What a guest has no program
for is read from /proc.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

ROUNDS = 2
APART = 3.0
"""Seconds between the rounds."""
_PART = 64 << 10
"""Bytes of one answer: the guest agent bounds all answers of a call together."""
_LOG = 400 << 10
_SECONDS = 20
"""Of one command."""
_SQL = "/usr/lib/lab/sql"

_ONCE: Mapping[str, str] = {
    "hostname": "hostname; uname -a; uptime; date",
    "df": "df -k; df -i",
    "mount": "cat /proc/mounts",
    "sysctl": "sysctl -a 2>/dev/null | grep -v '^net.ipv6'",
    "ps": "ps -eo pid,ppid,user,stat,rss,vsz,etime,wchan:20,args 2>/dev/null || ps ax",
    "lsof": "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -v '/dev/null' | tail -n 500",
    "network": "ip address; ip route",
    "units": "systemctl --no-pager --full list-units --failed; systemctl --no-pager list-jobs",
    "my.cnf": "find /etc/mysql -name '*.cnf' -exec sh -c 'echo \"# $1\"; cat \"$1\"' - {} \\;",
    "grastate.dat": "cat /var/lib/mysql/grastate.dat",
    "gvwstate.dat": "cat /var/lib/mysql/gvwstate.dat",
    "auto.cnf": "cat /var/lib/mysql/auto.cnf",
    "datadir": "ls -la /var/lib/mysql",
}  # fmt: skip
_ALWAYS: Mapping[str, str] = {
    "meminfo": "cat /proc/meminfo",
    "vmstat": "cat /proc/vmstat /proc/stat /proc/loadavg; cat /proc/pressure/* 2>/dev/null",
    "diskstats": "cat /proc/diskstats",
    "disk-space": "df -k /var/lib/mysql",
    "interrupts": "cat /proc/interrupts",
    "netstat": "ss -antp 2>/dev/null || cat /proc/net/tcp /proc/net/tcp6",
    "netstat_s": "cat /proc/net/snmp /proc/net/netstat",
    "top": "top -bn1 2>/dev/null | head -n 60",
}
_SQL_ONCE: Mapping[str, str] = {
    "variables": "SHOW GLOBAL VARIABLES",
    "plugins": "SHOW PLUGINS",
}
_SQL_ALWAYS: Mapping[str, str] = {
    "mysqladmin": "SHOW GLOBAL STATUS",
    "processlist": "SHOW FULL PROCESSLIST",
    "innodbstatus": "SHOW ENGINE INNODB STATUS",
    "opentables": "SHOW OPEN TABLES",
    "transactions": "SELECT * FROM information_schema.INNODB_TRX",
    "lock-waits": "SELECT * FROM sys.innodb_lock_waits",
    "slave-status": "SHOW SLAVE STATUS",
    "replica-status": "SHOW REPLICA STATUS",
    "members": "SELECT * FROM performance_schema.replication_group_members",
}
"""Statements; not every server has each of them, and what it says instead is kept."""
STATEMENTS = ("processlist", "transactions", "lock-waits")
"""Files in which statements of others are quoted: their literals go."""
STATUS = ("innodbstatus", "slave-status", "replica-status")
"""As those, with figures that stay."""
LOGS = ("journal", "dmesg", "console.log", "qemu.log", "error.log")


def commands(number: int, *, server: bool) -> dict[str, str]:
    """The shell commands of a round, from 0; ``server``: those to the local server as well."""
    first = number == 0
    found = {**(_ONCE if first else {}), **_ALWAYS}
    statements = {**(_SQL_ONCE if first else {}), **_SQL_ALWAYS} if server else {}
    for name, statement in statements.items():
        found[name] = f"echo '{statement}' | {_SQL}"
    return found


def logs(units: list[str]) -> dict[str, str]:
    """The commands that print logs; ``units``: the arguments that select those of the engine."""
    journal = "journalctl -b --no-pager -o short-iso-precise -n"
    return {
        "error.log": f"{journal} 3000 {' '.join(units)}",
        "journal": f"{journal} 2000",
        "dmesg": f"{journal} 500 -k",
    }


def script(commands: Mapping[str, str], mark: str) -> str:
    """A shell script that runs ``commands`` and prints the name of each after a ``mark``."""
    lines = []
    for name, command in commands.items():
        most = _LOG if name in LOGS else _PART
        lines.append(f"printf '\\n%s %s\\n' {mark} {name}")
        lines.append(f"timeout {_SECONDS} sh 2>&1 <<'{mark}' | tail -c {most}\n{command}\n{mark}")
    return "\n".join(lines) + "\n"


def parts(answer: str, mark: str, asked: Collection[str]) -> dict[str, str]:
    """The answers in the output of ``script``, by their names.

    Only those of ``asked``: a guest knows the mark, and names become paths.
    """
    found: dict[str, str] = {}
    for piece in answer.split(f"\n{mark} ")[1:]:
        name, _, text = piece.partition("\n")
        if name in asked:
            found[name] = text
    return found
