"""What servers keep of passwords, so that no statement of ours has one in clear text."""

from __future__ import annotations

import hashlib
from typing import Final

NATIVE: Final = "mysql_native_password"
CACHING_SHA2: Final = "caching_sha2_password"

_ALPHABET = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SALT = 20
"""Characters of a salt in MySQL; crypt(3) takes 16."""
_ROUNDS = 5000


def native(password: str) -> str:
    """What ``mysql_native_password`` keeps: SHA1 of SHA1, as a server writes it."""
    inner = hashlib.sha1(password.encode(), usedforsecurity=False).digest()
    return "*" + hashlib.sha1(inner, usedforsecurity=False).hexdigest().upper()


def caching_sha2(password: str, salt: str = "") -> str:
    """What ``caching_sha2_password`` keeps: ``$A$005$``, the salt and the digest.

    5 stands for thousands of rounds. ``salt``: 20 characters; empty: a random one.
    """
    from secrets import choice  # a list of labs needs the names of plugins alone

    salt = salt or "".join(choice(_ALPHABET) for _ in range(_SALT))
    return f"$A$005${salt}{sha256_crypt(password.encode(), salt.encode())}"


def sha256_crypt(key: bytes, salt: bytes) -> str:
    """The digest of 5000 rounds of SHA-256, 43 characters.

    Source: Ulrich Drepper, "Unix crypt using SHA-256 and SHA-512", whose steps the comments count;
    in MySQL salts may be longer.
    """
    second = _sha256(key + salt + key)  # 4 to 8
    text = key + salt + _repeated(second, len(key))  # 1 to 3, 9, 10
    length = len(key)
    while length:  # 11
        text += second if length & 1 else key
        length >>= 1
    first = _sha256(text)  # 12
    keys = _repeated(_sha256(key * len(key)), len(key))  # 13 to 16
    salts = _repeated(_sha256(salt * (16 + first[0])), len(salt))  # 17 to 20
    digest = first
    for number in range(_ROUNDS):  # 21
        text = keys if number & 1 else digest
        text += salts if number % 3 else b""
        text += keys if number % 7 else b""
        digest = _sha256(text + (digest if number & 1 else keys))
    found = ""  # 22
    for number in range(10):
        start = (0, 21, 12, 3, 24, 15, 6, 27, 18, 9)[number]
        order = [start, (start + 10) % 30, (start + 20) % 30]
        found += _encoded(bytes(digest[at] for at in order), 4)
    return found + _encoded(bytes([0, digest[31], digest[30]]), 3)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _repeated(data: bytes, length: int) -> bytes:
    return (data * (length // len(data) + 1))[:length]


def _encoded(three: bytes, characters: int) -> str:
    value = int.from_bytes(three, "big")
    return "".join(_ALPHABET[value >> (6 * number) & 63] for number in range(characters))
