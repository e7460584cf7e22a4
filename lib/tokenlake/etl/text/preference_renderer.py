"""Texts of preferences: of the prompt, and of the prompt with each of its answers.

| method | texts of a document |
|---|---|
| dpo, orpo, cpo | prompt, prompt + chosen, prompt + rejected |
| kto, bco | prompt, prompt + completion |
| reward | prompt + chosen, prompt + rejected |
| grpo | prompt |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, cast, final

import numpy as np

from tokenlake.base.arrays import Bools, text_of_strings
from tokenlake.base.columns import text_weights
from tokenlake.config.resolved import ResolvedPreference
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.text.chat_messages import Turn, tools_of
from tokenlake.etl.text.chat_template import ChatTemplate
from tokenlake.etl.text.chat_weights import ASSISTANT
from tokenlake.etl.text.conversations import Chat, Conversations
from tokenlake.etl.text.judgement import (
    READER,
    Judgement,
    judgements,
    require_learned,
    value_of,
)
from tokenlake.etl.text.renderer import Rendered
from tokenlake.etl.text.special_token_guard import SpecialTokenGuard
from tokenlake.etl.text.template_choice import (
    DEFAULT,
    check_mode,
    named_tokens,
    no_template,
    templates_of,
)
from tokenlake.etl.text.transform import fault_of
from tokenlake.etl.tokenizers.files import TokenizerFiles

_VALUE_NAMES: Final = ("prompt", "chosen", "rejected", "completion")


@final
@dataclass(frozen=True, slots=True)
class _PreferenceDocument:
    """A document before it is rendered.

    Attributes:
        row: Index of the row that it is made of.
        judgement: Its prompt and answers.
        tools: Tools that its conversation may call.
    """

    row: int
    judgement: Judgement
    tools: list[Any] | None


@final
class PreferenceRenderer:
    """Renders the texts of preferences.

    Args:
        settings: Section ``preference``, with the chat template that conversations
            need.
        files: Files of the tokenizer.
        special_tokens_in_text: ``fail`` makes rows whose own text spells a special
            token bad; ``encode`` makes control tokens of them; ``literal`` keeps them
            text, which is not possible for conversations, whose template spells its
            own.
    """

    def __init__(
        self,
        settings: ResolvedPreference,
        files: TokenizerFiles,
        special_tokens_in_text: str,
    ) -> None:
        self._settings = settings
        self._files = files
        self._special_tokens_in_text = special_tokens_in_text
        self._guard = SpecialTokenGuard.of(files, special_tokens_in_text)
        self.control_tokens: Final = special_tokens_in_text != "literal"
        # A row need not have all of the fields, and a reader refuses a column that does
        # not exist.
        self.columns: Final = None

    def render(self, rows: Rows) -> Rendered:
        """Return the texts; rows that cannot be used are bad (see
        :func:`judgements`).
        """
        documents, faults = self._documents(rows)
        texts = self._texts(documents)
        # 1. Rows whose conversation cannot be rendered, and rows that spell a special
        #    token.
        for document, rendered in zip(documents, texts, strict=True):
            if isinstance(rendered, Fault):
                faults.setdefault(document.row, rendered)
        own_texts = [_own_texts(document.judgement) for document in documents]
        for number, fault in self._guard.faults(own_texts).items():
            faults.setdefault(documents[number].row, fault)
        # 2. The texts of all other rows.
        kept_texts: list[str] = []
        origin: list[int] = []
        labels: list[bool] = []
        for document, rendered in zip(documents, texts, strict=True):
            if document.row not in faults:
                kept_texts += cast("list[str]", rendered)
                origin.append(document.row)
                labels.append(document.judgement.label)
        label: Bools | None = None
        if self._settings.method in ("kto", "bco"):
            label = np.array(labels, np.bool_)
        return Rendered(
            text=text_of_strings(kept_texts),
            origin=np.array(origin, np.int64),
            bad=tuple(sorted(faults.items())),
            parts=len(text_weights(self._settings.method)),
            label=label,
        )

    def _documents(
        self, rows: Rows
    ) -> tuple[list[_PreferenceDocument], dict[int, Fault]]:
        """Return the documents of all rows, and the faults of rows that have none."""
        fields = {
            name: str(getattr(self._settings, f"{name}_field")) for name in _VALUE_NAMES
        }
        columns = {name: rows.values(field) for name, field in fields.items()}
        labels = rows.values(self._settings.label_field)
        tools_column = rows.values(self._settings.tools_field)
        method = self._settings.method
        # A row with any fault gives no document at all.
        documents: list[_PreferenceDocument] = []
        faults: dict[int, Fault] = {}
        for row in range(len(rows)):
            try:
                values = {
                    name: value_of(columns[name][row], fields[name])
                    for name in _VALUE_NAMES
                }
                tools = tools_of(tools_column[row])
                row_judgements = judgements(values, labels[row], method)
                for judgement in row_judgements:
                    require_learned(judgement)
            except BadRecordError as error:
                faults[row] = fault_of(error)
                continue
            documents += [
                _PreferenceDocument(row, judgement, tools)
                for judgement in row_judgements
            ]
        return documents, faults

    def _texts(
        self, documents: Sequence[_PreferenceDocument]
    ) -> list[list[str] | Fault]:
        """Return the texts of each document, or its fault."""
        conversations = [
            document for document in documents if document.judgement.is_conversation
        ]
        rendered_conversations = iter(
            self._conversations(conversations) if conversations else ()
        )
        # Rows for reward models hold whole texts; the prompt by itself is not one of
        # them.
        first = 1 if self._settings.method == "reward" else 0
        texts: list[list[str] | Fault] = []
        for document in documents:
            if document.judgement.is_conversation:
                rendered = next(rendered_conversations)
            else:
                rendered = _plain_texts(document.judgement)
            texts.append(rendered if isinstance(rendered, Fault) else rendered[first:])
        return texts

    def _conversations(
        self, documents: Sequence[_PreferenceDocument]
    ) -> list[list[str] | Fault]:
        """Return the text of each prompt, and of the prompt with each answer, or a
        fault.

        A prompt ends with the generation prompt where the assistant answers it.
        """
        batches = {False: _ChatBatch(), True: _ChatBatch()}
        places: list[list[tuple[bool, int | None]]] = []
        # 1. Gather all conversations, those with a generation prompt and those without.
        for document in documents:
            prompt = cast("list[Turn]", document.judgement.prompt or [])
            answers = cast("tuple[list[Turn], ...]", document.judgement.answers)
            has_generation_prompt = all(
                answer[0]["role"] == ASSISTANT for answer in answers
            )
            place = batches[has_generation_prompt].add(prompt, document.tools)
            own_places = [(has_generation_prompt, place)]
            for answer in answers:
                place = batches[False].add([*prompt, *answer], document.tools)
                own_places.append((False, place))
            places.append(own_places)
        # 2. Render both batches.
        rendered = {
            prompted: batches[prompted].rendered(self._templates[prompted])
            for prompted in batches
        }
        # 3. Put the texts of a document together again.
        texts: list[list[str] | Fault] = []
        for own_places in places:
            own_texts: list[str | Fault] = []
            for is_prompted, place in own_places:
                own_texts.append("" if place is None else rendered[is_prompted][place])
            texts.append(_require_continuation(own_texts))
        return texts

    @cached_property
    def _templates(self) -> dict[bool, Conversations]:
        """The chat template, without (False) and with (True) the generation prompt.

        Raises:
            ConfigError: The tokenizer has none, or it cannot be compiled.
        """
        check_mode(self._special_tokens_in_text)
        if self._settings.chat_template is None:
            raise ConfigError(
                f"preference: {no_template(self._files.name, [])}",
                tokenizer=self._files.name,
            )
        templates: dict[bool, Conversations] = {}
        for has_generation_prompt in (False, True):
            variables = {
                **named_tokens(self._files),
                "add_generation_prompt": has_generation_prompt,
            }
            template = ChatTemplate(self._settings.chat_template, variables)
            templates[has_generation_prompt] = Conversations(
                template, READER.roles, SpecialTokenGuard()
            )
        return templates


@final
class _ChatBatch:
    """Conversations that are rendered together."""

    def __init__(self) -> None:
        self._messages: list[list[Turn]] = []
        self._tools: list[list[Any] | None] = []

    def add(self, messages: list[Turn], tools: list[Any] | None) -> int | None:
        """Add a conversation and return its index; None for one without turns, whose
        text is empty.
        """
        if not messages:
            return None
        self._messages.append(messages)
        self._tools.append(tools)
        return len(self._messages) - 1

    def rendered(self, conversations: Conversations) -> dict[int, str | Fault]:
        """Return the text of each conversation by its index, or its fault."""
        if not self._messages:
            return {}
        rendered = conversations.render(self._messages, self._tools, self._chat)
        texts: dict[int, str | Fault] = dict(rendered.bad)
        for index, text in zip(
            rendered.origin.tolist(), rendered.text.to_pylist(), strict=True
        ):
            texts[index] = str(text)
        return texts

    def _chat(self, index: int) -> Chat:
        return self._messages[index], self._tools[index]


def _plain_texts(judgement: Judgement) -> list[str]:
    """Return the prompt, and the prompt with each answer, of texts."""
    prompt = str(judgement.prompt or "")
    return [prompt, *(f"{prompt}{answer}" for answer in judgement.answers)]


def _own_texts(judgement: Judgement) -> list[Any]:
    """Return all that a row says, in which no special token may be spelled.

    A text stands there together with its answer: a special token may lie across the
    border.
    """
    if judgement.is_conversation:
        return [judgement.prompt, *judgement.answers]
    texts = _plain_texts(judgement)
    return texts[1:] if judgement.answers else texts


def _require_continuation(texts: list[str | Fault]) -> list[str] | Fault:
    """Return the texts; a fault where one is missing, or does not begin with the
    first one, the prompt.
    """
    for text in texts:
        if isinstance(text, Fault):
            return text
    rendered = cast("list[str]", texts)
    if all(text.startswith(rendered[0]) for text in rendered):
        return rendered
    return Fault(
        "prompt_not_a_beginning",
        "the chat template does not render the conversation as a continuation of its prompt",
    )


def settled_preference(
    settings: ResolvedPreference, files: TokenizerFiles
) -> ResolvedPreference:
    """Return the settings with the tokenizer's chat template, where it has one.

    Raises:
        ConfigError: The tokenizer names no EOS token, so that answers would have no
            end.
    """
    if settings.method != "grpo" and files.eos_id is None:
        raise ConfigError(
            f"tokenizer {files.name!r} has no EOS token, from which a model learns the end of an answer; set "
            "eos_token in its tokenizer_config.json",
            tokenizer=files.name,
        )
    return replace(
        settings,
        chat_template=settings.chat_template or templates_of(files).get(DEFAULT),
    )
