"""Times, durations and sizes as the API has them: one type each."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from lab.errors import InvalidSpec
from lab.units import format_time, parse_duration, parse_size


def _seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return parse_duration(value)
    except InvalidSpec as error:
        raise ValueError(f"{error.what}; {error.hint}") from None


def _in_query(value: object) -> object:
    """A query has texts only: so a number there is one of seconds."""
    number = isinstance(value, str) and value.strip().replace(".", "", 1).isdecimal()
    return value if number else _seconds(value)


def _bytes(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return parse_size(value)
    except InvalidSpec as error:
        raise ValueError(f"{error.what}; {error.hint}") from None


_DURATION = Annotated[str, Field(pattern=r"^(?=\d)(\d{1,4}d)?(\d{1,5}h)?(\d{1,6}m)?(\d{1,7}s)?$")]
_SIZE = Annotated[str, Field(pattern=r"^\d{1,12}[KMGT]?$")]

Seconds = Annotated[float, BeforeValidator(_seconds, json_schema_input_type=float | _DURATION)]
"""A duration that is asked for: a number of seconds, or a text such as 30m or 1d12h."""
SecondsInQuery = Annotated[
    float, BeforeValidator(_in_query, json_schema_input_type=float | _DURATION)
]
"""A duration in the query of a URL."""
Bytes = Annotated[int, BeforeValidator(_bytes, json_schema_input_type=int | _SIZE)]
"""A size that is asked for: a number of bytes, or a text such as 768M or 1G."""
Time = Annotated[
    float,
    PlainSerializer(format_time, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}, mode="serialization"),
]
"""A moment, in UTC: seconds since 1970 here, a text as in RFC 3339 in answers."""

OURS = "Value error, "
"""What pydantic puts before the text of our own errors."""

ID_LIMIT = (1 << 63) - 1
"""The largest id that a database counts to."""
