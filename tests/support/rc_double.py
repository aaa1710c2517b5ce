"""Doubles of rc.subr(8) and daemon(8) of FreeBSD, to run a script of rc.d here.

``install`` lays the script out with paths that lead below a directory. What the doubles do was
read in libexec/rc/rc.subr (run_rc_command: when rcvar counts, what is refused, the order of what
is run, pidfile and signals; load_rc_config) and in daemon(8); for a user other than the one who
runs the script, rc.subr uses su(1), which is not done here.
"""

from __future__ import annotations

import getopt
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SUBR = r"""
load_rc_config() { . ROOT/etc/rc.conf; }
checkyesno() {
    eval value=\$$1
    case "$value" in [Yy][Ee][Ss]|[Tt][Rr][Uu][Ee]|[Oo][Nn]|1) return 0 ;; *) return 1 ;; esac
}
warn() { echo "WARNING: $*" >&2; }
# A process that has ended stays a zombie where PID 1 does not reap, as in many containers.
alive() { kill -0 "$1" 2>/dev/null && ! grep -qs '^State:[[:space:]]*Z' "/proc/$1/status"; }
run_rc_command() {
    arg=$1
    case "$arg" in one*) arg=${arg#one}; eval "$rcvar=YES" ;; esac
    case " start stop restart status $extra_commands " in
    *" $arg "*) ;;
    *) echo "unknown directive '$arg'." >&2; exit 1 ;;
    esac
    rc_pid=
    [ -s "$pidfile" ] && alive "$(cat "$pidfile")" && rc_pid=$(cat "$pidfile")
    if [ "$arg" != status ] && { [ "$arg" != stop ] || [ -z "$rc_pid" ]; }; then
        checkyesno "$rcvar" || { echo "Cannot '$arg' $name. Set $rcvar to YES"; return 0; }
    fi
    case "$arg" in
    status) [ -n "$rc_pid" ] || { echo "$name is not running."; return 1; }
        echo "$name is running as pid $rc_pid." ;;
    start)
        [ -z "$rc_pid" ] || { echo "$name already running?" >&2; return 1; }
        for file in $required_files; do
            [ -r "$file" ] || { warn "$file is not readable."; return 1; }
        done
        $start_precmd || { warn "failed precmd routine for $name"; return 1; }
        eval env_=\$${name}_env flags_=\$${name}_flags limits_=\$${name}_limits
        set -- $limits_
        (
            while [ $# -gt 0 ]; do ulimit "$1" "$2"; shift 2; done
            eval "${env_:+env $env_} $command $flags_ $command_args"
        ) ;;
    stop)
        [ -n "$rc_pid" ] || { echo "$name not running? (check $pidfile)." >&2; return 1; }
        kill -TERM "$rc_pid"
        while alive "$rc_pid"; do sleep 0.05; done ;;
    reload)
        [ -n "$rc_pid" ] || { echo "$name not running?" >&2; return 1; }
        kill -HUP "$rc_pid" ;;
    restart)
        (run_rc_command stop)
        (run_rc_command start) ;;
    esac
}
"""


def install(script: Path, root: Path) -> Path:
    """The script, in place below ``root``; ``etc/rc.conf`` there is empty."""
    for part in ("etc", "var/log", "var/run", "usr/sbin", "usr/local/etc/rc.d"):
        (root / part).mkdir(parents=True)
    (root / "etc/rc.conf").write_text("")
    (root / "etc/rc.subr").write_text(SUBR.replace("ROOT", str(root)))
    daemon = root / "usr/sbin/daemon"
    argv = f"{sys.executable} -I -S {Path(__file__).absolute()}"
    daemon.write_text(f'#!/bin/sh\nexec {argv} "$@"\n')
    daemon.chmod(0o755)
    text = script.read_text()
    for place in ("/etc/rc.subr", "/usr/sbin/daemon", "/var/run", "/var/log"):
        text = text.replace(place, f"{root}{place}")
    placed = root / "usr/local/etc/rc.d" / script.name
    placed.write_text(text)
    placed.chmod(0o555)
    return placed


def daemon(arguments: list[str]) -> None:
    """daemon(8), as far as ``-c -f -H -R -m -o -P`` go."""
    options, command = getopt.getopt(arguments, "cfHrSp:P:t:u:m:o:s:T:l:R:")
    given = dict(options)
    if not command or "-P" not in given:
        sys.exit("usage: daemon [-cfHrS] [-P supervisor_pidfile] command arguments ...")
    pidfile, mask = Path(given["-P"]), int(given.get("-m", "3"))
    log = _open(given["-o"])
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/" if "-c" in given else ".")
    pidfile.write_text(str(os.getpid()))
    ending, child = [False], [0]

    def end(number: int, _: object) -> None:
        ending[0] = True
        os.kill(child[0], number)

    def reopen(_: int, __: object) -> None:
        os.dup2(_open(given["-o"]), log)

    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    while not ending[0]:
        # Through the pipe daemon(8) can reopen the file: the child never has it open.
        reading, writing = os.pipe()
        out = [writing if mask & bit else null for bit in (1, 2)]
        process = subprocess.Popen(command, stdin=null, stdout=out[0], stderr=out[1])
        child[0] = process.pid
        os.close(writing)
        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGHUP, reopen if "-H" in given else signal.SIG_DFL)
        while chunk := os.read(reading, 4096):
            os.write(log, chunk)
        process.wait()
        os.close(reading)
        if not ending[0]:
            if "-R" not in given and "-r" not in given:
                break
            time.sleep(0.1)  # not as long as -R says: tests wait for it
    pidfile.unlink()


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


if __name__ == "__main__":
    daemon(sys.argv[1:])
