"""A hostile server in an image build: what it finds of this machine, as root of its container."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.errors import LabError, RecipeFailed
from lab.imagebuild import isolate
from lab.imagebuild.build import own
from lab.run import run
from tests.support.tiny_root import tiny_root

pytestmark = pytest.mark.skipif(
    not shutil.which("perl") or platform.machine() != "x86_64", reason="needs perl on x86_64"
)

ESCAPE = r"""#!/usr/bin/perl
# As whom, and what of the host can be reached: by another chroot, /proc, devices, mounts.
$| = 1;
sub names { opendir(my $top, $_[0]) or die $!; return grep { !/^\.\.?$/ } readdir $top }
my ($secret, $key) = @ARGV;
print "uid $<\n";
for my $path ("/proc/1/root$secret", "/proc/1/cwd$secret", "/proc/self/root/../..$secret") {
    open(my $file, "<", $path) and print "BAD $path\n";
}
for my $path ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/kernel/modprobe") {
    open(my $file, "+<", $path) and print "BAD $path\n";
}
chmod(0666, "/dev/null") and print "BAD mode of the device null\n";
print "BAD device $_\n" for grep { !/^(fd|full|null|random|shm|urandom|zero)$/ } names("/dev");
my ($node, $none, $at, $kind) = ("/node", "none", "/mnt", "tmpfs");
syscall(133, $node, 0020666, 259) == 0 and print "BAD mknod\n";
syscall(165, $none, $at, $kind, 0, 0) == 0 and print "BAD mount\n";
syscall(272, 0x10000000) == 0 and print "BAD user namespace\n";
syscall(29, $key + 0, 1, 0) >= 0 and print "BAD segment of the host\n";
print "BAD process $_\n" for grep { /^\d+$/ && $_ != $$ && $_ != 1 } names("/proc");
open(my $status, "<", "/proc/self/status"); print grep /^(Cap|NoNew)/, <$status>;
open(my $adjust, "<", "/proc/self/oom_score_adj"); print "oom ", <$adjust>;
# The last, as whatever succeeds after it is done to the host.
mkdir "/tmp/x"; chroot "/tmp/x" and print "BAD chroot\n";
chdir ".." for 1 .. 64; chroot ".";
open(my $file, "<", $secret) and print "BAD file of the host: ", <$file>;
system "echo limits; ulimit -c; ulimit -n";
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root file system that has perl, a shell, and the hostile server."""
    try:
        isolate.check()
    except LabError as error:
        pytest.skip(f"no namespaces here: {error}")
    top = tiny_root(tmp_path / "rootfs")
    server = top / "usr/bin/mysqld"
    server.write_text(ESCAPE)
    server.chmod(0o755)
    return top


def test_a_server_as_root_reaches_nothing_of_the_host(root: Path, tmp_path: Path) -> None:
    """Protects the host: `--user=mysql` is a request, which a hostile program does not follow."""
    secret = tmp_path / "secret"
    secret.write_text("host-secret")
    made = subprocess.run(["ipcmk", "-M", "4096"], capture_output=True, text=True, check=True)
    segment = made.stdout.split()[-1]
    keys = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    key = next(words[0] for words in keys if words[1] == segment)
    try:
        said = run(
            [*isolate.contained(root), "/usr/bin/mysqld", str(secret), key], timeout=60
        ).stdout
    finally:
        subprocess.run(["ipcrm", "-m", segment], check=True)
    assert "BAD" not in said, said
    assert "uid 0" in said
    assert "NoNewPrivs:\t1" in said
    # chown, dac_override, fowner, fsetid, kill, setgid, setuid
    assert set(re.findall(r"Cap(?:Prm|Eff|Bnd):\s+(\w+)", said)) == {"00000000000000fb"}
    assert set(re.findall(r"Cap(?:I.h|Amb):\s+(\w+)", said)) == {"0000000000000000"}
    assert "oom 1000" in said
    assert said.split("limits\n")[1].split() == ["0", "16384"]
    assert not [*(root / "dev").iterdir(), *(root / "proc").iterdir(), *(root / "tmp").iterdir()]


def test_files_have_the_owners_that_they_are_given(root: Path) -> None:
    perl = 'open(F, ">", "/x"); chown(100, 101, "/x") or die $!; chmod(04750, "/x") or die $!'
    run([*isolate.contained(root), "/usr/bin/perl", "-e", perl], timeout=60)
    if os.geteuid() == 0:
        status = (root / "x").stat()
        assert (status.st_uid, status.st_gid) == (100, 101)
        assert status.st_mode & 0o7777 == 0o4750


def test_servers_can_connect_to_their_own_addresses(root: Path) -> None:
    """Galera listens at 127.0.0.1, and no program in the container may set up a network."""
    perl = (
        "socket(S, 2, 1, 6) or die; bind(S, pack('SnC4x8', 2, 4567, 127, 0, 0, 1)) or die;"
        "listen(S, 1) or die; socket(C, 2, 1, 6);"
        "connect(C, pack('SnC4x8', 2, 4567, 127, 0, 0, 1)) or die $!; print 'connected'"
    )
    assert run([*isolate.contained(root), "/usr/bin/perl", "-e", perl], timeout=60).stdout == (
        "connected"
    )


@pytest.mark.parametrize("name", ["dev", "proc", "tmp"])
def test_a_link_in_the_place_of_a_mount_is_refused(root: Path, tmp_path: Path, name: str) -> None:
    """An earlier program may have left it: what is mounted there would be in the host's place."""
    (root / name).rmdir()
    (root / name).symlink_to(tmp_path)
    with pytest.raises(LabError) as refused:
        run([*isolate.contained(root), "/usr/bin/perl", "-e", "print 1"], timeout=60)
    assert f"{name} of the image is no directory" in refused.value.details[-1]


def test_what_leads_out_of_an_image_is_not_read(tmp_path: Path) -> None:
    """Its kernel and initrd are read as root, and published: a link would publish a secret."""
    root = tmp_path / "rootfs"
    (root / "boot").mkdir(parents=True)
    (root / "boot/real").write_text("x")
    (root / "boot/initrd").symlink_to("real")
    (root / "boot/vmlinuz-1").symlink_to("/etc/shadow")
    (root / "etc").symlink_to("/etc")
    (root / "boot/loop").symlink_to("loop")
    os.mkfifo(root / "boot/pipe")
    assert own(root, "boot/initrd").read_text() == "x"
    for name in ("boot/vmlinuz-1", "etc", "etc/passwd", "boot/pipe", "boot/loop", "boot/absent"):
        with pytest.raises(RecipeFailed, match=f"/{name} of the image"):
            own(root, name)
