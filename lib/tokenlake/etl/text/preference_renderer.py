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
    Value,
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
        """Return the texts; rows that cannot be used are bad.

        Their reasons are those of :func:`judgements`.
        """
        documents, faults = self._documents(rows)
        texts_of_documents = self._texts(documents)
        # 1. Rows whose conversation cannot be rendered, and rows that spell a special
        #    token.
        for document, rendered in zip(documents, texts_of_documents, strict=True):
            if isinstance(rendered, Fault):
                faults.setdefault(document.row, rendered)
        row_texts = [_row_texts(document.judgement) for document in documents]
        for document_number, fault in self._guard.faults(row_texts).items():
            faults.setdefault(documents[document_number].row, fault)
        # 2. The texts of all other rows. A pair that is judged answer by answer is left
        #    out as a whole.
        good_texts: list[str] = []
        origin: list[int] = []
        labels: list[bool] = []
        for document, rendered in zip(documents, texts_of_documents, strict=True):
            if document.row not in faults:
                good_texts += cast("list[str]", rendered)
                origin.append(document.row)
                labels.append(document.judgement.label)
        label: Bools | None = None
        if self._settings.method in ("kto", "bco"):
            label = np.array(labels, np.bool_)
        return Rendered(
            text=text_of_strings(good_texts),
            origin=np.array(origin, np.int64),
            bad=tuple(sorted(faults.items())),
            parts=len(text_weights(self._settings.method)),
            label=label,
        )

    def _documents(
        self, rows: Rows
    ) -> tuple[list[_PreferenceDocument], dict[int, Fault]]:
        """Return the documents of all rows, and the faults of rows that have none."""
        # 1. The columns of all values; a field that rows lack is null.
        settings = self._settings
        field_names: dict[str, str] = {}
        columns: dict[str, Sequence[Any]] = {}
        for name in _VALUE_NAMES:
            field_names[name] = str(getattr(settings, f"{name}_field"))
            columns[name] = rows.values(field_names[name])
        labels = rows.values(settings.label_field)
        tools_column = rows.values(settings.tools_field)
        # 2. The documents of each row. A row with any fault gives no document at all.
        documents: list[_PreferenceDocument] = []
        faults: dict[int, Fault] = {}
        for row in range(len(rows)):
            try:
                values: dict[str, Value | None] = {}
                for name in _VALUE_NAMES:
                    values[name] = value_of(columns[name][row], field_names[name])
                tools = tools_of(tools_column[row])
                row_judgements = judgements(values, labels[row], settings.method)
                for judgement in row_judgements:
                    require_learned(judgement)
            except BadRecordError as error:
                faults[row] = fault_of(error)
                continue
            for judgement in row_judgements:
                documents.append(_PreferenceDocument(row, judgement, tools))
        return documents, faults

    def _texts(
        self, documents: Sequence[_PreferenceDocument]
    ) -> list[list[str] | Fault]:
        """Return the texts of each document, or its fault."""
        # Conversations are rendered together, and taken one by one where they belong.
        conversations: list[_PreferenceDocument] = []
        for document in documents:
            if document.judgement.is_conversation:
                conversations.append(document)
        rendered_conversations = iter(self._conversations(conversations))
        # Rows for reward models hold whole texts; the prompt by itself is not one of
        # them.
        first_text = 1 if self._settings.method == "reward" else 0
        texts_of_documents: list[list[str] | Fault] = []
        for document in documents:
            if document.judgement.is_conversation:
                rendered = next(rendered_conversations)
            else:
                rendered = _plain_texts(document.judgement)
            if not isinstance(rendered, Fault):
                rendered = rendered[first_text:]
            texts_of_documents.append(rendered)
        return texts_of_documents

    def _conversations(
        self, documents: Sequence[_PreferenceDocument]
    ) -> list[list[str] | Fault]:
        """Return the text of each prompt, and of the prompt with each answer.

        A prompt ends with the generation prompt where the assistant answers it. A
        document that cannot be rendered has a fault instead.
        """
        # Without conversations no template is needed, and the tokenizer may have none.
        if not documents:
            return []
        batches = {False: _ChatBatch(), True: _ChatBatch()}
        positions_of_documents: list[list[tuple[bool, int | None]]] = []
        # 1. Gather all conversations, those with a generation prompt and those without.
        for document in documents:
            prompt = cast("list[Turn]", document.judgement.prompt or [])
            answers = cast("tuple[list[Turn], ...]", document.judgement.answers)
            # The prompt that a template generates opens a turn of the assistant.
            is_prompted = True
            for answer in answers:
                is_prompted &= answer[0]["role"] == ASSISTANT
            position = batches[is_prompted].add(prompt, document.tools)
            positions = [(is_prompted, position)]
            for answer in answers:
                position = batches[False].add([*prompt, *answer], document.tools)
                positions.append((False, position))
            positions_of_documents.append(positions)
        # 2. Render both batches.
        rendered: dict[bool, dict[int, str | Fault]] = {}
        for is_prompted, batch in batches.items():
            rendered[is_prompted] = batch.rendered(self._templates[is_prompted])
        # 3. Put the texts of a document together again. No turns are an empty text.
        texts_of_documents: list[list[str] | Fault] = []
        for positions in positions_of_documents:
            document_texts: list[str | Fault] = []
            for is_prompted, position in positions:
                if position is None:
                    document_texts.append("")
                else:
                    document_texts.append(rendered[is_prompted][position])
            texts_of_documents.append(_require_continuation(document_texts))
        return texts_of_documents

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
            # The guard of the renderer has looked for special tokens in all values.
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
        """Add a conversation and return its index.

        None for one without turns, whose text is empty.
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
        row_indices = rendered.origin.tolist()
        row_texts = rendered.text.to_pylist()
        for row_index, text in zip(row_indices, row_texts, strict=True):
            texts[row_index] = str(text)
        return texts

    def _chat(self, index: int) -> Chat:
        return self._messages[index], self._tools[index]


def _plain_texts(judgement: Judgement) -> list[str]:
    """Return the prompt, and the prompt with each answer, of texts."""
    prompt = str(judgement.prompt or "")
    texts = [prompt]
    for answer in judgement.answers:
        texts.append(f"{prompt}{answer}")
    return texts


def _row_texts(judgement: Judgement) -> list[Any]:
    """Return all that a row says, in which no special token may be spelled.

    A text stands there together with its answer: a special token may lie across the
    border.
    """
    if judgement.is_conversation:
        return [judgement.prompt, *judgement.answers]
    texts = _plain_texts(judgement)
    # Each answer stands behind the prompt, so that the prompt alone adds nothing.
    if judgement.answers:
        return texts[1:]
    return texts


def _require_continuation(texts: list[str | Fault]) -> list[str] | Fault:
    """Return the texts; a fault where one is missing, or does not begin with the prompt.

    The prompt is the first text.
    """
    for text in texts:
        if isinstance(text, Fault):
            return text
    rendered = cast("list[str]", texts)
    for text in rendered:
        if not text.startswith(rendered[0]):
            return Fault(
                "prompt_not_a_beginning",
                "the chat template does not render the conversation as a continuation of its prompt",
            )
    return rendered


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
    # A tokenizer without a template is an error only when a conversation comes.
    return replace(
        settings,
        chat_template=settings.chat_template or templates_of(files).get(DEFAULT),
    )
