"""The unit of systemd, run by the systemd of a node: what the service does as root works in it."""

from __future__ import annotations

import pytest

from tests import ROOT
from tests.e2e.e2e_site import PXC, Site

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

UNIT = ROOT / "packaging/systemd/lab.service"

WORK = r"""#!/bin/sh
# What a build of an image, a backup of ZFS and the service itself need; then what nobody needs.
set -eu
cd /var/lib/lab
echo home >file
unshare --fork --kill-child --pid --mount-proc --mount --net -- sh -euc '
    mkdir root
    mount -t tmpfs tmpfs root
    mkdir root/proc root/usr
    mknod root/null c 1 3
    : >root/setuid
    chown 123:456 root/setuid
    chmod 4755 root/setuid
    mount -t proc proc root/proc
    mount --bind /usr root/usr
    for name in bin lib lib64; do ln -s "usr/$name" "root/$name"; done
    chroot root /bin/true
'
echo builds
echo x >/tmp/file
perl -e 'for (1, 2, 10, 16) { socket(S, $_, 2, 0) or die "family $_: $!" }'
echo sockets
ulimit -n
ulimit -c
no() { if "$@" 2>/dev/null; then echo "works: $*"; fi; }
for place in /etc /usr /boot /var /var/lib; do no touch "$place/file"; done
no touch /proc/sys/kernel/hostname /root/file
no sh -c 'echo x >/proc/sys/kernel/hostname'
no unshare --user true
no date -s 2000-01-01
no perl -e 'socket(S, 17, 2, 0) or exit 1'
no cat /root/secret
grep -e '^NoNewPrivs' -e '^CapBnd' /proc/self/status
echo end
"""


def test_what_root_is_needed_for_works_and_the_rest_does_not(site: Site) -> None:
    """Protects image builds, libvirt and ZVols from the fence, and the host from the service."""
    unit = UNIT.read_text().replace("/opt/lab/.venv/bin/lab serve", "/usr/local/bin/work")
    unit = unit.replace("StandardOutput=null", "Type=oneshot\nStandardOutput=truncate:/run/said")
    unit = unit.replace("Restart=on-failure\n", "StandardError=truncate:/run/wrong\n")
    with site.up(*PXC, "--name", site.name("fence")) as view:
        name = view["name"]
        for path, text in (
            ("/usr/local/bin/work", WORK),
            ("/etc/systemd/system/fence.service", unit),
            ("/root/secret", "mine"),
        ):
            argv = ["exec", "--stdin", name, "--", "sh", "-c", f"cat >{path} && chmod 755 {path}"]
            site.lab(*argv, stdin=text)
        done = site.lab(
            "exec", name, "--", "sh", "-c",
            "systemctl start fence; cat /run/said; cat /run/wrong; journalctl -u fence -o cat",
            code=None,
        )  # fmt: skip
    works = [line for line in done.stdout.splitlines() if line.startswith("works: ")]
    assert works == [], done.stdout
    for word in ("builds", "sockets", "16384", "0", "NoNewPrivs:\t1", "end"):
        assert word in done.stdout.splitlines(), done.stdout
