"""A hypervisor, storage and images that only behave like real ones."""
