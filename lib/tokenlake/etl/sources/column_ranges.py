"""Statistics of a column, and the predicates that they rule out.

From the statistics of a stretch of records it may follow that a predicate holds for
none of them. An example: with ``x`` between 10 and 20, ``x > 30`` holds nowhere, and
neither does ``x > 30 AND y = 1``.

Only comparisons of a column with constants are judged, and only where Python compares
the values exactly as DuckDB does:

- DuckDB counts NaN as the greatest number, and statistics leave it out. The upper bound
  of a float is therefore unknown.
- A float may have 32 bits, and DuckDB then rounds the constant to 32 bits. Only
  constants that are exact in 32 bits count.
- Strings compare by their UTF-8 bytes, which is the order of Python's code points.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tokenlake.etl.sources.sql import Node

# Comparison to the one that holds when its sides change places.
_FLIPPED: Final = {
    "EQUAL": "EQUAL",
    "LESSTHAN": "GREATERTHAN",
    "GREATERTHAN": "LESSTHAN",
    "LESSTHANOREQUALTO": "GREATERTHANOREQUALTO",
    "GREATERTHANOREQUALTO": "LESSTHANOREQUALTO",
}
_INT64_LIMIT: Final = 1 << 63
_MAX_FLOAT32_INTEGER: Final = 1 << 24  # every integer up to here is exact in 32 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRange:
    """Statistics of one column in a stretch of records.

    Attributes:
        low: Lower bound of the values that are not null, None if unknown; it need not
            be tight.
        high: Upper bound of the values that are not null, None if unknown; it need not
            be tight.
        nulls: Number of nulls, None if unknown.
        rows: Number of records.
    """

    low: Any
    high: Any
    nulls: int | None
    rows: int

    @property
    def is_all_null(self) -> bool:
        """Whether every value is null, for certain."""
        return self.nulls == self.rows


Ranges = Mapping[str, ColumnRange]
"""Column to its statistics; columns without statistics are left out."""


def holds_nowhere(node: Node, ranges: Ranges) -> bool:
    """Say whether an expression is surely false or null for every record of a stretch.

    Args:
        node: Expression in DuckDB's syntax tree.
        ranges: Statistics of the columns in the stretch.
    """
    # Classes and types are those of DuckDB's serialized syntax tree. An expression of
    # any other form may hold somewhere.
    match node["class"], node["type"]:
        case "CONJUNCTION", "CONJUNCTION_AND":
            return any(holds_nowhere(child, ranges) for child in node["children"])
        case "CONJUNCTION", "CONJUNCTION_OR":
            return all(holds_nowhere(child, ranges) for child in node["children"])
        case "COMPARISON", comparison:
            operator = comparison.removeprefix("COMPARE_")
            if operator not in _FLIPPED:
                return False
            left = node["left"]
            right = node["right"]
            # The constant may stand on either side.
            if _comparison_holds_nowhere(operator, left, right, ranges):
                return True
            return _comparison_holds_nowhere(_FLIPPED[operator], right, left, ranges)
        case "BETWEEN", _:
            return _between_holds_nowhere(node, ranges)
        case "OPERATOR", "COMPARE_IN":
            column, *values = node["children"]
            return all(
                _comparison_holds_nowhere("EQUAL", column, value, ranges)
                for value in values
            )
        case "OPERATOR", "OPERATOR_IS_NULL":
            column_range = _range_of(node["children"][0], ranges)
            return column_range is not None and column_range.nulls == 0
        case "OPERATOR", "OPERATOR_IS_NOT_NULL":
            column_range = _range_of(node["children"][0], ranges)
            return column_range is not None and column_range.is_all_null
        case _:
            return False


def _comparison_holds_nowhere(
    operator: str, column: Node, constant: Node, ranges: Ranges
) -> bool:
    """Say whether ``column operator constant`` is surely false or null.

    It is not for sides that are something else.
    """
    column_range = _range_of(column, ranges)
    value = _constant_value(constant)
    if column_range is None or value is None:
        return False
    # A comparison with null is null, and keeps no record.
    if column_range.is_all_null:
        return True

    # A bound that is unknown, or that Python compares differently, says nothing. The
    # other bound still may.
    low = column_range.low
    if not _is_comparable(low, value):
        low = None
    high = column_range.high
    if not _is_comparable(high, value):
        high = None
    match operator:
        case "EQUAL":
            is_below = low is not None and value < low
            is_above = high is not None and value > high
            return is_below or is_above
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


def _between_holds_nowhere(node: Node, ranges: Ranges) -> bool:
    """Say whether ``column BETWEEN lower AND upper`` is surely false or null."""
    column_range = _range_of(node["input"], ranges)
    lower = _constant_value(node["lower"])
    upper = _constant_value(node["upper"])
    if column_range is None or lower is None or upper is None:
        return False
    if column_range.is_all_null:
        return True
    low = column_range.low
    high = column_range.high
    is_above = _is_comparable(low, upper) and low > upper  # NaN is above `upper`, too
    is_below = (
        _is_comparable(high, lower) and high < lower and _is_comparable(high, upper)
    )
    return is_above or is_below


def _range_of(node: Node, ranges: Ranges) -> ColumnRange | None:
    """Return the statistics of a node that is a top-level column; otherwise None."""
    if node["class"] != "COLUMN_REF" or len(node["column_names"]) != 1:
        return None
    return ranges.get(node["column_names"][0])


def _constant_value(node: Node) -> Any:
    """Return the Python value of a constant that compares exactly; otherwise None."""
    if node["class"] != "CONSTANT":
        return None
    literal_text = node["literal"]["text"]
    match node["literal"]["kind"]:
        case "STRING":
            return literal_text
        case "BOOLEAN":
            return literal_text.lower() == "true"
        case "INTEGER":
            # DuckDB compares integers beyond 64 bits as HUGEINT or DOUBLE.
            integer = int(literal_text)
            is_int64 = -_INT64_LIMIT <= integer < _INT64_LIMIT
            return integer if is_int64 else None
        case "NUMERIC":
            number = float(literal_text)
            return number if _is_float32(number) else None
        case _:
            return None


def _is_float32(number: float) -> bool:
    """Say whether a number is exact in 32 bits."""
    try:
        return struct.unpack("f", struct.pack("f", number))[0] == number
    except OverflowError:
        return False


def _is_comparable(bound: Any, value: Any) -> bool:
    """Say whether Python compares a bound with a constant as DuckDB does."""
    if type(bound) is float:
        is_exact = type(value) is float or (
            type(value) is int and abs(value) <= _MAX_FLOAT32_INTEGER
        )
        return is_exact and not math.isnan(bound)
    # Python would compare a bool with an int, too, and raise for a text with a number.
    return type(bound) is type(value)
