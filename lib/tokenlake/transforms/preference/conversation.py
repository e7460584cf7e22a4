"""Conversations of a prompt and its answers to texts, by the chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, final

from tokenlake.config.resolved_texts import ResolvedPreference
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.faults import Fault
from tokenlake.templates import ChatTemplate
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.transforms.chat.filling import Filler
from tokenlake.transforms.chat.skeletons import Skeletons
from tokenlake.transforms.chat.sources import named_tokens
from tokenlake.transforms.preference.turns import Turn, Value


@final
class ConversationTexts:
    """Renders with the template of `settings`.

    Raises:
        ConfigError: there is no template, or it cannot be compiled.
    """

    def __init__(self, settings: ResolvedPreference, files: TokenizerFiles) -> None:
        if settings.chat_template is None:
            raise ConfigError(
                f"preference: rows hold conversations, but tokenizer {files.name!r} has no chat template; use a "
                "tokenizer that has one (chat_template.jinja, or chat_template in tokenizer_config.json)",
                tokenizer=files.name,
            )
        self._templates = {
            open_turn: ChatTemplate(
                settings.chat_template,
                variables={**named_tokens(files), "add_generation_prompt": open_turn},
            )
            for open_turn in (False, True)
        }
        self._fillers = {key: Filler(Skeletons(template)) for key, template in self._templates.items()}

    def texts(
        self, prompt: Value | None, answers: tuple[Value, ...], tools: Sequence[Any] | None
    ) -> list[str] | Fault:
        """Return the text of the prompt, and of the prompt with each answer.

        The prompt ends with what begins the assistant's turn, where that is whose turn it is.
        """
        turns = cast("list[Turn]", prompt or [])
        said = cast("tuple[list[Turn], ...]", answers)
        begins = all(answer[0]["role"] == "assistant" for answer in said)
        try:
            first = self._text(turns, tools, open_turn=begins) if turns else ""
            wholes = [self._text([*turns, *answer], tools, open_turn=False) for answer in said]
        except BadRecordError as error:
            return Fault(str(error.details.get("reason", "template_error")), str(error))
        if any(not whole.startswith(first) for whole in wholes):
            return Fault(
                "prompt_not_a_beginning",
                "the chat template does not render the conversation as a continuation of its prompt",
            )
        return [first, *wholes]

    def _text(self, turns: list[Turn], tools: Sequence[Any] | None, *, open_turn: bool) -> str:
        filled = None if tools else self._fillers[open_turn].fill(turns)
        if filled is not None:
            return filled.text
        return self._templates[open_turn].render(turns, tools).text
