#!/bin/sh
# Usage: ask.sh ROOT BASE PATHS PROGRAM ARGUMENT...
# Runs a program of a build that lies in BASE, with the system libraries in ROOT, as nobody, who can write
# nothing. To be called in namespaces of its own, without network. PATHS: LD_LIBRARY_PATH.
set -eu
root=$1 base=$2 paths=$3
shift 3
mkdir -p "$root/opt/lab/server" "$root/proc"
mount --rbind "$root" "$root"
mount --bind "$base" "$root/opt/lab/server"
mount -o remount,bind,ro,nosuid,nodev "$root/opt/lab/server"
# A container may forbid a fresh /proc; this namespace's own does as well.
mount -t proc proc "$root/proc" || mount --rbind /proc "$root/proc"
mount -o remount,bind,ro,nosuid,nodev "$root"
cd /
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C LD_LIBRARY_PATH="$paths" \
    prlimit --as=4294967296 --cpu=60 --core=0 --fsize=0 --nproc=64 --nofile=256 \
    setpriv --no-new-privs chroot --userspec=65534:65534 --groups= "$root" "$@"
