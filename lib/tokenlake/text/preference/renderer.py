"""Rows of preferences become texts: of a prompt, and of the prompt with each of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any, Final, NamedTuple, cast, final

import numpy as np
import pyarrow as pa

from tokenlake.config.resolved import ResolvedPreference
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.preference_columns import text_weights
from tokenlake.sources.rows import Fault, Rows
from tokenlake.text.chat.batch_render import BatchRenderer
from tokenlake.text.chat.messages import Turn, tools_of
from tokenlake.text.chat.template import ChatTemplate, RenderedChat
from tokenlake.text.chat.tokenizer_template import SpecialTokenGuard, named_tokens, template_of
from tokenlake.text.preference.answers import READER, Judgement, judgements, value_of
from tokenlake.text.rendering import Rendered
from tokenlake.text.transform import fault_of
from tokenlake.tokenizers.encoder import SpecialScan
from tokenlake.tokenizers.files import TokenizerFiles

_ARROW: Final[Any] = pa
_FIELDS: Final = ("prompt", "chosen", "rejected", "completion")

_Chat = tuple[list[Turn], list[Any] | None]  # messages and tools


class _Document(NamedTuple):
    """What one document is made of, and of which row."""

    row: int
    judgement: Judgement
    tools: list[Any] | None


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
        self._guard = SpecialTokenGuard.of(files) if special_tokens_in_text == "fail" else SpecialTokenGuard()

    @property
    def control_tokens(self) -> bool:
        return self._special != "literal"

    @property
    def columns(self) -> tuple[str, ...] | None:
        # A row need not have all of the fields, and a reader refuses a column that is not there.
        return None

    def render(self, rows: Rows) -> Rendered:
        """Return the texts; rows that cannot be used are bad (see :func:`judgements`)."""
        documents, bad = self._documents(rows)
        texts = self._texts(documents)
        for document, made in zip(documents, texts, strict=True):
            if isinstance(made, Fault):
                bad.setdefault(document.row, made)
        for at, fault in self._guard.faults([_own(document.judgement) for document in documents]).items():
            bad.setdefault(documents[at].row, fault)
        kept = [at for at, document in enumerate(documents) if document.row not in bad]
        labels = [documents[at].judgement.label for at in kept]
        return Rendered(
            text=_ARROW.array(
                chain.from_iterable(cast("list[str]", texts[at]) for at in kept), pa.large_string()
            ),
            origin=np.array([documents[at].row for at in kept], np.int64),
            bad=tuple(sorted(bad.items())),
            parts=len(text_weights(self._settings.method)),
            label=np.array(labels, np.bool_) if self._settings.method in ("kto", "bco") else None,
        )

    def _documents(self, rows: Rows) -> tuple[list[_Document], dict[int, Fault]]:
        names = {name: getattr(self._settings, f"{name}_field") for name in (*_FIELDS, "label", "tools")}
        columns = {name: rows.values(path) for name, path in names.items()}
        found: list[_Document] = []
        bad: dict[int, Fault] = {}
        for row in range(len(rows)):
            try:
                given = {name: value_of(columns[name][row], names[name]) for name in _FIELDS}
                tools = tools_of(columns["tools"][row])
                made = judgements(given, columns["label"][row], self._settings.method)
            except BadRecordError as error:
                bad[row] = fault_of(error)
            else:
                found += [_Document(row, judgement, tools) for judgement in made]
        return found, bad

    def _texts(self, documents: Sequence[_Document]) -> list[list[str] | Fault]:
        """Return each document's texts, or why it has none."""
        chats = [document for document in documents if document.judgement.is_conversation]
        rendered = iter(self._conversations.texts(chats) if chats else ())
        first = 1 if self._settings.method == "reward" else 0
        found: list[list[str] | Fault] = []
        for document in documents:
            made = next(rendered) if document.judgement.is_conversation else _plain(document.judgement)
            found.append(made if isinstance(made, Fault) else made[first:])
        return found

    @cached_property
    def _conversations(self) -> _ConversationTexts:
        if self._special == "literal":
            raise ConfigError(
                "special_tokens_in_text: literal is for texts, but rows hold conversations, whose template spells "
                "special tokens itself; use fail (such rows are bad records) or encode"
            )
        return _ConversationTexts(self._settings, self._files)


def _plain(judgement: Judgement) -> list[str]:
    return [str(judgement.prompt), *(f"{judgement.prompt or ''}{answer}" for answer in judgement.answers)]


def _own(judgement: Judgement) -> Any:
    """All that the row itself says; a text with its answer in one piece, for the border may lie inside a token."""
    if judgement.is_conversation:
        return [judgement.prompt, *judgement.answers]
    return _plain(judgement)[1 if judgement.answers else 0 :]


@final
class _ConversationTexts:
    """Renders with the chat template of `settings`.

    Raises:
        ConfigError: there is none, or it cannot be compiled.
    """

    def __init__(self, settings: ResolvedPreference, files: TokenizerFiles) -> None:
        if settings.chat_template is None:
            raise ConfigError(
                f"preference: rows hold conversations, but tokenizer {files.name!r} has no chat template; use a "
                "tokenizer that has one (chat_template.jinja, or chat_template in tokenizer_config.json)",
                tokenizer=files.name,
            )
        named = named_tokens(files)
        self._templates = {
            prompt: ChatTemplate(settings.chat_template, variables={**named, "add_generation_prompt": prompt})
            for prompt in (False, True)
        }
        self._batches = {
            prompt: BatchRenderer(template, READER.roles, SpecialScan(()))
            for prompt, template in self._templates.items()
        }

    def texts(self, documents: Sequence[_Document]) -> list[list[str] | Fault]:
        """Return the text of each prompt, and of the prompt with each answer.

        A prompt ends with what begins the assistant's turn, where that is whose turn it is.
        """
        asked: dict[bool, list[_Chat]] = {False: [], True: []}
        places: list[list[tuple[bool, int]]] = []
        for _, judgement, tools in documents:
            turns = cast("list[Turn]", judgement.prompt or [])
            answers = cast("tuple[list[Turn], ...]", judgement.answers)
            begins = all(answer[0]["role"] == "assistant" for answer in answers)
            places.append([])
            for prompt, messages in ((begins, turns), *((False, [*turns, *answer]) for answer in answers)):
                places[-1].append((prompt, len(asked[prompt])))
                asked[prompt].append((messages, tools))
        made = {prompt: self._rendered(prompt, chats) for prompt, chats in asked.items()}
        return [_continued([made[prompt][at] for prompt, at in place]) for place in places]

    def _rendered(self, prompt: bool, chats: list[_Chat]) -> list[str | Fault]:
        found: dict[int, str | Fault] = {at: "" for at, (messages, _) in enumerate(chats) if not messages}
        for part in self._batches[prompt].render([None if tools else messages for messages, tools in chats]):
            found |= zip(part.origin.tolist(), map(str, part.text), strict=True)
        left = [at for at in range(len(chats)) if at not in found]
        for at, made in zip(left, self._templates[prompt].render_all(chats[at] for at in left), strict=True):
            if isinstance(made, RenderedChat):
                found[at] = made.text
            elif isinstance(made, BadRecordError):
                found[at] = fault_of(made)
            else:
                raise made
        return [found[at] for at in range(len(chats))]


def _continued(texts: list[str | Fault]) -> list[str] | Fault:
    """Require that all texts are there, and that each begins with the first, the prompt."""
    for text in texts:
        if isinstance(text, Fault):
            return text
    whole = cast("list[str]", texts)
    if any(not text.startswith(whole[0]) for text in whole):
        return Fault(
            "prompt_not_a_beginning",
            "the chat template does not render the conversation as a continuation of its prompt",
        )
    return whole


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
