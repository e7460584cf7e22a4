"""Conversations of a prompt and its answers to texts, by the chat template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast, final

from tokenlake.config.resolved_texts import ResolvedPreference
from tokenlake.errors import BadRecordError, ConfigError, IntegrityError
from tokenlake.faults import Fault
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.transforms.chat.skeletons import Messages, Skeleton, Skeletons, Stretch
from tokenlake.transforms.chat.symbols import LEFT, RIGHT
from tokenlake.transforms.chat.template import ChatTemplate, named_tokens
from tokenlake.transforms.preference.turns import Turn, Value

_CHECKED: Final = 997
"""Conversations of which one is rendered by the template, too; a prime, so that it does not beat with an order."""

_TRIM: Final[dict[int, Callable[[str], str]]] = {
    0: str,
    LEFT: str.lstrip,
    RIGHT: str.rstrip,
    LEFT | RIGHT: str.strip,
}


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
        self._template = ChatTemplate.of(settings.chat_template, files)
        self._joined = 0
        self._skeletons = {open_turn: self._skeletons_for(files, open_turn) for open_turn in (False, True)}

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

    def _skeletons_for(self, files: TokenizerFiles, open_turn: bool) -> Skeletons:
        def render(messages: Messages) -> tuple[str, Sequence[Stretch]]:
            made = self._template.render(messages, add_generation_prompt=open_turn)
            return made.text, made.learned

        variables = {
            **named_tokens(files),
            "add_generation_prompt": open_turn,
            "tools": None,
            "documents": None,
        }
        return Skeletons(self._template.text, render, variables)

    def _text(self, turns: list[Turn], tools: Sequence[Any] | None, *, open_turn: bool) -> str:
        if not tools and all(map(_is_plain, turns)):
            skeleton = self._skeletons[open_turn].of(tuple(turn["role"] for turn in turns))
            if skeleton is not None:
                return self._filled(skeleton, turns, open_turn)
        return self._template.render(turns, tools, add_generation_prompt=open_turn).text

    def _filled(self, skeleton: Skeleton, turns: list[Turn], open_turn: bool) -> str:
        """Put contents where the template would; of so many conversations one is rendered both ways."""
        texts = [
            part if isinstance(part, str) else _TRIM[part[1]](turns[part[0]]["content"])
            for part in skeleton.parts
        ]
        text = "".join(texts)
        self._joined += 1
        if self._joined % _CHECKED == 1:
            self._compare(text, self._template.render(turns, add_generation_prompt=open_turn).text)
        return text

    def _compare(self, text: str, rendered: str) -> None:
        if text != rendered:
            raise IntegrityError(
                f"a chat template was rendered in two ways that differ: {text[:400]!r} by its skeleton, "
                f"{rendered[:400]!r} by itself. This is a bug; nothing was committed"
            )


def _is_plain(turn: Turn) -> bool:
    """Whether a turn is a role and a content that is not blank, which is what a skeleton takes."""
    content = turn.get("content")
    return len(turn) == len(("role", "content")) and isinstance(content, str) and bool(content.strip())
