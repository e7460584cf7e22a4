"""Skeletons: the words that a chat template puts around the contents of conversations with the same roles.

A template that only puts contents between its own words, stripped at most, does the same whatever they say. So it is
run once for every sequence of roles, on symbols in place of the contents: objects that can be joined and stripped, and
that raise :class:`LookedInto` when they are asked for anything else (their length, their letters, whether they equal
something). The skeleton that comes out holds only if the same template, run on texts, says the same.

In a rendering, a content is written as a mark: ``U+E000, how it was stripped, the message's number, U+E001``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, NoReturn, final

from jinja2.filters import do_trim

from tokenlake.errors import TokenlakeError
from tokenlake.text.chat.template import LEFT, RIGHT, CharSpan, Message, RenderedChat, Skeleton, Slot

OPEN: Final = "\ue000"
_MARK: Final = re.compile(f"{OPEN}([0-3])([0-9]+)\ue001")
_SPLIT: Final = re.compile(f"({OPEN}[0-3][0-9]+\ue001)")

Render = Callable[[Sequence[Message]], RenderedChat]


class LookedInto(BaseException):
    """A template looked into a content. No Exception, which Jinja's own functions would catch."""


def _refuse(*_: Any) -> NoReturn:
    raise LookedInto


_refused: Any = _refuse


@final
class Symbol:
    """A text of words and contents that are not known yet, each taken to hold more than blanks.

    It is no `str`, whose characters C code reads without asking; what a template may ask of one is refused.
    """

    __slots__ = ("_parts",)

    def __init__(self, *parts: str | Slot) -> None:
        self._parts: Any = parts

    def __add__(self, other: object) -> Symbol:
        return Symbol(*self._parts, *_parts(other))

    def __radd__(self, other: object) -> Symbol:
        return Symbol(*_parts(other), *self._parts)

    def strip(self) -> Symbol:
        """Strip blanks on both sides."""
        return self.lstrip().rstrip()

    def lstrip(self) -> Symbol:
        """Strip blanks on the left."""
        first, *rest = self._parts
        if not isinstance(first, str):
            return Symbol((first[0], first[1] | LEFT), *rest)
        first = first.lstrip()
        return Symbol(first, *rest) if first else Symbol(*rest).lstrip()

    def rstrip(self) -> Symbol:
        """Strip blanks on the right."""
        *rest, last = self._parts
        if not isinstance(last, str):
            return Symbol(*rest, (last[0], last[1] | RIGHT))
        last = last.rstrip()
        return Symbol(*rest, last) if last else Symbol(*rest).rstrip()

    __getattr__ = _refused
    __str__ = __repr__ = __format__ = __bool__ = __int__ = __float__ = __index__ = __hash__ = _refused
    __len__ = __iter__ = __contains__ = __getitem__ = _refused
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refused


def _parts(value: object) -> Sequence[str | Slot]:
    if isinstance(value, Symbol):
        return value._parts  # pyright: ignore[reportPrivateUsage]
    if isinstance(value, str):
        return (value,) if value else ()
    raise TypeError(f"a text and a {type(value).__name__} cannot be joined")


def marked_text(symbol: Symbol) -> str:
    """Return the text of a symbol as it is output, its contents as marks."""
    return "".join(part if isinstance(part, str) else _mark(*part) for part in _parts(symbol))


def concat(values: Iterable[Any]) -> Any:
    """Join what ``~`` joins."""
    items = list(values)
    if not any(isinstance(item, Symbol) for item in items):
        return "".join(map(str, items))
    return Symbol(
        *(part for item in items for part in _parts(item if isinstance(item, Symbol) else str(item)))
    )


def trim(value: Any, chars: str | None = None) -> Any:
    """Strip, as the filter `trim` does."""
    text: Any = value
    return value.strip() if type(value) is Symbol and chars is None else do_trim(text, chars)


def is_string(value: Any) -> bool:
    """Say whether a value is a text."""
    return isinstance(value, str | Symbol)


def skeleton(roles: Sequence[str], run: Render, render: Render) -> Skeleton | None:
    """Return the skeleton of conversations of these roles; None where each must be rendered by itself.

    Args:
        run: the template itself.
        render: the same, with the spans that bear loss.
    """
    symbols = [{"role": role, "content": Symbol((at, 0))} for at, role in enumerate(roles)]
    texts = [{"role": role, "content": _mark(at, 0)} for at, role in enumerate(roles)]
    try:
        made, whole = run(symbols).text, render(texts)
    except (LookedInto, TokenlakeError):
        return None
    unstripped = _MARK.sub(lambda found: _mark(int(found[2]), 0), made)
    return _cut(made, whole.loss) if unstripped == whole.text else None


def _mark(number: int, sides: int) -> str:
    return f"{OPEN}{sides}{number}\ue001"


def _cut(made: str, loss: Sequence[CharSpan]) -> Skeleton | None:
    """Cut the words where spans begin and end; None where one does so inside a content."""
    edges = sorted({edge for span in loss for edge in span})
    parts: list[str | Slot] = []
    flags: list[bool] = []
    at = 0
    for part in filter(None, _SPLIT.split(made)):
        found, end = _MARK.fullmatch(part), at + len(part)
        cuts = [at, *(edge for edge in edges if at < edge < end), end]
        if found and len(cuts) > 2:
            return None
        for first, last in pairwise(cuts):
            parts.append((int(found[2]), int(found[1])) if found else part[first - at : last - at])
            flags.append(any(start <= first and last <= stop for start, stop in loss))
        at = end
    return Skeleton(tuple(parts), tuple(flags))
