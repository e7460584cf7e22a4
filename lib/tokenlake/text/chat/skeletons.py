"""Conversations of equal shape, rendered without running the template again.

What a template makes of a conversation is mostly the same words around other contents
(:mod:`tokenlake.text.chat.skeleton`); every conversation of a shape is then a join
(:mod:`tokenlake.text.chat.batch_render`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final

from tokenlake.errors import BadRecordError, TemplateMismatchError
from tokenlake.text.chat.template import Message, RenderedChat, Skeleton, Stretch

_SHAPES: Final = 4096  # remembered; conversations of further shapes are rendered one by one
_TURNS: Final = 64


@final
@dataclass(frozen=True, slots=True)
class Filled:
    """A rendered conversation: its text, and the stretches of characters that bear loss, ascending and disjoint."""

    text: str
    learned: tuple[Stretch, ...]


class Shaped(Protocol):
    """A template that says the skeleton of a shape, and renders one conversation of it."""

    def skeleton(self, roles: Sequence[str]) -> Skeleton | None: ...

    def for_shape(self, messages: Sequence[Message]) -> RenderedChat: ...


@final
class Skeletons:
    """The shapes that a template was seen to make."""

    def __init__(self, template: Shaped) -> None:
        self._template = template
        self._known: dict[tuple[str, ...], Skeleton | None] = {}

    def of(self, roles: tuple[str, ...]) -> Skeleton | None:
        """Return the skeleton of conversations of these roles, None where the template itself must be run."""
        if len(roles) > _TURNS:
            return None
        if roles not in self._known and len(self._known) < _SHAPES:
            self._known[roles] = self._template.skeleton(roles)
        return self._known.get(roles)

    def compare(self, filled: Filled, messages: Sequence[Message]) -> None:
        """Compare what a skeleton says with what the template says.

        Raises:
            TemplateMismatchError: they differ, which would be a bug; nothing was committed.
        """
        try:
            made = self._template.for_shape(messages)
        except BadRecordError as error:
            made = RenderedChat(f"the error {error}")
        if (made.text, _joined(made.learned)) != (filled.text, filled.learned):
            raise TemplateMismatchError(
                f"a chat template was rendered in two ways that differ: {filled.text[:400]!r} by its skeleton, "
                f"{made.text[:400]!r} by itself, learned {filled.learned} and {made.learned}. Expected the same; this "
                "is a bug, please report the template. Nothing was committed"
            )


def _joined(learned: Sequence[Stretch]) -> tuple[Stretch, ...]:
    """Join stretches that touch, and leave empty ones out, as a skeleton does."""
    joined: list[Stretch] = []
    for start, stop in learned:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        elif start < stop:
            joined.append((start, stop))
    return tuple(joined)
