"""Stand-ins for Percona's and Oracle's packages: what recipes meet in them; they store no data.

They have the shipped packages' names, files and properties as their sources have them
(percona-xtradb-cluster, build-ps/debian; mysql-server, packaging/deb-in).

Percona's: a unit that requires remote-fs.target, options that are not lab's, a maintainer script
that initialises an empty data directory and starts a server with those options. A cluster refuses
statements until it is ready, RANDOM PASSWORD always; its stop waits for
pxc_maint_transition_period and leaves a Galera state. Percona Server's are the same without a
cluster: nothing to wait for, no state, RANDOM PASSWORD.

Oracle's: the packages with ``core`` in their names have no maintainer scripts, no account, no
directories and no unit; its mysql-common is newer than Debian's, and without the script by which
MariaDB's packages choose an option file. The account, the directories, the unit, the question for
root's password and the script that starts a server are those of mysql-community-server.

The programs answer the recipes' calls as the real ones do, as far as the sources say: options that
a version does not have are errors unless they are loose, keys, binary logs and saved buffer pools
are there unless options prevent them, and a directory for files (secure_file_priv) has to exist.
That a build with them works proves the recipe's order, paths and names, not that the servers do
what is said of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lab.imagebuild.recipe import Recipe
from tests.support.apt_repository import package, publish

CLUSTER = "percona-xtradb-cluster"
VERSIONS = {"trixie": "8.4.10-10-1.trixie", "bookworm": "8.0.45-36-1.bookworm"}
"""Of Percona's packages in a suite, as Percona writes them."""
OF_ORACLE = {
    "mysql-8.0": "8.0.46-1debian12",
    "mysql-8.4-lts": "8.4.9-1debian13",
    "mysql-innovation": "26.10.0-1debian13",
}
"""Of Oracle's packages in a component, as Oracle writes them."""
STARTS = "var/log/mysql-starts"
"""A line for each start of the server: its network namespace, and its arguments."""
STATEMENTS = "var/log/mysql-statements"
"""What the server was asked and did."""
SHUT = "shut"
"""The content of ibdata1 after a clean shutdown."""

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
use strict; use warnings; use Socket;
my ($cluster, $version) = (CLUSTER, VERSION);
my %known = map { $_ => 1 } qw(no-defaults initialize-insecure user datadir socket pid-file
    skip-networking skip-log-bin disable-log-bin mysqlx secure-file-priv auto-generate-certs
    caching-sha2-password-auto-generate-rsa-keys innodb-redo-log-capacity binlog-format
    innodb-buffer-pool-dump-at-shutdown innodb-autoinc-lock-mode);
$known{"sha256-password-auto-generate-rsa-keys"} = 1 if $version < 9;
$known{"mysql-native-password"} = 1 if $version >= 8.4 && $version < 9;
my %o = (datadir => "/var/lib/mysql", socket => "/run/mysqld/mysqld.sock");
for (@ARGV) {
    my ($loose, $n, $v) = /^--(loose-)?([\w-]+)(?:=(.*))?$/ or die "argument $_\n";
    if (!$known{$n} && !($cluster && $n =~ /^(?:wsrep|pxc)-/)) {
        next if $loose;
        die "[ERROR] [MY-000067] [Server] unknown variable '$n'.\n";
    }
    $o{$n} = $v // 1;
}
sub off { return ($o{$_[0]} // "ON") eq "OFF"; }
$o{user} or die "[ERROR] Please read how to run mysqld as root!\n";
my (undef, undef, $uid, $gid) = getpwnam($o{user}) or die "no user\n";
sub put {
    my ($name, $text) = @_;
    open(my $f, ">", $name) or die "$name: $!\n"; print $f $text; close $f;
    chown $uid, $gid, $name;
}
sub note { open(my $f, ">>", $_[0]) or die "$_[0]: $!\n"; print $f "$_[1]\n"; close $f; }
my $data = $o{datadir};
-d $data or die "$data is not there\n";
(stat $data)[4] == $uid or die "$data is not of $o{user}\n";
my $files = $o{"secure-file-priv"} // "/var/lib/mysql-files";
$files eq "NULL" || -d $files
    or die "Failed to access directory for --secure-file-priv: $files\n";
sub keys_in_place {
    unless (off("auto-generate-certs")) { put("$data/$_.pem", "x") for qw(ca ca-key server-key) }
    my $own = off("caching-sha2-password-auto-generate-rsa-keys");
    $own &&= $version >= 9 || off("sha256-password-auto-generate-rsa-keys");
    put("$data/private_key.pem", "x") unless $own;
}
if ($o{"initialize-insecure"}) {
    opendir(my $d, $data) or die;
    die "--initialize specified but the data directory has files in it.\n"
        if grep { !/^\.\.?$/ } readdir $d;
    mkdir "$data/#innodb_redo" or die; chown $uid, $gid, "$data/#innodb_redo";
    put("$data/$_", "x") for "#innodb_redo/#ib_redo0", "ibdata1", "mysql.ibd", "auto.cnf";
    keys_in_place();
    exit 0;
}
-e "$data/ibdata1" or die "no data\n";
note("/var/log/mysql-starts", readlink("/proc/self/ns/net") . " @ARGV");
my $provider = $o{"wsrep-provider"} // "/usr/lib/galera4/libgalera_smm.so";
!$cluster || -e $provider or die "$provider is not there\n";
put("$data/$_", "x") for "ibdata1", "auto.cnf";
keys_in_place();
unless ($o{"skip-log-bin"} || $o{"disable-log-bin"}) {
    put("$data/$_", "x") for "binlog.000001", "binlog.index";
}
sub stop {
    if ($cluster) {
        sleep($o{"pxc-maint-transition-period"} // 10);
        put("$data/grastate.dat", "# GALERA saved state\nversion: 2.1\n"
            . "uuid:    6ba7b812-9dad-11d1-80b4-00c04fd430c8\nseqno:   4\n"
            . "safe_to_bootstrap: 1\n");
        put("$data/galera.cache", "x");
    }
    put("$data/ib_buffer_pool", "x") unless off("innodb-buffer-pool-dump-at-shutdown");
    put("$data/ibdata1", "shut"); unlink $o{socket}; exit 0;
}
my $began = time;
socket(my $l, AF_UNIX, SOCK_STREAM, 0) or die; unlink $o{socket};
bind($l, sockaddr_un($o{socket})) or die "$o{socket}: $!\n"; listen($l, 5);
$SIG{TERM} = \&stop;
my (%plugins, %accounts, $zones);
my $native = $version < 8.4 || $version < 9 && ($o{"mysql-native-password"} // "") eq "ON";
while (accept(my $c, $l)) {
    local $/; my $sql = <$c>; my $answer = "";
    for my $s (grep { /\S/ } split /;/, $sql) {
        $s =~ s/\s+/ /g; $s =~ s/^ | $//g;
        my $ready = !$cluster || time - $began > 1;
        stop() if $s =~ /^SHUTDOWN/;
        if ($s =~ /^SHOW STATUS LIKE 'wsrep_ready'/) {
            $answer .= "wsrep_ready\t" . ($ready ? "ON" : "OFF") . "\n"; next;
        }
        if ($s =~ ($cluster ? qr/^SELECT 1/ : qr/^(SELECT 1|PING)/)) { $answer .= "1\n"; next; }
        if ($s =~ /COUNT.* mysql.time_zone_name$/) { $answer .= ($zones // 0) . "\n"; next; }
        if ($s =~ /^INSERT INTO time_zone_name /) { $zones++; next; }
        next if $s =~ /^(SET SESSION |DO 0$)/;
        my $library = $s =~ /^INSTALL PLUGIN \w+ SONAME '(\S+)'/ ? $1 : "auth_socket.so";
        my $error = !$ready ? "1047 (08S01): WSREP has not yet prepared node"
            : $s !~ /^(INSTALL PLUGIN|CREATE USER|ALTER USER|GRANT) / ? "1064 (42000): syntax: $s"
            : $cluster && $s =~ /RANDOM PASSWORD/
            ? "1105: RANDOM PASSWORD is not supported in cluster mode"
            : !-e "/usr/lib/mysql/plugin/$library" ? "1126: no $library"
            : $s =~ /WITH auth_socket/ && !$plugins{auth_socket} ? "1524: no plugin"
            : $s =~ /WITH mysql_native_password/ && !$native ? "1524: no plugin"
            : $s =~ /^GRANT .* TO (\S+)/ && !$accounts{$1}
            ? "1410: You are not allowed to create a user with GRANT"
            : "";
        $plugins{$1} = 1 if $s =~ /^INSTALL PLUGIN (\w+)/;
        $accounts{$1} = 1 if $s =~ /^CREATE USER (\S+)/;
        if ($error) { $answer .= "ERROR $error\n"; last; }
        note("/var/log/mysql-statements", $s);
    }
    print $c $answer; close $c;
}
"""

_ZONES = r"""#!/bin/sh
# A zone is a file that begins with TZif.
cd "$1" || exit 1
statement="INSERT INTO time_zone_name (Name, Time_zone_id) VALUES"
grep -RlaF TZif . | sed "s|^./\(.*\)|$statement ('\1', 1);|"
"""

_CLIENT = r"""#!/usr/bin/perl
use strict; use warnings; use Socket;
my ($socket, $sql) = ("/run/mysqld/mysqld.sock");
while (@ARGV) {
    $_ = shift;
    if (/^--socket=(.*)/) { $socket = $1 } elsif (/^-(?:NB)?e$/) { $sql = shift }
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


_COMMON_POSTINST = """#!/bin/bash
set -e
if [ "$1" = "configure" ]; then
    update-alternatives --install /etc/mysql/my.cnf my.cnf /etc/mysql/my.cnf.fallback 100
fi
"""

_ORACLE_UNIT = """[Unit]
Description=MySQL Community Server
After=network-online.target
Wants=network-online.target
[Install]
WantedBy=multi-user.target
[Service]
User=mysql
Group=mysql
Type=notify
PermissionsStartOnly=true
ExecStartPre=/usr/share/mysql-8.4/mysql-systemd-start pre
ExecStart=/usr/sbin/mysqld
"""

_ORACLE_OPTIONS = """[mysqld]
pid-file=/var/run/mysqld/mysqld.pid
socket=/var/run/mysqld/mysqld.sock
datadir=/var/lib/mysql
log-error=/var/log/mysql/error.log
"""

_ORACLE_TEMPLATES = """Template: mysql-community-server/root-pass
Type: password
Description: Enter root password:
"""

_ORACLE_CONFIG = """#!/bin/sh
. /usr/share/debconf/confmodule
db_input high mysql-community-server/root-pass || :
db_go || :
"""

_ORACLE_POSTINST = """#!/bin/bash
. /usr/share/debconf/confmodule
set -e
[ "$1" = configure ] || exit 0
update-alternatives --force --install /etc/mysql/my.cnf my.cnf /etc/mysql/mysql.cnf 200
for directory in /var/lib/mysql /var/lib/mysql-files /var/lib/mysql-keyring /run/mysqld; do
    [ -d $directory ] || install -d -m0750 -omysql -gmysql $directory
done
if [ -z "$(ls -A /var/lib/mysql)" ]; then
    db_get mysql-community-server/root-pass && password=${RET}
    mysqld --initialize-insecure --user=mysql >/dev/null
    mysqld --user=mysql --socket=/run/mysqld/init.sock >/dev/null 2>&1 &
    until mysql --socket=/run/mysqld/init.sock -e 'DO 0' >/dev/null 2>&1; do sleep 0.1; done
    if [ -n "$password" ]; then
        echo "ALTER USER root@localhost IDENTIFIED BY '$password';"
    else
        echo "INSTALL PLUGIN auth_socket SONAME 'auth_socket.so';"
        echo "ALTER USER root@localhost IDENTIFIED WITH auth_socket;"
    fi | mysql --socket=/run/mysqld/init.sock
    mysqladmin --socket=/run/mysqld/init.sock shutdown
    wait
fi
db_stop
deb-systemd-helper enable mysql.service
"""

PLUGINS = (
    "auth_socket", "connection_control", "group_replication", "mysql_clone", "mysql_no_login",
    "rewriter", "semisync_master", "semisync_replica", "semisync_slave", "semisync_source",
    "validate_password", "version_token",
)  # fmt: skip
"""Libraries of mysql-community-server-core that labs could use, without .so."""


def fields(name: str, version: str, depends: str = "", **more: str) -> dict[str, str]:
    """The control file of a package; ``more``: further fields, ``Pre_Depends`` for Pre-Depends."""
    found = {"Package": name, "Version": version, "Architecture": "amd64",
             "Maintainer": "x <x@example.org>"}  # fmt: skip
    found |= {"Depends": depends} if depends else {}
    return found | {field.replace("_", "-"): value for field, value in more.items()}


def _server(version: str, *, cluster: bool) -> str:
    """The server's program of a version."""
    series = ".".join(version.split(".")[:2])
    return _MYSQLD.replace("CLUSTER", str(int(cluster))).replace("VERSION", series)


def write(root: Path, scratch: Path, recipe: Recipe) -> Path:
    """Build a recipe's packages below ``root`` and index them; the Release file to be signed."""
    assert recipe.repository is not None
    suite, component = recipe.repository.suite, recipe.repository.component
    if recipe.engine == "mysql":
        made = _of_oracle(OF_ORACLE[component])
    else:
        made = _of_percona(recipe.packages[0].removesuffix("-server"), VERSIONS[suite])
    entries = []
    for control, files in made:
        deb = root / f"{control['Package']}.deb"
        entries.append((package(scratch, deb, control, files), deb))
    return publish(root, suite, entries, component)


_Package = tuple[Mapping[str, str], Mapping[str, str]]


def _of_percona(product: str, version: str) -> list[_Package]:
    depends = f"{product}-client, qpress, percona-telemetry-agent, perl-base"
    return [
        (fields(f"{product}-server", version, depends, Pre_Depends="adduser"), {
            "DEBIAN/preinst": _PREINST,
            "DEBIAN/postinst": _POSTINST,
            "DEBIAN/conffiles": "/etc/mysql/mysql.cnf\n/etc/mysql/mysql.conf.d/mysqld.cnf\n",
            "etc/mysql/mysql.cnf": "!includedir /etc/mysql/mysql.conf.d/\n",
            "etc/mysql/mysql.conf.d/mysqld.cnf": _OPTIONS,
            "usr/lib/systemd/system/mysql.service": _UNIT,
            "usr/lib/galera4/libgalera_smm.so": "x",
            "usr/lib/mysql/plugin/auth_socket.so": "x",
            "usr/sbin/mysqld": _server(version, cluster=product == CLUSTER),
            "usr/bin/mysql-systemd": "#!/bin/bash\nexit 0\n",
            "usr/bin/mysql_tzinfo_to_sql": _ZONES,
        }),
        (fields(f"{product}-client", version), {
            "usr/bin/mysql": _CLIENT, "usr/bin/mysqladmin": _CLIENT,
        }),
        (fields("qpress", version), {"usr/bin/qpress": "#!/bin/sh\n"}),
        (fields("percona-telemetry-agent", version), {
            "DEBIAN/postinst": _AGENT_POSTINST,
            "usr/lib/systemd/system/percona-telemetry-agent.service": _AGENT,
            "usr/bin/percona-telemetry-agent": "#!/bin/sh\n",
        }),
    ]  # fmt: skip


def _of_oracle(version: str) -> list[_Package]:
    name, plugins = "mysql-community", "usr/lib/mysql/plugin"
    return [
        (fields("mysql-common", version, Pre_Depends="debconf (>= 0.2.17)",
                Multi_Arch="foreign"), {
            "DEBIAN/postinst": _COMMON_POSTINST,
            "DEBIAN/conffiles": "/etc/mysql/my.cnf.fallback\n/etc/mysql/conf.d/mysql.cnf\n",
            "etc/mysql/my.cnf.fallback": "!includedir /etc/mysql/conf.d/\n",
            "etc/mysql/conf.d/mysql.cnf": "[mysql]\n",
        }),
        (fields(f"{name}-client-plugins", version), {
            f"{plugins}/authentication_ldap_sasl_client.so": "x",
        }),
        (fields(f"{name}-client-core", version, f"{name}-client-plugins (= {version})",
                Conflicts="mysql-client-core-8.0", Provides="virtual-mysql-client-core"), {
            "usr/bin/mysql": _CLIENT, "usr/bin/mysqldump": "#!/bin/sh\n",
        }),
        (fields(f"{name}-client", version,
                f"mysql-common (>= {version}), {name}-client-core (= {version})",
                Breaks="mysql-common (<< 8.0.1)"), {
            "usr/bin/mysqladmin": _CLIENT, "usr/bin/mysqlcheck": "#!/bin/sh\n",
        }),
        (fields("mysql-client", version, f"{name}-client (= {version})"), {}),
        (fields(f"{name}-server-core", version, "perl-base", Recommends="mecab-ipadic-utf8",
                Breaks="mysql-common (<< 8.0.32)", Conflicts="mysql-server-core-8.0"), {
            "usr/sbin/mysqld": _server(version, cluster=False),
            "usr/bin/mysql_tzinfo_to_sql": _ZONES,
            **{f"{plugins}/{one}.so": "x" for one in PLUGINS},
        }),
        (fields(f"{name}-server", version,
                f"mysql-common (>= {version}), mysql-client (= {version}),"
                f" {name}-server-core (= {version}), psmisc",
                Pre_Depends="debconf (>= 0.2.17), adduser"), {
            "DEBIAN/preinst": _PREINST,
            "DEBIAN/templates": _ORACLE_TEMPLATES,
            "DEBIAN/config": _ORACLE_CONFIG,
            "DEBIAN/postinst": _ORACLE_POSTINST,
            "DEBIAN/conffiles": "/etc/mysql/mysql.cnf\n/etc/mysql/mysql.conf.d/mysqld.cnf\n"
                                "/etc/apparmor.d/usr.sbin.mysqld\n",
            "etc/mysql/mysql.cnf": "!includedir /etc/mysql/mysql.conf.d/\n",
            "etc/mysql/mysql.conf.d/mysqld.cnf": _ORACLE_OPTIONS,
            "etc/apparmor.d/usr.sbin.mysqld": "/usr/sbin/mysqld { }\n",
            "usr/lib/systemd/system/mysql.service": _ORACLE_UNIT,
        }),
    ]  # fmt: skip
