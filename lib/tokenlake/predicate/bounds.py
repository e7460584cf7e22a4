"""From statistics to "it holds nowhere here": sound where it says so, and silent wherever there is a doubt.

Only comparisons of a column with constants are judged, and only where the values of the statistics and the
constant compare in Python exactly as DuckDB compares column and constant. Notably:

- DuckDB counts NaN as the greatest number and statistics leave it out, so that no bound says
  anything about ``x > 3`` for floats;
- a float may be of 32 bits, and a constant is then rounded to 32 bits before it is compared;
- strings compare by their UTF-8 bytes, which is the order of Python's code points.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tokenlake.predicate.expression import Node

_FLIPPED: Final = {"EQUAL": "EQUAL", "LESSTHAN": "GREATERTHAN", "GREATERTHAN": "LESSTHAN"} | {
    "LESSTHANOREQUALTO": "GREATERTHANOREQUALTO",
    "GREATERTHANOREQUALTO": "LESSTHANOREQUALTO",
}
_MOST_INT: Final = 1 << 63
_MOST_FLOAT_INT: Final = 1 << 24  # exact in 32 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRange:
    """What statistics say of a column in a stretch of records.

    Attributes:
        low, high: bounds of the values that are not null, None where unknown; they need not be tight.
        nulls: how many are null, None where unknown.
        rows: how many records there are.
    """

    low: Any
    high: Any
    nulls: int | None
    rows: int


Ranges = Mapping[str, ColumnRange]


def holds_nowhere(node: Node, ranges: Ranges) -> bool:
    """Say whether the expression is surely false or null for every record of a stretch."""
    match node["class"], node["type"]:
        case "CONJUNCTION", "CONJUNCTION_AND":
            return any(holds_nowhere(child, ranges) for child in node["children"])
        case "CONJUNCTION", "CONJUNCTION_OR":
            return all(holds_nowhere(child, ranges) for child in node["children"])
        case "COMPARISON", kind:
            return _comparison(kind.removeprefix("COMPARE_"), node["left"], node["right"], ranges)
        case "BETWEEN", _:
            return _between(node, ranges)
        case "OPERATOR", "COMPARE_IN":
            column, *values = node["children"]
            return all(_compared("EQUAL", column, value, ranges) for value in values)
        case "OPERATOR", "OPERATOR_IS_NULL":
            found = _range(node["children"][0], ranges)
            return found is not None and found.nulls == 0
        case "OPERATOR", "OPERATOR_IS_NOT_NULL":
            found = _range(node["children"][0], ranges)
            return found is not None and found.nulls == found.rows
        case _:
            return False


def _comparison(kind: str, left: Node, right: Node, ranges: Ranges) -> bool:
    if kind not in _FLIPPED:
        return False
    return _compared(kind, left, right, ranges) or _compared(_FLIPPED[kind], right, left, ranges)


def _compared(kind: str, column: Node, constant: Node, ranges: Ranges) -> bool:
    found, value = _range(column, ranges), _constant(constant)
    if found is None or value is None:
        return False
    if found.nulls == found.rows:
        return True
    # A bound that is unknown, or compares otherwise in Python, says nothing; the other one still may.
    low = found.low if _comparable(found.low, value) else None
    high = found.high if _comparable(found.high, value) else None
    match kind:
        case "EQUAL":
            return (low is not None and value < low) or (high is not None and value > high)
        case "LESSTHAN":
            return low is not None and low >= value
        case "LESSTHANOREQUALTO":
            return low is not None and low > value
        case _ if high is None or type(high) is float:
            return False  # NaN is greater, and no bound tells whether there is one
        case "GREATERTHAN":
            return high <= value
        case _:
            return high < value


def _between(node: Node, ranges: Ranges) -> bool:
    found = _range(node["input"], ranges)
    lower, upper = _constant(node["lower"]), _constant(node["upper"])
    if found is None or lower is None or upper is None:
        return False
    if found.nulls == found.rows:
        return True
    above = _comparable(found.low, upper) and found.low > upper  # NaN is above `upper`, too
    below = _comparable(found.high, lower) and found.high < lower and _comparable(found.high, upper)
    return above or below


def _range(node: Node, ranges: Ranges) -> ColumnRange | None:
    if node["class"] != "COLUMN_REF" or len(node["column_names"]) != 1:
        return None
    return ranges.get(node["column_names"][0])


def _constant(node: Node) -> Any:
    """Return the Python value of a constant that compares exactly, else None."""
    if node["class"] != "CONSTANT":
        return None
    kind, text = node["literal"]["kind"], node["literal"]["text"]
    match kind:
        case "STRING":
            return text
        case "BOOLEAN":
            return text.lower() == "true"
        case "INTEGER":
            value = int(text)
            return value if -_MOST_INT <= value < _MOST_INT else None
        case "NUMERIC":
            value = float(text)
            return value if _exact_in_32_bits(value) else None
        case _:
            return None


def _exact_in_32_bits(value: float) -> bool:
    try:
        return struct.unpack("f", struct.pack("f", value))[0] == value
    except OverflowError:
        return False


def _comparable(bound: Any, value: Any) -> bool:
    """Whether Python compares a bound with a constant as DuckDB compares the column with it."""
    if type(bound) is float:
        exact = type(value) is float or (type(value) is int and abs(value) <= _MOST_FLOAT_INT)
        return exact and not math.isnan(bound)
    return type(bound) is type(value)
