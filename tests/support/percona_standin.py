"""Stand-ins for Percona's packages: what the recipe meets in them, and nothing that stores data.

Percona Server's are the same without a cluster: nothing to wait for, no state, RANDOM PASSWORD.

They have the shipped packages' names, files and properties as their sources have them
(percona-xtradb-cluster, build-ps/debian): a unit that requires remote-fs.target, options that are
not lab's, a maintainer script that initialises an empty data directory and starts a server with
those options. The programs answer the recipe's calls as the real ones do, as far as the sources
say: statements are refused until the cluster is ready, RANDOM PASSWORD always; a stop waits for
pxc_maint_transition_period and leaves a Galera state. That a build with them works proves the
recipe's order, paths and names, not that Percona's server does what is said of it.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.apt_repository import package, publish

CLUSTER = "percona-xtradb-cluster"
VERSIONS = {"trixie": "8.4.10-10-1.trixie", "bookworm": "8.0.45-36-1.bookworm"}
"""Of the packages in a suite, as Percona writes them."""
STARTS = "var/log/mysql-starts"
"""A line for each start of the server: its network namespace, and its arguments."""
STATEMENTS = "var/log/mysql-statements"
"""What the server was asked and did."""

_UNIT = """[Unit]
Description=Percona XtraDB Cluster
After=network.target local-fs.target remote-fs.target
Requires=local-fs.target remote-fs.target
[Install]
WantedBy=multi-user.target
Alias=mysqld.service
[Service]
Type=notify
User=mysql
ExecStartPre=/usr/bin/mysql-systemd start-pre
ExecStart=/usr/sbin/mysqld $_WSREP_START_POSITION
ExecStop=/usr/bin/mysql-systemd stop
"""

_OPTIONS = """[mysqld]
datadir=/var/lib/mysql
wsrep_provider=/usr/lib/galera4/libgalera_smm.so
wsrep_cluster_address=gcomm://
"""

_PREINST = """#!/bin/sh
set -e
getent passwd mysql >/dev/null || adduser --system --group --no-create-home --home /var/lib/mysql \\
    --shell /bin/false mysql >/dev/null
for directory in /var/lib/mysql /var/lib/mysql-files; do
    [ -d $directory ] || install -d -o mysql -g mysql -m 750 $directory
done
"""

_POSTINST = """#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
update-alternatives --force --install /etc/mysql/my.cnf my.cnf /etc/mysql/mysql.cnf 200
if [ -z "$(ls -A /var/lib/mysql)" ]; then
    mysqld --initialize-insecure --user=mysql >/dev/null
    mkdir -p /run/mysqld
    mysqld --user=mysql --socket=/run/mysqld/init.sock &
    until mysql --socket=/run/mysqld/init.sock -NBe 'SELECT 1' >/dev/null 2>&1; do sleep 0.1; done
    mysqladmin --socket=/run/mysqld/init.sock shutdown
    wait
fi
deb-systemd-helper enable mysql.service
"""

_MYSQLD = r"""#!/usr/bin/perl
use strict; use warnings; use Socket; use POSIX ();
my %o = (datadir => "/var/lib/mysql", socket => "/run/mysqld/mysqld.sock");
for (@ARGV) {
    my ($n, $v) = /^--(?:loose-)?([\w-]+)(?:=(.*))?$/ or die "argument $_\n";
    $o{$n} = $v // 1;
}
my (undef, undef, $uid, $gid) = getpwnam($o{user}) or die "no user\n";
sub put {
    my ($name, $text) = @_;
    open(my $f, ">", $name) or die "$name: $!\n"; print $f $text; close $f;
    chown $uid, $gid, $name;
}
sub note { open(my $f, ">>", $_[0]) or die "$_[0]: $!\n"; print $f "$_[1]\n"; close $f; }
my $data = $o{datadir};
(stat $data)[4] == $uid or die "$data is not of $o{user}\n";
if ($o{"initialize-insecure"}) {
    opendir(my $d, $data) or die;
    die "--initialize specified but the data directory has files in it.\n"
        if grep { !/^\.\.?$/ } readdir $d;
    mkdir "$data/#innodb_redo" or die; chown $uid, $gid, "$data/#innodb_redo";
    put("$data/$_", "x") for "#innodb_redo/#ib_redo0", "ibdata1", "mysql.ibd", "auto.cnf";
    exit 0;
}
-e "$data/ibdata1" or die "no data\n";
note("/var/log/mysql-starts", readlink("/proc/self/ns/net") . " @ARGV");
my $provider = $o{"wsrep-provider"} // "/usr/lib/galera4/libgalera_smm.so";
-e $provider or die "$provider is not there\n";
my $began = time;
socket(my $l, AF_UNIX, SOCK_STREAM, 0) or die; unlink $o{socket};
bind($l, sockaddr_un($o{socket})) or die "$o{socket}: $!\n"; listen($l, 5);
my %plugins;
while (accept(my $c, $l)) {
    local $/; my $sql = <$c>; my $answer = "";
    for my $s (grep { /\S/ } split /;/, $sql) {
        $s =~ s/\s+/ /g; $s =~ s/^ | $//g;
        my $ready = time - $began > 1;
        if ($s =~ /^SHUTDOWN/) {
            sleep($o{"pxc-maint-transition-period"} // 10);
            put("$data/grastate.dat", "# GALERA saved state\nversion: 2.1\n"
                . "uuid:    6ba7b812-9dad-11d1-80b4-00c04fd430c8\nseqno:   4\n"
                . "safe_to_bootstrap: 1\n");
            put("$data/galera.cache", "x"); unlink $o{socket}; exit 0;
        }
        if ($s =~ /^SHOW STATUS LIKE 'wsrep_ready'/) {
            $answer .= "wsrep_ready\t" . ($ready ? "ON" : "OFF") . "\n"; next;
        }
        if ($s =~ /^SELECT 1/) { $answer .= "1\n"; next; }
        if ($s =~ /time_zone_name$/) { $answer .= "600\n"; next; }
        next if $s =~ /^SET SESSION /;
        my $library = $s =~ /^INSTALL PLUGIN \w+ SONAME '(\S+)'/ ? $1 : "auth_socket.so";
        my $error = !$ready ? "1047 (08S01): WSREP has not yet prepared node"
            : $s =~ /RANDOM PASSWORD/ ? "1105: RANDOM PASSWORD is not supported in cluster mode"
            : !-e "/usr/lib/mysql/plugin/$library" ? "1126: no $library"
            : $s =~ /WITH auth_socket/ && !$plugins{auth_socket} ? "1524: no plugin" : "";
        $plugins{$1} = 1 if $s =~ /^INSTALL PLUGIN (\w+)/;
        if ($error) { $answer .= "ERROR $error\n"; last; }
        note("/var/log/mysql-statements", $s);
    }
    print $c $answer; close $c;
}
"""

_CLIENT = r"""#!/usr/bin/perl
use strict; use warnings; use Socket;
my ($socket, $sql) = ("/run/mysqld/mysqld.sock");
while (@ARGV) {
    $_ = shift;
    if (/^--socket=(.*)/) { $socket = $1 } elsif (/^-NBe$/) { $sql = shift }
    elsif (!/^-/ && $0 =~ /admin$/) { $sql = uc $_ }    # else it is a database
}
{ local $/; $sql //= <STDIN>; }
socket(my $c, AF_UNIX, SOCK_STREAM, 0) or die;
connect($c, sockaddr_un($socket)) or die "ERROR 2002 (HY000): Can't connect\n";
syswrite($c, $sql); shutdown($c, 1);
local $/; my $answer = <$c> // "";
if ($answer =~ /^(ERROR .*)/m) { print STDERR "$1\n"; exit 1; }
print $answer;
"""

_AGENT = """[Unit]
Description=Percona Telemetry Agent
[Service]
ExecStart=/usr/bin/percona-telemetry-agent
[Install]
WantedBy=multi-user.target
"""

_AGENT_POSTINST = """#!/bin/sh
deb-systemd-helper enable percona-telemetry-agent.service || :
systemctl start percona-telemetry-agent.service 2>/dev/null || :
"""


def fields(name: str, version: str, depends: str = "") -> dict[str, str]:
    """The control file of a package."""
    found = {"Package": name, "Version": version, "Architecture": "amd64",
             "Maintainer": "x <x@example.org>"}  # fmt: skip
    return {**found, **({"Depends": depends} if depends else {})}


def _without_cluster(program: str) -> str:
    """The server's program, as Percona Server's."""
    for part, instead in (
        ("-e $provider or", "1 or"),
        ("my $ready = time - $began > 1", "my $ready = 1"),
        ("$s =~ /RANDOM PASSWORD/", "0"),
        ("/^SELECT 1/", "/^(SELECT 1|PING)/"),
        ("sleep($o", "0 && sleep($o"),
        ('put("$data/grastate.dat"', '0 && put("$data/grastate.dat"'),
        ('put("$data/galera.cache", "x"); ', ""),
    ):
        assert part in program, part
        program = program.replace(part, instead)
    return program


def write(root: Path, scratch: Path, suite: str, product: str = CLUSTER) -> Path:
    """Build all packages below ``root`` and index them; the Release file to be signed."""
    version = VERSIONS[suite]
    server = fields(
        f"{product}-server",
        version,
        f"{product}-client, qpress, percona-telemetry-agent, perl-base",
    )
    mysqld = _MYSQLD if product == CLUSTER else _without_cluster(_MYSQLD)
    server["Pre-Depends"] = "adduser"
    made = {
        "server": (server, {
            "DEBIAN/preinst": _PREINST,
            "DEBIAN/postinst": _POSTINST,
            "DEBIAN/conffiles": "/etc/mysql/mysql.cnf\n/etc/mysql/mysql.conf.d/mysqld.cnf\n",
            "etc/mysql/mysql.cnf": "!includedir /etc/mysql/mysql.conf.d/\n",
            "etc/mysql/mysql.conf.d/mysqld.cnf": _OPTIONS,
            "usr/lib/systemd/system/mysql.service": _UNIT,
            "usr/lib/galera4/libgalera_smm.so": "x",
            "usr/lib/mysql/plugin/auth_socket.so": "x",
            "usr/sbin/mysqld": mysqld,
            "usr/bin/mysql-systemd": "#!/bin/bash\nexit 0\n",
        }),
        "client": (fields(f"{product}-client", version), {
            "usr/bin/mysql": _CLIENT, "usr/bin/mysqladmin": _CLIENT,
        }),
        "qpress": (fields("qpress", version), {"usr/bin/qpress": "#!/bin/sh\n"}),
        "agent": (fields("percona-telemetry-agent", version), {
            "DEBIAN/postinst": _AGENT_POSTINST,
            "usr/lib/systemd/system/percona-telemetry-agent.service": _AGENT,
            "usr/bin/percona-telemetry-agent": "#!/bin/sh\n",
        }),
    }  # fmt: skip
    entries = []
    for name, (control, files) in made.items():
        deb = root / f"{name}.deb"
        entries.append((package(scratch, deb, control, files), deb))
    return publish(root, suite, entries)
