"""What people write and what they meant: the nearest known word, sizes such as ``"500MB"``, plain data.

All units of sizes are binary, with and without the ``i``: 1 KB = 1 KiB = 1024 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from decimal import Decimal
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from tokenlake.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MIB: Final = 1 << 20

PATTERN: Final = r"^ *[0-9]+(\.[0-9]+)? *([kKmMgGtTpP][iI]?)?[bB]? *$"
"""The form of a size as a regular expression, in the part of the syntax that Python and ECMA share."""

_LARGEST: Final = (1 << 63) - 1
_UNITS: Final = " kmgtp"  # powers of 1024
_SIZE: Final = re.compile(r" *([0-9]+(?:\.[0-9]+)?) *(?:([kmgtp])i?)?b? *", re.ASCII | re.IGNORECASE)


def nearest(word: object, known: Iterable[str]) -> str | None:
    """Return the member of `known` that looks most like `word`, or None when nothing does.

    Letter case, and the choice between ``-``, ``_`` and a space, do not count.
    """
    by_plain = {_plain(name): name for name in known}
    close = get_close_matches(_plain(word), by_plain, n=1, cutoff=0.6)
    return by_plain[close[0]] if close else None


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"``, or nothing when no known word is near."""
    found = nearest(word, known)
    return f"; did you mean {found!r}?" if found is not None else ""


def require_one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    """Raise a ConfigError, with what was expected and the nearest of it, unless an argument is one of `allowed`."""
    if value not in allowed:
        expected = f"one of {', '.join(map(repr, allowed))}"
        near = did_you_mean(value, [each for each in allowed if isinstance(each, str)])
        told = f"{name} is {value!r}, expected {expected}{near}"
        raise ConfigError(told, field_path=name, expected=expected, got=repr(value))


def expected(what: str, got: object, must: str) -> ConfigError:
    """Return the error for an argument that is not what it must be; a value of some size is told by its type."""
    plain = got is None or isinstance(got, str | int | float)
    shown = f"{got!r:.80}" if plain else f"a {type(got).__name__}"
    return ConfigError(f"{what}: got {shown}, must be {must}", got=shown)


def whole_number(what: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return `value` as an int; ConfigError unless it is a whole number from `least` to `most`."""
    whole = hasattr(value, "__index__") and not isinstance(value, bool)
    if not whole or (least is not None and value < least) or (most is not None and value > most):
        allowed = "" if least is None else f" from {least} on" if most is None else f" from {least} to {most}"
        raise expected(what, value, f"a whole number{allowed}")
    return value.__index__()


def mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return plain data with `leaf` applied to everything in it that is neither a mapping nor a list."""
    if isinstance(value, Mapping):
        return {key: mapped(item, leaf) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [mapped(item, leaf) for item in cast("Sequence[Any]", value)]
    return leaf(value)


def parse_size(value: int | str) -> int:
    """Return a size in bytes, at least 1; a fraction of a byte is cut off.

    Raises:
        ConfigError: `value` is not a size, or is below one byte or above 2**63 - 1 bytes.
    """
    size: object = value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        size = int(Decimal(match[1]) * 1024 ** _UNITS.index((match[2] or " ").lower()))
    if not isinstance(size, int) or isinstance(size, bool):
        raise ConfigError(
            f"got {value!r}: a size must be a whole number of bytes or a text like '500MB', '1.5 GB' or "
            "'1GiB' (units B, KB, MB, GB, TB, PB, all powers of 1024)"
        )
    if not 1 <= size <= _LARGEST:
        raise ConfigError(f"got {value!r}: a size must be between 1 and {_LARGEST} bytes", got=value)
    return size


def _plain(word: object) -> str:
    return str(word).casefold().replace("-", "_").replace(" ", "_")


Options = TypeVar("Options", bound="DataclassInstance")


def arguments_of(kind: type[Options], name: str, asked: Any, words: Mapping[str, Options]) -> Options:
    """Read an option: an instance, one of `words`, or a mapping of arguments; ConfigError where it is none of these."""
    if isinstance(asked, kind):
        return asked
    if isinstance(asked, str) and asked in words:
        return words[asked]
    names = [field.name for field in fields(kind)]
    if not isinstance(asked, Mapping) or not all(each in names for each in cast("Mapping[str, Any]", asked)):
        others = "".join(f"{word!r}, " for word in words)
        raise ConfigError(
            f"{name}: got {asked!r}, must be {others}a {kind.__name__}, or a mapping of {', '.join(names)}"
        )
    return kind(**cast("Mapping[str, Any]", asked))
