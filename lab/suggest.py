"""Did you mean: the words that a mistyped or unfinished one may stand for."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 3
"""Words that a hint names: a beginning that more words have says too little."""


def did_you_mean(word: str, known: Iterable[str], *, otherwise: str = "") -> str:
    """A hint that names those of ``known`` that begin with ``word``, or the nearest one.

    ``otherwise`` if none is near.
    """
    import difflib  # only needed when something went wrong

    words = list(known)
    longer = [one for one in words if word and one.startswith(word)]
    if not 0 < len(longer) <= _MOST:
        near = difflib.get_close_matches(word, words)
        # Of equally near ones the one of the same length: pxd is rather pxc than pxc-dr.
        near.sort(
            key=lambda one: (
                -difflib.SequenceMatcher(None, one, word).ratio(),
                abs(len(one) - len(word)),
            )
        )
        longer = near[:1]
    return f"did you mean {' or '.join(map(repr, longer))}?" if longer else otherwise
