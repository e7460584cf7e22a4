"""Checks of arguments: the nearest known word, allowed values, numbers, options."""

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


def nearest(word: object, words: Iterable[str]) -> str | None:
    """Return the member of `words` that looks most like `word`; None if none does.

    Letter case, and the choice between ``-``, ``_`` and a space, do not count.
    """
    names = {_plain(name): name for name in words}
    # A cutoff of 0.6 finds a letter that is wrong, missing or too many.
    matches = get_close_matches(_plain(word), names, n=1, cutoff=0.6)
    if not matches:
        return None
    return names[matches[0]]


def did_you_mean(word: object, words: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"``, or an empty text if no known word is near."""
    nearest_word = nearest(word, words)
    if nearest_word is None:
        return ""
    return f"; did you mean {nearest_word!r}?"


def require_one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    """Check that an argument is one of several values.

    Args:
        name: Name of the argument, for the message.
        value: Value of the argument.
        allowed: Allowed values.

    Raises:
        ConfigError: It is another value. The message has the allowed ones and the
            nearest match.
    """
    # A list or a mapping is never an allowed value, and cannot be looked up.
    if isinstance(value, Hashable) and value in allowed:
        return
    expected = f"one of {', '.join(map(repr, allowed))}"
    known_words = [word for word in allowed if isinstance(word, str)]
    message = (
        f"{name} is {value!r}, expected {expected}{did_you_mean(value, known_words)}"
    )
    raise ConfigError(message, field_path=name, expected=expected, got=repr(value))


def expected(what: str, got: object, must: str) -> ConfigError:
    """Return the error for a wrong argument.

    Args:
        what: Name of the argument.
        got: Value of the argument; the message has the type of a large value.
        must: Description of the allowed values.
    """
    if got is None or isinstance(got, str | int | float):
        shown = f"{got!r:.80}"
    else:
        shown = f"a {type(got).__name__}"
    return ConfigError(f"{what}: got {shown}, must be {must}", got=shown)


def whole_number(
    what: str, value: Any, least: int | None = None, most: int | None = None
) -> int:
    """Return a whole number as an int.

    An integer of NumPy is a whole number; a boolean, a float and an array are none.

    Args:
        what: Name of the argument, for the message.
        value: Value of the argument.
        least: Smallest allowed number; None for any.
        most: Largest allowed number; None for any.

    Raises:
        ConfigError: It is no whole number, or outside the limits.
    """
    # A boolean is an int for Python, but no number of things.
    number: int | None = None
    if not isinstance(value, bool):
        try:
            number = index(value)
        except TypeError:
            number = None
    is_too_small = number is not None and least is not None and number < least
    is_too_large = number is not None and most is not None and number > most
    if number is not None and not is_too_small and not is_too_large:
        return number
    limits = ""
    if least is not None and most is None:
        limits = f" from {least} on"
    elif least is not None:
        limits = f" from {least} to {most}"
    raise expected(what, value, f"a whole number{limits}")


def bounded_number(what: str, value: Any, least: int, most: int) -> int:
    """Return a whole number as an int, within a limit that few errors name.

    It is as :func:`whole_number`, for a limit that is too large to name in every error.

    Args:
        what: Name of the argument, for the message.
        value: Value of the argument.
        least: Smallest allowed number.
        most: Largest allowed number, which only an error about it names.

    Raises:
        ConfigError: It is no whole number, or outside the limits.
    """
    number = whole_number(what, value, least)
    return whole_number(what, number, least, most)


def mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return plain data with `leaf` applied to everything in it that holds no other data.

    Mappings and lists hold other data.
    """
    if isinstance(value, Mapping):
        mapped_members: dict[str, Any] = {}
        for key, item in cast("Mapping[str, Any]", value).items():
            mapped_members[key] = mapped(item, leaf)
        return mapped_members
    if isinstance(value, list | tuple):
        return [mapped(item, leaf) for item in cast("Sequence[Any]", value)]
    return leaf(value)


def plain_integers(value: Any) -> Any:
    """Return plain data with the integers of NumPy as Python integers.

    Tuples become lists.
    """

    def plain(leaf: Any) -> Any:
        is_integer = not isinstance(leaf, bool) and isinstance(leaf, Integral)
        if not is_integer:
            return leaf
        return index(leaf)

    return mapped(value, plain)


def arguments_of(
    kind: type[Options], name: str, option: Any, words: Mapping[str, Options]
) -> Options:
    """Return an option that has arguments of its own.

    Args:
        kind: Class of the result.
        name: Name of the option, for the message.
        option: Value of the option: an instance, one of the words, or a mapping of the
            arguments.
        words: Words that stand for an instance.

    Raises:
        ConfigError: It has another form.
    """
    if isinstance(option, kind):
        return option
    if isinstance(option, str) and option in words:
        return words[option]
    # A mapping with an unknown name is reported with all that would be known.
    names = [field.name for field in fields(kind)]
    if isinstance(option, Mapping):
        arguments = cast("Mapping[str, Any]", option)
        if all(argument in names for argument in arguments):
            return kind(**arguments)
    alternatives = "".join(f"{word!r}, " for word in words)
    raise ConfigError(
        f"{name}: got {option!r}, must be {alternatives}a {kind.__name__}, or a mapping of {', '.join(names)}"
    )


def _plain(word: object) -> str:
    """Return a word without the differences that do not count."""
    return str(word).casefold().replace("-", "_").replace(" ", "_")
