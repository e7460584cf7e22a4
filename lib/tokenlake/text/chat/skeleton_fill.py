"""One plain conversation put into the skeleton of its shape, for those who render conversations one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast, final

from tokenlake.text.chat.batch_render import CHECKED
from tokenlake.text.chat.skeletons import Filled, Skeletons
from tokenlake.text.chat.template import LEFT, RIGHT, Message, Skeleton, Stretch

_MESSAGE: Final = frozenset({"role", "content"})
_TRIM: Final[Mapping[int, Callable[[str], str]]] = {
    0: str,
    LEFT: str.lstrip,
    RIGHT: str.rstrip,
    LEFT | RIGHT: str.strip,
}


@final
class Filler:
    """Fills skeletons; of so many conversations as :data:`CHECKED` one is rendered by the template, too."""

    def __init__(self, skeletons: Skeletons) -> None:
        self._skeletons = skeletons
        self._filled = 0

    def fill(self, messages: object) -> Filled | None:
        """Return the rendered conversation, None where the template itself must be run.

        Raises:
            TemplateMismatchError: the template says something else, which would be a bug; nothing was committed.
        """
        shape = _shape(messages)
        skeleton = None if shape is None else self._skeletons.of(shape[0])
        if shape is None or skeleton is None:
            return None
        filled = _fill(skeleton, shape[1])
        self._filled += 1
        if self._filled % CHECKED == 1:
            self._skeletons.compare(filled, cast("Sequence[Message]", messages))
        return filled


def _shape(messages: object) -> tuple[tuple[str, ...], list[str]] | None:
    """Return roles and contents of a plain conversation: two texts in each message, no content blank."""
    if not isinstance(messages, list) or not messages:
        return None
    roles: list[str] = []
    contents: list[str] = []
    for message in cast("list[Any]", messages):
        if not isinstance(message, dict) or message.keys() != _MESSAGE:  # pyright: ignore[reportUnknownMemberType]
            return None
        role, content = cast("Any", message["role"]), cast("Any", message["content"])
        if type(role) is not str or type(content) is not str or not content or content.isspace():
            return None
        roles.append(role)
        contents.append(content)
    return tuple(roles), contents


def _fill(skeleton: Skeleton, contents: Sequence[str]) -> Filled:
    texts = [part if isinstance(part, str) else _TRIM[part[1]](contents[part[0]]) for part in skeleton.parts]
    learned: list[Stretch] = []
    at = begin = 0
    inside = False
    for text, wanted in zip(texts, skeleton.learned, strict=True):
        if wanted is not inside:
            if inside:
                learned.append((begin, at))
            begin, inside = at, wanted
        at += len(text)
    if inside:
        learned.append((begin, at))
    return Filled("".join(texts), tuple(learned))
