"""Did you mean: the word that a mistyped one is nearest to."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], *, otherwise: str = "") -> str:
    """A hint that names the nearest of ``known``, or ``otherwise`` if none is near."""
    import difflib  # only needed when something went wrong

    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise
