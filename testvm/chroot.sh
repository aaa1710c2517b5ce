#!/bin/sh
# Usage: chroot.sh ROOT COMMAND...
# Runs a command inside the root file system ROOT. To be called in a mount namespace of
# its own: nothing is unmounted here.
set -eu
root=$1
shift
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in null zero full random urandom tty; do
    : >"$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
ln -s /proc/self/fd "$root/dev/fd"
mkdir -m 1777 "$root/dev/shm"
# A container may forbid a fresh /proc; this namespace's own does as well.
mount -t proc proc "$root/proc" || mount --rbind /proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
exec chroot "$root" /usr/bin/env -i LAB_IMAGE_BUILD=inside HOME=/root LC_ALL=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
