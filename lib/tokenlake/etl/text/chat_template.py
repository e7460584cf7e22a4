"""A chat template: a program that runs in a process of its own.

The process is :mod:`tokenlake.etl.text.render_process`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, Literal, final

from tokenlake.errors import ConfigError, TokenlakeError, from_json
from tokenlake.etl.text.chat_protocol import (
    Limits,
    Message,
    RenderedChat,
    Skeleton,
    Slot,
    template_error,
)
from tokenlake.etl.text.render_process import PROCESS, OpenTemplate, request


@final
class ChatTemplate:
    """Renders conversations as transformers does, or not at all.

    Its text is that of `apply_chat_template(tokenize=False)`. It differs where that
    would let a mistake become text: a missing value or null is never output, today's
    date does not exist, and a rendering has limits (:class:`Limits`). A message's
    fields that are null count as missing.

    Args:
        text: Jinja template.
        variables: Variables of the template: named tokens, ``add_generation_prompt``;
            ``strftime_now`` is the date that the function of this name gives.
        loss: Part of a conversation that counts toward the loss: the assistant's turns,
            or all; None: it is not requested.
        special_tokens: Texts of the tokenizer's special tokens.
        guarded: True to make it an error that the template puts a special token
            together of a conversation's own texts.
        limits: Limits of a rendering; None: the default ones.
        learned: Variable that is marked wherever it is output, in a template without
            marks of its own.
        learn_empty_reasoning: True to count an empty block of reasoning that a prompt
            may supply toward the loss, too.
        mask_reasoning: True to exclude reasoning from the loss.

    Raises:
        ConfigError: The template cannot be compiled, needs other files, or has ``{%
            generation %}`` at a place that is not known in the text.
    """

    def __init__(
        self,
        text: str,
        variables: Mapping[str, Any] | None = None,
        *,
        loss: Literal["assistant", "all"] | None = None,
        special_tokens: Sequence[str] = (),
        guarded: bool = False,
        limits: Limits | None = None,
        learned: str | None = None,
        learn_empty_reasoning: bool = False,
        mask_reasoning: bool = False,
    ) -> None:
        self.limits: Final = limits or Limits()
        # The opening holds all settings, so that its hash names the template.
        settings = {
            "text": text,
            "variables": variables or {},
            "limits": asdict(self.limits),
            "loss": loss,
            "special_tokens": special_tokens,
            "guarded": guarded,
            "learned": learned,
            "learn_empty_reasoning": learn_empty_reasoning,
            "mask_reasoning": mask_reasoning,
        }
        opening = request("open", settings)
        name = hashlib.sha256(opening).hexdigest()[:16]
        self._template = OpenTemplate(name, opening, self.limits)
        # The process compiles the template now, so that an error is raised here.
        (answer,) = PROCESS.ask(self._template, [opening])
        if "error" in answer:
            error = from_json(answer["error"])
            if isinstance(error, ConfigError):
                raise error
            raise template_error(
                ConfigError, f" cannot be compiled: {error}"
            ) from error
        self.marked: Final[bool] = answer["marked"]
        """Whether the template marks the assistant's turns."""
        self.names: Final[tuple[str, ...]] = tuple(answer["names"])
        """Names of the variables that the template does not set itself."""

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None = None,
        **variables: Any,
    ) -> RenderedChat:
        """Render one conversation, without its spans that count toward the loss.

        Args:
            messages: Dicts of plain data (JSON) with ``role`` and ``content``.
            tools: JSON schemas of the tools.
            variables: Variables of this conversation.

        Raises:
            BadRecordError: The template fails on this conversation
                (``template_error``), refuses it (``template_refused``), or exceeds a
                limit (``template_limit``).
            ConfigError: The template needs today's date and none was given, or it ends
                every process that runs it.
        """
        return self._result(request("render", messages, tools, variables))

    def render_whole(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None = None,
        **variables: Any,
    ) -> RenderedChat:
        """Render one conversation, of which the template must leave nothing out.

        A conversation is given to the template in another form if it takes only that
        (:mod:`tokenlake.etl.text.chat_forms`). Arguments are those of :meth:`render`.

        Raises:
            BadRecordError: As for :meth:`render`, or the template leaves out a part of
                a turn (``not_rendered``).
            ConfigError: As for :meth:`render`.
        """
        return self._result(request("render_whole", messages, tools, variables))

    def render_all(
        self, conversations: Iterable[tuple[Sequence[Message], Sequence[Any] | None]]
    ) -> list[RenderedChat | TokenlakeError]:
        """Render conversations with the spans that count toward the loss.

        An error stands in the place of each that cannot be used.

        Args:
            conversations: Messages and tools of each.

        Raises:
            ConfigError: As for :meth:`render`.
        """
        requests: list[bytes] = []
        for messages, tools in conversations:
            requests.append(request("render_with_loss", messages, tools))
        return self._results(requests)

    def render_rows(
        self, rows: Iterable[Mapping[str, Any]], *, guarded: bool
    ) -> list[RenderedChat | TokenlakeError]:
        """Render rows, whose fields are variables, with marked spans.

        An error stands in the place of each that cannot be used.

        Args:
            rows: Rows.
            guarded: True to make it an error that a special token is put together of a
                row's own texts.

        Raises:
            ConfigError: As for :meth:`render`.
        """
        return self._results([request("render_row", row, guarded) for row in rows])

    def skeleton(self, roles: Sequence[str]) -> Skeleton | None:
        """Return the skeleton of conversations of some roles.

        None where each conversation must be rendered by itself.
        """
        (answer,) = PROCESS.ask(self._template, [request("skeleton", roles)])
        # A template without a skeleton answers an empty object.
        if "parts" not in answer:
            return None
        parts = tuple(map(_skeleton_part, answer["parts"]))
        return Skeleton(parts, tuple(answer["loss"]))

    def _result(self, line: bytes) -> RenderedChat:
        """Return the result of one request; raises its error."""
        (result,) = self._results([line])
        if isinstance(result, TokenlakeError):
            raise result
        return result

    def _results(
        self, requests: Sequence[bytes]
    ) -> list[RenderedChat | TokenlakeError]:
        """Return the results of requests, or their errors."""
        results: list[RenderedChat | TokenlakeError] = []
        for answer in PROCESS.ask(self._template, requests):
            if "error" in answer:
                results.append(from_json(answer["error"]))
                continue
            # JSON has lists in the place of tuples.
            spans = tuple((start, stop) for start, stop in answer["loss"])
            results.append(RenderedChat(answer["text"], spans))
        return results


def _skeleton_part(part: Any) -> str | Slot:
    """Return a part of a skeleton: a text, or a slot, which is a list in JSON."""
    if isinstance(part, str):
        return part
    message, sides = part
    return message, sides
