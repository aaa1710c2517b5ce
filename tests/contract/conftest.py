"""Asserts in the contract's own modules explain themselves as those in test files do."""

import pytest

pytest.register_assert_rewrite(
    "hypervisor_basics",
    "hypervisor_memory",
    "hypervisor_site",
    "storage_basics",
    "storage_contract",
    "storage_crashes",
    "storage_imports",
    "storage_place",
    "storage_streams",
)
