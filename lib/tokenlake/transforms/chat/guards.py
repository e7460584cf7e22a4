"""Judges of methods, filters and operators that make much of little: each says how large its result will be at most.

A judge takes the arguments of what it judges, by the same names, behind the budget.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tokenlake.transforms.chat.limits import Budget, exceeded
from tokenlake.transforms.chat.weights import ELEMENT, NUMBER, weigh

Judge = Callable[..., int]

BITS: Final = 4096
"""Of the largest integer that a product or a power may be."""

_NUMBERS: Final = re.compile(r"\d+")
_NESTED_WIDTH: Final = re.compile(r":[^{}]*\{")


def _width(_: Budget, value: Any, width: Any = 80, *__: Any) -> int:
    """center, ljust, rjust, zfill."""
    return max(len(str(value)), int(width))


def _tabs(_: Budget, value: Any, tabsize: Any = 8) -> int:
    return len(str(value)) + str(value).count("\t") * abs(int(tabsize))


def _replaced(_: Budget, value: Any, old: Any, new: Any, count: Any = None) -> int:
    text, old, new = str(value), str(old), str(new)
    times = text.count(old) if old else len(text) + 1
    if count is not None and int(count) >= 0:
        times = min(times, int(count))
    return len(text) + times * max(0, len(new) - len(old))


def _joined(budget: Budget, value: Any, d: Any = "", attribute: Any = None) -> int:
    """The filter join, whose value are the parts."""
    return weigh(value, budget) + len(str(d)) * (len(value) if hasattr(value, "__len__") else 0)


def _joined_by(budget: Budget, separator: Any, parts: Any) -> int:
    """The method join."""
    return _joined(budget, parts, separator)


def _indented(_: Budget, s: Any, width: Any = 4, *__: Any, **___: Any) -> int:
    each = len(width) if isinstance(width, str) else int(width)
    return len(str(s)) + (str(s).count("\n") + 2) * max(0, each)


def _wrapped(
    _: Budget,
    s: Any,
    width: Any = 79,
    break_long_words: Any = True,
    wrapstring: Any = None,
    break_on_hyphens: Any = True,
) -> int:
    return len(str(s)) * (1 + len(str(wrapstring or "\n")))


def _batched(_: Budget, value: Any, linecount: Any, fill_with: Any = None) -> int:
    return ELEMENT * max(0, int(linecount))


def _sliced(_: Budget, value: Any, slices: Any, fill_with: Any = None) -> int:
    return ELEMENT * max(0, int(slices))


def _rounded(_: Budget, value: Any, precision: Any = 0, method: Any = "common") -> int:
    if abs(int(precision)) > 300:
        raise exceeded(f"rounding to {precision} digits")
    return NUMBER


def _as_json(budget: Budget, x: Any, *options: Any, **named: Any) -> int:
    indent = named.get("indent") or (options[1] if len(options) > 1 else 0) or 0
    each = len(indent) if isinstance(indent, str) else int(indent)
    if each > 64:
        raise exceeded(f"an indent of {each} characters")
    return weigh(x, budget)


def _escaped(_: Budget, value: Any) -> int:
    return 6 * len(str(value))


def _quoted(budget: Budget, value: Any) -> int:
    return 12 * weigh(value, budget)


def _printed(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> int:
    """``%`` and the filter format: named fields may come again and again."""
    pattern = str(value)
    if "*" in pattern:
        raise exceeded("a width that is itself an argument ('*')")
    largest = weigh(args, budget) + weigh(kwargs, budget)
    return len(pattern) + _spelled(pattern) + (pattern.count("%(") + 1) * largest


def _formatted(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> int:
    """The methods format and format_map: a field may come again and again."""
    pattern = str(value)
    if _NESTED_WIDTH.search(pattern):
        raise exceeded("a width that is itself an argument ('{:{}}')")
    largest = weigh(args, budget) + weigh(kwargs, budget)
    return len(pattern) + _spelled(pattern) + (pattern.count("{") + 1) * largest


def _spelled(pattern: str) -> int:
    """Return the sum of the numbers in a format: its widths and precisions are not larger."""
    return sum(int(number) if len(number) < 12 else 1 << 40 for number in _NUMBERS.findall(pattern))


METHODS: Final[Mapping[str, Judge]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _width),
    "expandtabs": _tabs,
    "replace": _replaced,
    "join": _joined_by,
    "format": _formatted,
    "format_map": _formatted,
}
"""Of texts, by name; what the others make is not much longer than the text."""

FILTERS: Final[Mapping[str, Judge]] = {
    "batch": _batched,
    "center": _width,
    "e": _escaped,
    "escape": _escaped,
    "forceescape": _escaped,
    "format": _printed,
    "indent": _indented,
    "join": _joined,
    "replace": _replaced,
    "round": _rounded,
    "slice": _sliced,
    "tojson": _as_json,
    "urlencode": _quoted,
    "wordwrap": _wrapped,
}


def _product(budget: Budget, left: Any, right: Any) -> int:
    """``*``: texts and lists repeat."""
    for value, times in ((left, right), (right, left)):
        if isinstance(value, str | list | tuple) and isinstance(times, int):
            return len(value) * max(0, times) * (1 if isinstance(value, str) else ELEMENT)
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > BITS:
        raise exceeded(f"an integer of more than {BITS} bits")
    return NUMBER


def _power(_: Budget, left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > BITS:
        raise exceeded(f"an integer of more than {BITS} bits")
    return NUMBER


def _remainder(budget: Budget, left: Any, right: Any) -> int:
    """``%``: of a text it is a format."""
    if not isinstance(left, str):
        return NUMBER
    values: Sequence[Any] = right if isinstance(right, tuple) else (right,)
    return _printed(budget, left, *values)


def _sum(_: Budget, left: Any, right: Any) -> int:
    if isinstance(left, str) and isinstance(right, str):
        return len(left) + len(right)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return ELEMENT * (len(left) + len(right))
    return NUMBER


OPERATORS: Final[Mapping[str, Judge]] = {"+": _sum, "*": _product, "**": _power, "%": _remainder}
