"""Hashes of passwords, against crypt(3) and a published vector; on a real server elsewhere."""

from __future__ import annotations

import ctypes
import ctypes.util

import pytest

from lab.passwords import caching_sha2, native, sha256_crypt


def test_native_is_the_server_s() -> None:
    """The hash of `password`, as MySQL's manual has it."""
    assert native("password") == "*2470C0C06DEE42FD1618BB99005ADCA2EC9D1E19"


@pytest.mark.parametrize("key", ["", "a", "password", "ü" * 40])
@pytest.mark.parametrize("salt", ["saltstring", "0123456789./abAB"])
def test_sha256_crypt_is_the_library_s(key: str, salt: str) -> None:
    """Protects logins to MySQL: a digest that differs lets nobody in."""
    name = ctypes.util.find_library("crypt")
    if name is None:
        pytest.skip("no libcrypt")
    crypt = ctypes.CDLL(name).crypt
    crypt.restype = ctypes.c_char_p
    wanted = crypt(key.encode(), f"$5${salt}".encode()).decode().rpartition("$")[2]
    assert sha256_crypt(key.encode(), salt.encode()) == wanted


def test_each_password_has_a_salt_of_its_own() -> None:
    first, second = caching_sha2("x"), caching_sha2("x")
    assert first != second
    assert len(first) == len("$A$005$") + 20 + 43
    assert caching_sha2("x", first[7:27]) == first
