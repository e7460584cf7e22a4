"""What is asked of a template and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, final

from tokenlake.errors import ConfigError

Message = Mapping[str, Any]
Slot = tuple[int, int]
"""A message's number, and the sides on which its content is trimmed."""
Stretch = tuple[int, int]

LEFT, RIGHT = 1, 2
"""Sides on which a content is trimmed; added up."""
LIMIT: Final = "template_limit"
"""The reason of rows on which a template does too much."""
NOTHING: Final = "nothing_to_learn"
UNFOUND: Final = "turns_not_found"
"""Reasons of rows of which nothing is learned, or it cannot be told what."""
MAX_TEMPLATE: Final = 1 << 20
"""Characters of a template; the longest known have 30,000."""

NO_DATA: Final = "\ue000no data"
"""In what the process is given, the key of an object that stands for a value that is no JSON."""
OUT_OF_MEMORY: Final = 77
"""The exit code of the process where it was refused memory."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one rendering may come to at most.

    Attributes:
        seconds: of a processor, not of the clock.
        memory: bytes of the process that renders, all of them (where the system bounds them: Linux does).
        text: characters of the result.
    """

    seconds: int = 5
    memory: int = 1 << 30
    text: int = 64 << 20

    def __post_init__(self) -> None:
        for name in ("seconds", "memory", "text"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"limits.{name}: got {getattr(self, name)!r}, must be more than 0")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """What is to be learned of conversations.

    Attributes:
        loss: of the assistant's words, or of all.
        special_tokens: texts of the tokenizer's.
        guarded: whether a special token that the template puts together of a row's own texts is an error.
    """

    loss: Literal["assistant", "all"]
    special_tokens: tuple[str, ...]
    guarded: bool


@final
@dataclass(frozen=True, slots=True)
class RenderedChat:
    """The text of a conversation.

    Attributes:
        learned: stretches of characters that bear loss: (start, stop), ascending and disjoint; where nothing was to be
            learned those that the template marks as the assistant's, () where it has no such marks.
    """

    text: str
    learned: tuple[Stretch, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Skeleton:
    """The words around the contents of conversations of the same roles.

    Attributes:
        parts: words and slots, in order.
        learned: whether each part bears loss.
    """

    parts: tuple[str | Slot, ...]
    learned: tuple[bool, ...]
