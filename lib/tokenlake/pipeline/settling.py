"""From the configuration of a dataset, and its first rows, to how its rows become documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tokenlake.build.planning.settle import settle
from tokenlake.config.resolve import resolve_source
from tokenlake.config.resolved import ResolvedSource
from tokenlake.config.resolved_texts import MESSAGES_FIELDS, ResolvedChat
from tokenlake.errors import ConfigError
from tokenlake.sources.sharded.fields import Row
from tokenlake.tokenizers import TokenizerFiles

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig

_DONE_BEFORE = {"format_callback": None, "format_fields": None, "transforms": None}
"""What happens to rows when their source is opened."""


def resolved(
    config: PipelineConfig, dataset: DatasetConfig | None, name: str, *, packing: bool
) -> ResolvedSource:
    """Return how a source's rows become documents, as a build would that packs them or does not.

    Args:
        dataset: None for a source that a stage made: it has the pipeline's tokenizer, and no options of its own.
        name: of the source.
    """
    if dataset is None:
        options = {"name": None, "tokenizer": None, "data_files": name, "content_field": "text"}
        dataset = type(config.datasets[0]).model_validate(options)
    pack = config.pack.model_copy(update={"enabled": packing})
    source = resolve_source(config.model_copy(update={"pack": pack}), dataset.model_copy(update=_DONE_BEFORE))
    return replace(source, name=name)


def settled(
    source: ResolvedSource, first: Sequence[Row], tokenizer: TokenizerFiles, eos_id: int | None
) -> ResolvedSource:
    """Return the source with nothing left open: whether rows are conversations is told by the first of them.

    Args:
        first: rows, at least one where there are any.
        eos_id: what ends a document; None where nobody names one.

    Raises:
        ConfigError: what is asked for cannot be had from these rows or this tokenizer.
    """
    texts = source.texts
    chat = texts.chat
    if chat is None and not (texts.prompt or texts.preference):
        field = _found_messages(source, first)
        chat = None if field is None else ResolvedChat(messages_field=field)
    elif chat is not None and chat.messages_field is None:
        chat = replace(chat, messages_field=_messages_field(first))
    source = replace(source, texts=replace(texts, chat=chat))
    return settle(source, (), tokenizer, eos_id)[0]


def _found_messages(source: ResolvedSource, first: Sequence[Row]) -> str | None:
    """Return the field of conversations where nobody said what the text is, and the rows have none."""
    if "content_field" not in source.texts.left_open:
        return None
    if any(isinstance(row.get(source.content_field), str) for row in first):
        return None
    return next((field for field in MESSAGES_FIELDS if _holds_turns(first, field)), None)


def _holds_turns(rows: Sequence[Row], field: str) -> bool:
    """Whether most of the values are lists; a record may be bad among the first ones, too."""
    given = [isinstance(row[field], list) for row in rows if row.get(field) is not None]
    return bool(given) and 2 * sum(given) > len(given)


def _messages_field(first: Sequence[Row]) -> str:
    for field in MESSAGES_FIELDS:
        if any(row.get(field) is not None for row in first):
            return field
    names = ", ".join(map(repr, first[0])) if first else "none: there are no rows"
    raise ConfigError(
        f"chat.messages_field: not set, and the first rows have none of {', '.join(MESSAGES_FIELDS)}; their fields are "
        f"{names}. Name the field that holds the conversation"
    )
