#!/bin/sh
# Usage: ask.sh ROOT BASE PATHS PROGRAM ARGUMENT...
# Runs a program of a build that lies in BASE, with the system libraries in ROOT, as a user who owns and
# can write nothing. To be called in namespaces of its own, without network. PATHS: LD_LIBRARY_PATH.
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
# Segments would be memory beside the limits below. Older kernels refuse this to ordinary users, for whom they
# end with the namespace. Where memory runs out, this program is ended first.
{ echo 0 >/proc/sys/kernel/shmmni && echo 0 >/proc/sys/kernel/msgmni; } 2>/dev/null || :
echo 1000 >/proc/self/oom_score_adj
cd /
# A program has 1 GiB, and there are at most 16 with their threads. The user has no other programs, as nobody
# may have, which would count as well.
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C LD_LIBRARY_PATH="$paths" \
    prlimit --as=1073741824 --cpu=60 --core=0 --fsize=0 --nproc=16 --nofile=256 \
    setpriv --no-new-privs chroot --userspec=65533:65533 --groups= "$root" "$@"
