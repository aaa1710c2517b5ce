#!/bin/sh
# What a builder does at the end of its first boot: it builds an image, writes what came of it
# as a tar archive over the disk with the serial number lab-result, and switches itself off.
# It is a guest with a vendor's cloud image (see lab/imagebuild/in_guest/builder.py), Debian or a kin.
set -u
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
# Emulated, programs start several times as fast at addresses that stay (see guest/usr/lib/lab/init).
if grep -q "QEMU TCG" /proc/cpuinfo; then
    echo 0 >/proc/sys/kernel/randomize_va_space
fi
seed="" result=""
for disk in /sys/block/vd* /sys/block/nvme*; do
    [ -r "$disk/serial" ] || continue
    read -r serial <"$disk/serial" || : # ends without a newline
    case "$serial" in
        lab-seed) seed="/dev/${disk##*/}" ;;
        lab-result) result="/dev/${disk##*/}" ;;
    esac
done
work=/var/tmp/lab-build
mkdir -p "$work/out" /run/lab-seed /opt/lab

build() {
    set -eu
    mount -t vfat -o ro "$seed" /run/lab-seed
    tar -xf /run/lab-seed/lab.tar -C /opt/lab
    # shellcheck source=/dev/null
    . /run/lab-seed/job
    missing=""
    while read -r tool package; do
        command -v "$tool" >/dev/null || missing="$missing $package"
    done </run/lab-seed/tools
    if [ -n "$missing" ]; then
        apt-get -q -o Acquire::Retries=3 update
        # shellcheck disable=SC2086  # words
        apt-get -q -y -o Acquire::Retries=3 install --no-install-recommends $missing
    fi
    cd /opt/lab
    exec python3 -m lab.imagebuild "$RECIPE" "$work/out" --layout "$LAYOUT" --mirror "$MIRROR"
}

(build) </dev/null >>"$work/out/build.log" 2>&1
echo "$?" >"$work/out/status"
cd "$work/out" && find . -maxdepth 1 -type f -printf '%f\0' |
    tar --format=gnu --sparse --null -T - -cf "$result"
sync
poweroff
