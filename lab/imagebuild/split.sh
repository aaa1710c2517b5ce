#!/bin/sh
# Usage: split.sh ROOT OUT SECTORS LOG_FILE...
# Takes the data directory out of the root file system ROOT, to OUT/data.tree, and the
# LOG_FILEs out of that, to OUT/log.tree. Mount points stay behind, and what the guest's boot
# script compares its data disk with: that disk's SECTORS.
set -eu
root=$1 out=$2 sectors=$3
shift 3
mv "$root/var/lib/mysql" "$out/data.tree"
mkdir "$out/log.tree"
chown --reference="$out/data.tree" "$out/log.tree"
chmod --reference="$out/data.tree" "$out/log.tree"
for file in "$@"; do
    mv "$out/data.tree/$file" "$out/log.tree/"
done
mkdir -p "$root/var/lib/mysql" "$root/var/lib/mysqllog" "$root/etc/lab"
echo "$sectors" >"$root/etc/lab/data-sectors"
