#!/bin/sh
# Runs once, inside the new root file system, without network: compiles ZFS for its kernel.
# What DKMS would do, but without debug information, strip, signing and compression, which
# cost minutes; and the compiler is gone afterwards.
set -eu
[ "${LAB_IMAGE_BUILD:-}" = inside ] || { echo "not in an image build" >&2; exit 1; }

release=$(ls /usr/lib/modules)
headers=/usr/src/linux-headers-$release
work=/var/tmp/zfs
dpkg-deb --fsys-tarfile /var/tmp/zfs-dkms_*.deb | tar -xf - -C /var/tmp ./usr/src
mv /var/tmp/usr/src/zfs-* "$work"
rm -rf /var/tmp/usr /var/tmp/zfs-dkms_*.deb
cd "$work"
# What make reads, not what the compiler does: debug information would double the work, and
# the module's type information (BTF) is made from that.
sed -i '/^CONFIG_DEBUG_INFO/d' "$headers/include/config/auto.conf"
./configure --quiet --disable-dependency-tracking --with-config=kernel \
    --with-linux="$(readlink -f "/usr/lib/modules/$release/source" || echo "$headers")" \
    --with-linux-obj="$headers"
make --quiet -j"$(nproc)"
mkdir -p "/usr/lib/modules/$release/extra"
find module -name '*.ko' -exec strip --strip-debug {} + -exec cp {} "/usr/lib/modules/$release/extra" \;
