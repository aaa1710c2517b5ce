"""Bundles that come from elsewhere: the lab in them, and what is refused."""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections.abc import Sequence

import pytest
import zstandard

from lab.bundle import packing as packs
from lab.bundle.packing import Parts, packing
from lab.bundle.unpacking import unpacking
from lab.errors import InvalidSpec

MANIFEST = {"lab": {"name": "shop"}, "at": 1.5, "why": "n1 is not ready"}


def bundled(lab: Sequence[bytes], manifest: object = MANIFEST) -> bytes:
    """A bundle; ``lab``: what is written of the lab, a call each."""
    to = io.BytesIO()
    with packing(to, "shop-1") as out:
        out.add("nodes/n1/error.log", "x" * 70_000)
        out.add_json("manifest.json", manifest)
        if lab:
            parts = Parts(out, "lab")
            for data in lab:
                parts.write(data)
            parts.finish()
    return to.getvalue()


def tarred(*members: tuple[str, bytes], kind: bytes = tarfile.REGTYPE) -> bytes:
    """A bundle as anybody may make it."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(f"shop-1/{name}")
            info.size, info.type = len(data), kind
            tar.addfile(info, io.BytesIO(data))
    return zstandard.compress(plain.getvalue())


@pytest.mark.parametrize("part", [7, 64, 1 << 20])
def test_the_lab_is_the_stream_that_was_written(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    """Protects the archive, whose parts end anywhere."""
    monkeypatch.setattr(packs, "PART", part)
    lab = [bytes([number]) * length for number, length in enumerate((1, 0, 6, 64, 9, 200))]
    with unpacking(io.BytesIO(bundled(lab))) as found:
        assert (found.manifest.lab, found.manifest.at) == ("shop", 1.5)
        assert found.manifest.why == "n1 is not ready"
        assert found.lab.read(3) == b"".join(lab)[:3]
        assert found.lab.read() == b"".join(lab)[3:]
        assert found.lab.read(1) == b""


def test_what_it_says_is_printable_and_short() -> None:
    """Protects the terminal of who opens a bundle of somebody else."""
    said = {"lab": {"name": "\x1b]0;x\x07"}, "at": 1, "why": "\n" * 900}
    with unpacking(io.BytesIO(bundled([b"x"], said))) as found:
        assert found.manifest.lab.isprintable()
        assert found.manifest.why.isprintable()
        assert len(found.manifest.why) <= 1000


LACKING = {**MANIFEST, "missing": [{"what": "n1: guest", "why": "it is stopped"},
                                   {"what": "the lab", "why": "no\x1b[1m space"}]}  # fmt: skip


def test_why_the_lab_is_not_in_it_is_said() -> None:
    """Protects who opens it from looking for the cause: the manifest has it."""
    what = r"^the bundle of shop has no lab in it: no\\x1b\[1m space$"
    with pytest.raises(InvalidSpec, match=what), unpacking(io.BytesIO(bundled([], LACKING))):
        pytest.fail("it was opened")


def test_a_lab_whose_export_failed_is_refused_with_the_reason() -> None:
    """Protects from half a lab, and from the search for a damaged copy: the last manifest says why.

    The first one was written before the lab, and did not know.
    """
    again = ("manifest.json", json.dumps(LACKING).encode())
    page = ("index.html", b"x")
    content = tarred(SAID, page, ("lab/000000", b"x" * 9), again, page)
    what = r"has no complete lab in it: no\\x1b\[1m space$"
    with unpacking(io.BytesIO(content)) as found:
        assert found.lab.read(9) == b"x" * 9
        with pytest.raises(InvalidSpec, match=what):
            found.lab.read(1)
    whole = tarred(SAID, page, ("lab/000000", b"x" * 9), SAID)
    large = tarred(SAID, ("lab/000000", b"x"), ("manifest.json", b" " * (5 << 20)))
    for bad in (whole, large):
        with (
            unpacking(io.BytesIO(bad)) as found,
            pytest.raises(InvalidSpec, match=r"damaged, or was cut off|not a bundle"),
        ):
            found.lab.read()


SAID = ("manifest.json", json.dumps(MANIFEST).encode())
REFUSED = {
    "nothing": (b"", "not a bundle"),
    "text": (b"hello", "not a bundle"),
    "zstd": (zstandard.compress(b"hello" * 9), "not a bundle"),
    "empty": (tarred(), "not a bundle"),
    "no manifest": (tarred(("lab/000000", b"x")), "not a bundle"),
    "another manifest": (tarred(("manifest.json", b"[]"), ("lab/000000", b"x")), "not a bundle"),
    "no UTF-8": (tarred(("manifest.json", b'{"lab": {"name": "\x80"}, "at": 1}')), "not a bundle"),
    "deep": (tarred(("manifest.json", b'{"x": ' + b"[" * 100_000)), "not a bundle"),
    "long manifest": (tarred(("manifest.json", b" " * (5 << 20))), "not a bundle"),
    "a large file": (tarred(("index.html", bytes(65 << 20)), SAID, ("lab/000000", b"x")), "not a"),
    "a time": (tarred(("manifest.json", b'{"lab": {"name": "x"}, "at": 1e300}')), "not a bundle"),
    "a link": (tarred(SAID, kind=tarfile.SYMTYPE), "not a bundle"),
    "no lab": (tarred(SAID), "has no lab in it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_bundle_is_refused(name: str) -> None:
    """Protects from errors of libraries, and from whatever a file may be."""
    content, why = REFUSED[name]
    with pytest.raises(InvalidSpec, match=why), unpacking(io.BytesIO(content)):
        pytest.fail("it was opened")


@pytest.mark.parametrize("names", [["lab/000000", "lab/000002"], ["lab/000000", "other"]])
def test_a_part_that_is_missing_is_found(names: list[str]) -> None:
    """Protects from an archive with a hole."""
    content = tarred(SAID, *((name, b"x") for name in names))
    with (
        unpacking(io.BytesIO(content)) as found,
        pytest.raises(InvalidSpec, match="damaged, or was cut off"),
    ):
        found.lab.read()


def test_a_file_that_was_cut_off_is_found() -> None:
    """Protects from half a lab, wherever it was cut."""
    rng = random.Random(1)
    lab = [rng.randbytes(40_000)]
    said = {**MANIFEST, "files": [rng.random() for _ in range(2000)]}
    content = bundled(lab, said)
    for length in range(0, len(content) - 1, 331):
        with (
            pytest.raises(InvalidSpec),
            unpacking(io.BytesIO(content[:length])) as found,
        ):
            assert found.lab.read() == b"".join(lab)


def hostile(**headers: str) -> bytes:
    """A bundle whose first file has extended headers."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("shop-1/manifest.json")
        info.pax_headers = {name.replace("_", "."): value for name, value in headers.items()}
        tar.addfile(info)
    return zstandard.compress(plain.getvalue() + tarred_plain())


def tarred_plain() -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("shop-1/x"))
    return plain.getvalue()


def chained() -> bytes:
    """Names that are too long for a header, one after the other: tarfile calls itself for each."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2
    link = info.tobuf(tarfile.GNU_FORMAT) + b"x\0".ljust(512, b"\0")
    return zstandard.compress(link * 900)


@pytest.mark.parametrize(
    "content",
    [
        hostile(GNU_sparse_major="1", GNU_sparse_minor="0", GNU_sparse_name="x"),
        hostile(GNU_sparse_map="a,b", GNU_sparse_size="x"),
        hostile(GNU_sparse_size="x"),
        hostile(size="-5"),
        chained(),
    ],
    ids=["sparse", "map", "size", "negative", "chained"],
)
def test_headers_that_are_wrong(content: bytes) -> None:
    """Protects from whatever tarfile makes of them."""
    with pytest.raises(InvalidSpec), unpacking(io.BytesIO(content)):
        pytest.fail("it was opened")


def test_a_header_of_any_size_is_not_believed() -> None:
    """Protects the memory: a header that tarfile reads as a whole may have a size of its own."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("shop-1/manifest.json")
        info.pax_headers = {"comment": "x" * (64 << 20)}
        tar.addfile(info)
    content = zstandard.compress(plain.getvalue())
    with pytest.raises(InvalidSpec), unpacking(io.BytesIO(content)):
        pytest.fail("it was opened")
