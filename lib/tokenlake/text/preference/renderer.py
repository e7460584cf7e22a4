"""Rows of preferences to texts: of a prompt, and of the prompt with each of its answers.

Conversations of a prompt and its answers to texts, by the chat template.

What only the tokenizer can say of a preference: its chat template, and whether it has an EOS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import compress
from typing import Any, Final, cast, final

import numpy as np
import pyarrow as pa

from tokenlake.config.resolved import ResolvedPreference
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.preference_columns import text_weights
from tokenlake.sources.rows import Fault, Rows
from tokenlake.text.chat.loss_spans import texts_in
from tokenlake.text.chat.skeleton_fill import Filler
from tokenlake.text.chat.skeletons import Skeletons
from tokenlake.text.chat.template import ChatTemplate
from tokenlake.text.chat.tokenizer_template import ForgeryScan, named_tokens, template_of
from tokenlake.text.preference.answers import Given, Judgement, Turn, Value, judgements, tools_of, value_of
from tokenlake.text.rendering import Rendered
from tokenlake.tokenizers.files import TokenizerFiles


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


_ARROW: Final[Any] = pa
_FIELDS: Final = ("prompt", "chosen", "rejected", "completion")


@final
class PreferenceRenderer:
    """Makes the texts of a document: of dpo, orpo, cpo ``prompt, prompt + chosen, prompt + rejected``; of kto, bco
    ``prompt, prompt + completion``; of reward both whole texts; of grpo the prompt.

    Args:
        special_tokens_in_text: ``fail``: rows whose own text spells a special token are bad; ``encode``: it becomes
            one; ``literal``: it stays text, which conversations, whose template spells its own, cannot have.
    """

    def __init__(
        self, settings: ResolvedPreference, files: TokenizerFiles, special_tokens_in_text: str
    ) -> None:
        self._settings, self._files, self._special = settings, files, special_tokens_in_text
        self._scan = ForgeryScan.of(files)
        self._names = {name: getattr(settings, f"{name}_field") for name in (*_FIELDS, "label", "tools")}

    @property
    def control_tokens(self) -> bool:
        return self._special != "literal"

    @property
    def columns(self) -> tuple[str, ...] | None:
        # A row need not have all of the fields, and a reader refuses a column that is not there.
        return None

    def render(self, rows: Rows) -> Rendered:
        """Return the texts; rows that cannot be used are bad (see :func:`judgements`)."""
        texts: list[str] = []
        own: list[Any] = []
        origin: list[int] = []
        labels: list[bool] = []
        bad: dict[int, Fault] = {}
        for index, given in enumerate(self._given(rows)):
            made = given if isinstance(given, Fault) else self._texts(given)
            if isinstance(made, Fault):
                bad[index] = made
                continue
            for judgement, parts, said in made:
                texts += parts
                own.append(said)
                origin.append(index)
                labels.append(bool(judgement.label))
        for at, fault in self._unfit(own).items():
            bad.setdefault(origin[at], fault)
        return self._rendered(texts, origin, labels, bad)

    def _rendered(
        self, texts: list[str], origin: list[int], labels: list[bool], bad: dict[int, Fault]
    ) -> Rendered:
        parts = len(text_weights(self._settings.method))
        keep = np.array([index not in bad for index in origin], np.bool_)
        if not keep.all():
            texts = list(compress(texts, np.repeat(keep, parts).tolist()))
        array = _ARROW.array(texts, pa.large_string())
        return Rendered(
            text=array,
            origin=np.array(origin, np.int64)[keep],
            bad=tuple(sorted(bad.items())),
            parts=parts,
            label=np.array(labels, np.bool_)[keep] if self._settings.method in ("kto", "bco") else None,
        )

    def _given(self, rows: Rows) -> list[Given | Fault]:
        columns = {name: rows.values(path) for name, path in self._names.items()}
        found: list[Given | Fault] = []
        for at in range(len(rows)):
            values = {name: value_of(columns[name][at], self._names[name]) for name in _FIELDS}
            fault = next((value for value in values.values() if isinstance(value, Fault)), None)
            fields: Any = values
            tools = tools_of(columns["tools"][at])
            fault = fault or (tools if isinstance(tools, Fault) else None)
            found.append(fault or Given(**fields, label=columns["label"][at], tools=tools))
        return found

    def _texts(self, given: Given) -> list[tuple[Judgement, list[str], Any]] | Fault:
        """Return each document's texts, and its row's own words."""
        found = judgements(given, self._settings.method)
        if isinstance(found, Fault):
            return found
        made: list[tuple[Judgement, list[str], Any]] = []
        for judgement in found:
            texts = self._parts(judgement, given.tools)
            if isinstance(texts, Fault):
                return texts
            made.append((judgement, texts, _own(judgement)))
        return made

    def _parts(self, judgement: Judgement, tools: Any) -> list[str] | Fault:
        prompt, answers = judgement.prompt, judgement.answers
        values: tuple[Value | None, ...] = (prompt, *answers)
        if any(isinstance(value, list) for value in values):
            if self._special == "literal":
                raise ConfigError(
                    "special_tokens_in_text: literal is for texts, but rows hold conversations, whose template spells "
                    "special tokens itself; use fail (such rows are bad records) or encode"
                )
            whole = self._conversations.texts(prompt, answers, tools)
        else:
            whole = [str(prompt), *(f"{prompt or ''}{answer}" for answer in answers)]
        return whole[1:] if self._settings.method == "reward" and not isinstance(whole, Fault) else whole

    def _unfit(self, own: list[Any]) -> dict[int, Fault]:
        """Return what cannot be encoded, or must not be: special tokens in a row's own text, half characters."""
        if self._special == "fail":
            return self._scan.faults(own)
        return {
            at: Fault("invalid_utf8", "a text holds half of a surrogate pair")
            for at, said in enumerate(own)
            if not all(map(_is_utf8, texts_in(said)))
        }

    @cached_property
    def _conversations(self) -> ConversationTexts:
        return ConversationTexts(self._settings, self._files)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _own(judgement: Judgement) -> Any:
    """All that the row itself says; a text with its answer in one piece, for the border may lie inside a token."""
    prompt, answers = judgement.prompt, judgement.answers
    if isinstance(prompt, list) or any(isinstance(answer, list) for answer in answers):
        return [prompt, *answers]
    return [f"{prompt or ''}{answer}" for answer in answers or ("",)]


def settled_preference(settings: ResolvedPreference, files: TokenizerFiles) -> ResolvedPreference:
    """Return the settings with the tokenizer's chat template, where it has one.

    Raises:
        ConfigError: answers would have no end, because the tokenizer names no EOS.
    """
    if settings.method != "grpo" and files.eos_id is None:
        raise ConfigError(
            f"tokenizer {files.name!r} names no EOS token, by which a model learns where an answer ends; set "
            "eos_token in its tokenizer_config.json",
            tokenizer=files.name,
        )
    return replace(settings, chat_template=settings.chat_template or template_of(files))
