"""Texts that stand for a message's content while a template runs, and refuse to be looked into.

A template that only puts contents between its own words, trimmed at most, does the same whatever they say. A symbol
goes through such a template like the content would, and whatever asks it for more (its length, its letters, whether
it equals something) raises :class:`Looked`: then the template's text depends on the content, and nothing can be said
beforehand.

A symbol's characters are a mark, ``U+E000, how it was trimmed, the message's number, U+E001``, among the words of the
template.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NoReturn, final

from tokenlake.templates.rendered import LEFT, RIGHT, Slot

OPEN: Final = "\ue000"
CLOSE: Final = "\ue001"

_MARK: Final = re.compile(f"{OPEN}([0-3])([0-9]+){CLOSE}")
_SPLIT: Final = re.compile(f"({OPEN}[0-3][0-9]+{CLOSE})")
_HARMLESS: Final = frozenset(
    {"__new__", "__init__", "__class__", "__getattribute__", "__str__", "__repr__", "__add__", "__radd__"}
    | {
        "__init_subclass__",
        "__subclasshook__",
        "__doc__",
        "__setattr__",
        "__delattr__",
        "__dir__",
        "__sizeof__",
    }
    | {"__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "strip", "lstrip", "rstrip"}
)


class Looked(Exception):
    """A template looked into a content."""


def mark(number: int, sides: int = 0) -> str:
    """Return the characters that stand for the content of message `number`."""
    return f"{OPEN}{sides}{number}{CLOSE}"


def untrimmed(text: str) -> str:
    """Return `text` with every mark as it was before anything was trimmed."""
    return _MARK.sub(lambda found: mark(int(found[2])), text)


def parts_of(text: str) -> list[str | Slot]:
    """Return the words of a template and the slots among them, in order, no word empty."""
    parts: list[str | Slot] = []
    for part in _SPLIT.split(text):
        found = _MARK.fullmatch(part)
        if found:
            parts.append((int(found[2]), int(found[1])))
        elif part:
            parts.append(part)
    return parts


class Symbol(str):
    """A text with marks in it. Contents are taken to hold more than blanks, so that trimming stops at a mark."""

    __slots__ = ()

    def __add__(self, other: str) -> Symbol:
        return Symbol(str.__add__(self, other))

    def __radd__(self, other: str) -> Symbol:
        return Symbol(str.__add__(other, str.__str__(self)))

    def strip(self, chars: str | None = None) -> Symbol:
        """Trim blanks on both sides."""
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None) -> Symbol:
        """Trim blanks on the left."""
        return self if chars is None and self.startswith_mark() else self._trimmed(LEFT, chars)

    def rstrip(self, chars: str | None = None) -> Symbol:
        """Trim blanks on the right."""
        return self._trimmed(RIGHT, chars)

    def startswith_mark(self) -> bool:
        """Say whether it begins with a content that is trimmed on the left already."""
        found = _MARK.match(str.__str__(self))
        return found is not None and bool(int(found[1]) & LEFT)

    def _trimmed(self, side: int, chars: str | None) -> Symbol:
        if chars is not None:
            _looked()
        parts = [part for part in _SPLIT.split(str.__str__(self)) if part]
        at = 0 if side == LEFT else -1
        while parts:
            found = _MARK.fullmatch(parts[at])
            if found:
                parts[at] = mark(int(found[2]), int(found[1]) | side)
                break
            word = parts[at].lstrip() if side == LEFT else parts[at].rstrip()
            if word:
                parts[at] = word
                break
            del parts[at]
        return Symbol("".join(parts))


def _looked(*_: Any, **__: Any) -> NoReturn:
    raise Looked


def _refuse_the_rest() -> None:
    """Everything else that a text can do is looking into it."""
    own = {"startswith_mark", "_trimmed", "__slots__", "__module__", "__qualname__"}
    refused: Callable[..., NoReturn] = _looked
    for name in dir(str):
        if name not in _HARMLESS and name not in own:
            setattr(Symbol, name, refused)
    for name in ("__bool__", "__int__", "__float__", "__index__"):
        setattr(Symbol, name, refused)


_refuse_the_rest()


@final
class Join:
    """``~`` for texts that may be symbols."""

    def __call__(self, *values: Any) -> str:
        if not any(isinstance(value, Symbol) for value in values):
            return "".join(map(str, values))
        whole = Symbol("")
        for value in values:
            whole = whole + (value if isinstance(value, str) else str(value))
        return whole
