"""QEMU guests through libvirt."""
