"""Values as JSON text, and a text for each value that JSON has no type for.

JSON knows null, truth values, numbers, text, arrays and objects. Other values are
written in these forms:

| value | in JSON |
|---|---|
| date | ``"2026-01-31"`` (ISO 8601) |
| time | ``"12:34:56"``, with a fraction of up to nine digits where there is one |
| timestamp without a time zone | ``"2026-01-31T12:34:56"``, with a fraction where there is one |
| timestamp with a time zone | the same instant in UTC: ``"2026-01-31T12:34:56Z"`` |
| duration | ``"PT1.5S"`` (ISO 8601, in seconds) |
| decimal without a fraction (scale 0 or less) | a number, with all its digits |
| other decimal | text with all its digits: ``"1.10"`` |
| bytes | base64 text |
| integer of more than 64 bits | a number, with all its digits |
| infinity in a kept field that is stored as JSON text | ``1e999``, which ``json.loads`` reads as infinity |
| other infinities, NaN | null in columns; refused in Python rows |
| map | an array of ``[key, value]`` pairs |

Fractions of a second end with their last digit that is not zero.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

_ARROW: Final[Any] = pa
_COMPUTE: Final[Any] = pc
# Integers that orjson writes; larger ones are written by Python.
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 64) - 1
_TICKS: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_MINUTE: Final = 60
_HOUR: Final = 3600

Default = Callable[[Any], Any]


def dump_json(
    value: Any,
    default: Default | None = None,
    option: int = 0,
    *,
    keeps_infinity: bool = False,
) -> bytes:
    """Return a value as JSON text in UTF-8, integers of any size with all their digits.

    Args:
        value: Value to write.
        default: Function of ``orjson.dumps`` for values that JSON has no form for.
        option: Flags of ``orjson.dumps``.
        keeps_infinity: True to write infinities as numbers that are read as infinity
            again, not as null.

    Raises:
        TypeError: JSON has no form for a value, also not by `default`, or it is nested
            too deeply.
    """
    # 1. The fast encoder. It writes infinities as null, so that only a text with a null
    #    may have one.
    try:
        json_text = orjson.dumps(value, default, option)
        if not keeps_infinity or b"null" not in json_text:
            return json_text
    except TypeError as error:
        # 2. Large integers become fragments. Without any, the error was another one.
        try:
            with_fragments = _with_fragments(value, keeps_infinity=keeps_infinity)
            return orjson.dumps(with_fragments, default, option)
        # An integer of more than 4,300 digits is a ValueError.
        except (RecursionError, ValueError):
            raise error from None
    # 3. A null, or an infinity.
    with_infinities = _with_fragments(value, keeps_infinity=True)
    return orjson.dumps(with_infinities, default, option)


def _with_fragments(value: Any, *, keeps_infinity: bool) -> Any:
    """Return a value in which numbers that orjson cannot write are fragments of JSON."""
    if isinstance(value, dict):
        members: dict[Any, Any] = value
        new_members: dict[Any, Any] = {}
        for key, item in members.items():
            new_members[key] = _with_fragments(item, keeps_infinity=keeps_infinity)
        return new_members
    if isinstance(value, list | tuple):
        items: list[Any] | tuple[Any, ...] = value
        return [_with_fragments(item, keeps_infinity=keeps_infinity) for item in items]
    if type(value) is int and not _LEAST <= value <= _MOST:
        return orjson.Fragment(str(value))
    if keeps_infinity and isinstance(value, float) and math.isinf(value):
        # A larger exponent than floats have: every parser reads it as infinity.
        if value > 0:
            return orjson.Fragment("1e999")
        return orjson.Fragment("-1e999")
    return value


def text_form(value: Any) -> Any:
    """Return the JSON form of a Python value that JSON has no type for.

    The table of this module lists the forms.

    Raises:
        TypeError: The table has no form for its type.
    """
    match value:
        case datetime.datetime():
            return _timestamp_text(value)
        case datetime.date():
            return value.isoformat()
        case datetime.time():
            # An offset behind the fraction may end with zeros of its own.
            if value.tzinfo is not None:
                return value.isoformat()
            return _without_zeros(value.isoformat())
        # Durations are counted in ticks: a float of seconds would round them.
        case datetime.timedelta():
            microseconds = value // datetime.timedelta(microseconds=1)
            return _duration_text(microseconds, _TICKS["us"])
        case decimal.Decimal():
            return _decimal_form(value)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case np.timedelta64():
            nanoseconds = value.astype("timedelta64[ns]").astype(np.int64)
            return _duration_text(int(nanoseconds), _TICKS["ns"])
        case _:
            raise TypeError(
                f"JSON does not support values of type {type(value).__name__}"
            )


def _timestamp_text(value: datetime.datetime) -> str:
    if value.tzinfo is None:
        return _without_zeros(value.isoformat())
    instant = value.astimezone(datetime.UTC).replace(tzinfo=None)
    return _without_zeros(instant.isoformat()) + "Z"


def _decimal_form(value: decimal.Decimal) -> Any:
    # NaN and infinities of decimals are as those of floats.
    if not value.is_finite():
        return None
    exponent = value.as_tuple().exponent
    is_whole = isinstance(exponent, int) and exponent >= 0
    return _decimal_of(value, is_whole)


def _without_zeros(text: str) -> str:
    """Return a time without zeros at the end of its fraction."""
    if "." not in text:
        return text
    return text.rstrip("0").rstrip(".")


def _duration_text(count: int, ticks: int) -> str:
    """Return an ISO 8601 duration.

    Args:
        count: Number of ticks.
        ticks: Number of ticks in a second.
    """
    sign = "-" if count < 0 else ""
    seconds, fraction = divmod(abs(count), ticks)
    return f"{sign}PT{seconds}{_fraction(fraction, ticks)}S"


def _time_text(count: int, ticks: int) -> str:
    """Return a time of day.

    Args:
        count: Number of ticks since midnight.
        ticks: Number of ticks in a second.
    """
    seconds, fraction = divmod(count, ticks)
    hours, seconds = divmod(seconds, _HOUR)
    minutes, seconds = divmod(seconds, _MINUTE)
    return f"{hours:02}:{minutes:02}:{seconds:02}{_fraction(fraction, ticks)}"


def _fraction(count: int, ticks: int) -> str:
    """Return a fraction of a second with its point; empty for a whole second."""
    if not count:
        return ""
    # Leading zeros count, those at the end do not.
    digits = len(str(ticks)) - 1
    return f".{count:0{digits}}".rstrip("0")


def json_values(column: Any) -> list[Any]:
    """Return the values of an Arrow array as values that ``orjson.dumps`` writes.

    They have the forms of this module.
    """
    types = _ARROW.types
    kind = column.type
    # Types that wrap another one, then nested types.
    if isinstance(kind, pa.BaseExtensionType):
        return json_values(column.storage)
    if types.is_dictionary(kind):
        return json_values(column.dictionary_decode())
    if types.is_run_end_encoded(kind):
        return json_values(_COMPUTE.run_end_decode(column))
    if types.is_map(kind):
        return _map_values(column)
    if _is_any_list(kind):
        return _list_values(column)
    if types.is_struct(kind):
        return _struct_values(column)
    return _flat_values(column)


def _is_any_list(kind: Any) -> bool:
    """Return whether a type is one of Arrow's five types of lists."""
    types = _ARROW.types
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return True
    if types.is_fixed_size_list(kind):
        return True
    return types.is_list(kind) or types.is_large_list(kind)


def _list_values(column: Any) -> list[Any]:
    """Return lists; the values of all of them are converted at once."""
    lengths = _COMPUTE.list_value_length(column).to_pylist()
    items = json_values(column.flatten())
    lists: list[Any] = []
    first_item = 0
    for length in lengths:
        if length is None:
            lists.append(None)
            continue
        lists.append(items[first_item : first_item + length])
        first_item += length
    return lists


def _map_values(column: Any) -> list[Any]:
    """Return maps as lists of pairs.

    The keys and the values of all of them are converted at once.
    """
    # A slice of a map array has the keys and the items of the whole one.
    offsets = column.offsets.to_pylist()
    first_item = offsets[0]
    item_count = offsets[-1] - first_item
    keys = json_values(column.keys.slice(first_item, item_count))
    items = json_values(column.items.slice(first_item, item_count))
    # Pairs and no dict: keys of a map may repeat, and need not be texts.
    pairs = list(zip(keys, items, strict=True))
    is_valid_map = column.is_valid().to_pylist()
    maps: list[Any] = []
    for index, is_valid in enumerate(is_valid_map):
        if is_valid:
            start = offsets[index] - first_item
            stop = offsets[index + 1] - first_item
            maps.append(pairs[start:stop])
        else:
            maps.append(None)
    return maps


def _struct_values(column: Any) -> list[Any]:
    """Return structs as dicts; the values of each field are converted at once."""
    field_types = column.type
    names = [field_types.field(index).name for index in range(field_types.num_fields)]
    fields = [json_values(field) for field in column.flatten()]
    is_valid_struct = column.is_valid().to_pylist()
    # Without fields nothing says how many values there are.
    if not fields:
        return [{} if is_valid else None for is_valid in is_valid_struct]
    structs: list[Any] = []
    for members, is_valid in zip(
        zip(*fields, strict=True), is_valid_struct, strict=True
    ):
        if is_valid:
            structs.append(dict(zip(names, members, strict=True)))
        else:
            structs.append(None)
    return structs


def _flat_values(column: Any) -> list[Any]:
    """Return the values of a column whose type holds no other values."""
    types = _ARROW.types
    kind = column.type
    if types.is_timestamp(kind) or types.is_date(kind):
        return _instants(column)
    # Times and durations are integers in Arrow; Python's own types would lose their
    # nanoseconds.
    if types.is_time(kind):
        ticks = _TICKS[kind.unit]
        return _converted(_counts(column), lambda count: _time_text(count, ticks))
    if types.is_duration(kind):
        ticks = _TICKS[kind.unit]
        return _converted(_counts(column), lambda count: _duration_text(count, ticks))
    if types.is_decimal(kind):
        is_whole = kind.scale <= 0
        values = column.to_pylist()
        return _converted(values, lambda value: _decimal_of(value, is_whole))
    # Python has no floats of 16 bits, and NumPy's are no JSON.
    if types.is_float16(kind):
        return column.cast(pa.float32()).to_pylist()
    if types.is_interval(kind):
        return _converted(column.to_pylist(), lambda value: _interval_text(*value))
    # All others are Python's own values; only bytes have no form in JSON.
    values = column.to_pylist()
    if any(isinstance(value, bytes) for value in values):
        return _converted(values, text_form)
    return values


def _converted(values: list[Any], convert: Callable[[Any], Any]) -> list[Any]:
    """Return values in another form; null stays None."""
    return [None if value is None else convert(value) for value in values]


def _decimal_of(value: decimal.Decimal, is_whole: bool) -> Any:
    """Return a decimal with all its digits: as a number if it is whole, or as text."""
    if is_whole:
        return orjson.Fragment(f"{value:f}")
    return f"{value:f}"


def _interval_text(months: int, days: int, nanoseconds: int) -> str:
    """Return a calendar interval as an ISO 8601 duration."""
    sign = "-" if nanoseconds < 0 else ""
    seconds, fraction = divmod(abs(nanoseconds), _TICKS["ns"])
    return f"P{months}M{days}DT{sign}{seconds}{_fraction(fraction, _TICKS['ns'])}S"


def _counts(column: Any) -> list[int | None]:
    """Return the integers that times and durations are stored as."""
    integer_type = pa.int64()
    if column.type.bit_width == pa.int32().bit_width:
        integer_type = pa.int32()
    return column.view(integer_type).to_pylist()


def _instants(column: Any) -> list[Any]:
    """Return dates and timestamps as text.

    Python's own types end at the year 9999, and at microseconds.
    """
    # 1. The counts of units since 1970, null as 0.
    kind = column.type
    is_date = _ARROW.types.is_date(kind)
    if _ARROW.types.is_date32(kind):
        unit = "D"
        counts = column.view(pa.int32()).fill_null(0).cast(pa.int64())
    else:
        unit = "ms" if is_date else kind.unit
        counts = column.view(pa.int64()).fill_null(0)
    # 2. Their texts, which NumPy makes for every year.
    instants = counts.to_numpy().view(f"datetime64[{unit}]")
    text_unit = "D" if is_date else unit
    texts = np.datetime_as_string(instants, unit=text_unit, casting="unsafe").tolist()
    # 3. With a zone, the counts are those of UTC.
    suffix = "" if is_date or kind.tz is None else "Z"
    instant_texts: list[Any] = []
    for text, is_valid in zip(texts, column.is_valid().to_pylist(), strict=True):
        if is_valid:
            instant_texts.append(_without_zeros(text) + suffix)
        else:
            instant_texts.append(None)
    return instant_texts
