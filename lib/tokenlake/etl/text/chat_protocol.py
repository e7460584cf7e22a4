"""Names shared with the process that renders templates: requests, answers, errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, final

from tokenlake.errors import BadRecordError, ConfigError

Message = Mapping[str, Any]
Slot = tuple[int, int]
"""Index of a message, and the sides on which its content is stripped."""
CharSpan = tuple[int, int]
"""Characters of a text: index of the first, and index behind the last."""

# Bits, so that a content stripped on both sides has the sum.
LEFT: Final = 1
RIGHT: Final = 2
"""Sides on which a content is stripped; their sum means both."""

LIMIT: Final = "template_limit"
"""Reason of rows on which the template exceeds a limit."""
UNFOUND: Final = "turns_not_found"
"""Reason of rows in which the assistant's turns cannot be found."""
FORGED: Final = "special_token_in_text"
"""Reason of rows that spell a special token."""

# Checked before the template is parsed.
MAX_TEMPLATE: Final = 1 << 20
"""Maximum number of characters of a template; the longest known have 30,000."""
NO_DATA: Final = "\ue000no data"
"""Key in a request of an object that stands for a value that is no JSON."""
OUT_OF_MEMORY: Final = 77
"""Exit code of the rendering process after it was refused memory."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one rendering.

    Attributes:
        seconds: Processor time in seconds, not time on the clock.
        memory: Bytes of memory of the whole process that renders (where the system
            limits them: Linux does).
        text: Characters of the result.
    """

    seconds: int = 5
    memory: int = 1 << 30
    text: int = 64 << 20


@final
@dataclass(frozen=True, slots=True)
class RenderedChat:
    """The text of a conversation.

    Attributes:
        text: Text.
        loss: Spans that count toward the loss, ascending and disjoint. Where no loss
            was requested: the spans that the template itself marks as the assistant's,
            () without such marks.
    """

    text: str
    loss: tuple[CharSpan, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Skeleton:
    """The words around the contents of conversations of the same roles.

    Attributes:
        parts: Words and slots, in order.
        loss: Whether each part counts toward the loss.
    """

    parts: tuple[str | Slot, ...]
    loss: tuple[bool, ...]


_Error = TypeVar("_Error", BadRecordError, ConfigError)


def template_error(kind: type[_Error], problem: str, **details: Any) -> _Error:
    """Return the error of a template, which is called the chat template.

    Args:
        kind: Class of the error.
        problem: Rest of the message, which begins with a space or a comma. It is the
            detail ``template_problem``, so that templates that are no chat templates
            can be called otherwise.
        details: Further details of the error.
    """
    return kind(f"the chat template{problem}", template_problem=problem, **details)
