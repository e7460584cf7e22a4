"""Checks of arguments: the nearest known word, one of several values, whole numbers, options with arguments."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from numbers import Integral
from operator import index
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tokenlake.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Options = TypeVar("Options", bound="DataclassInstance")


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
    if not isinstance(value, Hashable) or value not in allowed:
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
    """Return `value` as an int; ConfigError unless it is a whole number from `least` to `most`.

    An integer of NumPy is a whole number; a boolean, a float and an array are none.
    """
    number: int | None = None
    if not isinstance(value, bool):
        try:
            number = index(value)
        except TypeError:
            number = None
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        allowed = "" if least is None else f" from {least} on" if most is None else f" from {least} to {most}"
        raise expected(what, value, f"a whole number{allowed}")
    return number


def bounded_number(what: str, value: Any, least: int, most: int) -> int:
    """Return `value` as an int; ConfigError unless it is a whole number from `least` to `most`.

    As :func:`whole_number`, for a limit so large that only an error about it needs to name it.
    """
    number = whole_number(what, value, least)
    return whole_number(what, number, least, most)


def mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return plain data with `leaf` applied to everything in it that is neither a mapping nor a list."""
    if isinstance(value, Mapping):
        return {key: mapped(item, leaf) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [mapped(item, leaf) for item in cast("Sequence[Any]", value)]
    return leaf(value)


def plain_integers(value: Any) -> Any:
    """Return plain data with the integers of NumPy as Python integers; tuples become lists."""

    def plain(leaf: Any) -> Any:
        is_integer = not isinstance(leaf, bool) and isinstance(leaf, Integral)
        return index(leaf) if is_integer else leaf

    return mapped(value, plain)


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


def _plain(word: object) -> str:
    return str(word).casefold().replace("-", "_").replace(" ", "_")
