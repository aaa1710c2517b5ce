#!/bin/sh
# Runs once, inside the new root file system, without network: the drivers for the initial RAM
# disk, and a system without services. Its init comes with each boot (testvm/guest).
set -eu
[ "${LAB_IMAGE_BUILD:-}" = inside ] || { echo "not in an image build" >&2; exit 1; }

release=$(ls /usr/lib/modules)
depmod "$release"
work=/tmp/initrd
mkdir -p "$work/bin" "$work/dev" "$work/root" "$work/modules"
cp "$(command -v busybox)" "$work/bin/busybox"
# The drivers of the root disk, unless built in, in loading order.
for driver in virtio_pci virtio_blk ext4; do
    modprobe -S "$release" --show-depends "$driver"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >/tmp/drivers
n=10
while read -r module; do
    n=$((n + 1))
    case "$module" in
        *.xz) xz -dc "$module" ;;
        *.zst) zstd -qdc "$module" ;;
        *) cat "$module" ;;
    esac >"$work/modules/$n.ko"
done </tmp/drivers
(cd "$work" && busybox find . | busybox cpio -o -H newc) >/boot/initrd

: >/etc/fstab
ln -sf /proc/self/mounts /etc/mtab
rm -f /etc/resolv.conf
echo testvm >/etc/hostname
printf '127.0.0.1 localhost testvm\n' >/etc/hosts
# Compiled here once instead of in each boot.
python3 -m compileall -q /opt/python >/dev/null || true
