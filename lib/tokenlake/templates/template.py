"""A chat template as its callers have it: what it is told goes to the process that renders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, final

from tokenlake.errors import TokenlakeError, from_json
from tokenlake.templates.process import PROCESS, Opening, request
from tokenlake.templates.rendered import Lessons, Limits, Message, RenderedChat, Skeleton


@final
class ChatTemplate:
    """Renders conversations as `apply_chat_template(tokenize=False)` of transformers does, or not at all.

    It differs where that would let a mistake become text: what is missing or null is never output, today's date is
    not to be had, and a rendering is bounded (:class:`Limits`). A message's fields that are null count as missing.

    Args:
        text: the Jinja template.
        bos_token, eos_token: texts of the tokenizer's tokens; None where it has none.
        variables: further variables of the template: other named tokens, ``add_generation_prompt``; ``strftime_now``
            among them is the date that the function of this name says.
        lessons: what is to be learned, where anything is.

    Raises:
        ConfigError: the template cannot be compiled, asks for other files, or has ``{% generation %}`` where its
            place in the text is not known.
    """

    def __init__(
        self,
        text: str,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        variables: Mapping[str, Any] | None = None,
        lessons: Lessons | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.text: Final = text
        named = {"bos_token": bos_token, "eos_token": eos_token}
        named = {name: token for name, token in named.items() if token is not None}
        self._learns = lessons is not None
        self._opening = Opening(text, {**named, **(variables or {})}, lessons, limits or Limits())
        self.marked: Final[bool] = PROCESS.open(self._opening)["marked"]
        """Whether the template itself says what the assistant's stretches are."""

    def render(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, **variables: Any
    ) -> RenderedChat:
        """Render a conversation.

        Args:
            messages: dicts of plain data (JSON), as ``role`` and ``content``.
            tools: JSON schemas of what may be called.
            variables: of this conversation.

        Raises:
            BadRecordError: the template fails on this conversation (``template_error``), refuses it
                (``template_refused``), or does more than it may (``template_limit``).
            ConfigError: the template asks for today's date, and none was given, or it ends every process that runs it.
        """
        return _one(self._asked([request("render", messages, tools, variables)]))

    def learn(
        self, conversations: Iterable[tuple[Sequence[Message], Sequence[Any] | None]]
    ) -> list[RenderedChat | TokenlakeError]:
        """Render conversations (messages and tools), and say what is learned of each, or why it cannot be used.

        Raises:
            ConfigError: as :meth:`render`.
        """
        return self._asked([request("learn", messages, tools) for messages, tools in conversations])

    def skeleton(self, roles: Sequence[str]) -> Skeleton | None:
        """Return the skeleton of conversations of these roles, None where each must be rendered by itself."""
        (answer,) = PROCESS.ask(self._opening, [request("skeleton", roles)])
        if "parts" not in answer:
            return None
        parts = tuple(part if isinstance(part, str) else (part[0], part[1]) for part in answer["parts"])
        return Skeleton(parts, tuple(answer["learned"]))

    def for_shape(self, messages: Sequence[Message]) -> RenderedChat:
        """Render one conversation as those of a skeleton: with what is learned of it, where anything is.

        Raises:
            as :meth:`render`; BadRecordError also where nothing can be learned of it.
        """
        return _one(self.learn([(messages, None)])) if self._learns else self.render(messages)

    def _asked(self, requests: Sequence[bytes]) -> list[RenderedChat | TokenlakeError]:
        return [_made(answer) for answer in PROCESS.ask(self._opening, requests)]


def _made(answer: dict[str, Any]) -> RenderedChat | TokenlakeError:
    if "error" in answer:
        return from_json(answer["error"])
    return RenderedChat(answer["text"], tuple((start, stop) for start, stop in answer["learned"]))


def _one(made: list[RenderedChat | TokenlakeError]) -> RenderedChat:
    (chat,) = made
    if isinstance(chat, TokenlakeError):
        raise chat
    return chat
