"""One dataset of a mixture, as the older interface describes it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.resolve import resolve_dataset
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.sources.listing import list_inputs
from tokenlake.sources.sharded.base import ShardedDataSource
from tokenlake.sources.sharded.fields import Row
from tokenlake.sources.sharded.filebacked import FilesShardedSource, HuggingFaceShardedSource
from tokenlake.sources.sharded.files import FileShards

_SHOWN = 12  # fields of a row that a message names


@final
@dataclass(frozen=True, slots=True)
class TextDatasetInform:
    """Where the texts of one dataset are, and what becomes of its rows.

    Attributes:
        type: json, jsonl, parquet, arrow, csv, tsv, txt, huggingface or hf; None: by the extension of each file.
            ``json`` files may be an array of objects or have an object on every line: their first character tells.
            ``txt`` files have a text on every line, which gets the name `content_field`.
        data_files: file, glob, directory, URL or Hub id, or a list of them.
        num_rows: read at most so many rows.
        dataset_split_name: split of a Hub dataset, where it is not `split`.
        split: of a Hub dataset.
        format_callback: function of a row, applied after `format_fields`; None as its result leaves the row out.
        format_fields: fields to rename first, {old: new}; a row that lacks one is an error. Names inside of
            messages stay (:class:`tokenlake.ConvertToChatML` knows those).
        content_field: field of the text, which the mixture renames to its `text_target_field`; None keeps all
            fields as they are. Rows without it that have `chosen` and `rejected` stay as they are.
        additional_fields: fields to keep beside the text; a row that lacks one is an error. All others are left out.
        name: what the mixture calls the dataset; None: dataset_0, dataset_1, ... by its place.
        subset: configuration of a Hub dataset.
        storage_options: options of the file system that the files are on.
    """

    type: str | None = None
    data_files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None
    num_rows: int | None = None
    dataset_split_name: str | None = None
    split: str = "train"
    format_callback: Callable[[Row], Row | None] | None = None
    format_fields: Mapping[str, str] | None = None
    content_field: str | None = "content"
    additional_fields: Sequence[str] | None = None
    name: str | None = None
    subset: str | None = None
    storage_options: Mapping[str, Any] | None = None


def open_inform(inform: TextDatasetInform, target: str) -> ShardedDataSource:
    """Return the rows of a dataset, with their text in the field `target`.

    Raises:
        ConfigError: an option is not what is allowed.
        SourceNotFoundError: an entry of `data_files` matches nothing.
    """
    resolved = resolve_dataset(_config(inform))
    kind = HuggingFaceShardedSource if resolved.type == "hub" else FilesShardedSource
    source: ShardedDataSource = kind.over(FileShards(resolved, list_inputs(resolved, hashed=False)))
    if inform.format_fields:
        source = source.rename_fields(inform.format_fields)
    if inform.format_callback is not None:
        source = source.transform(inform.format_callback)
    content = inform.content_field
    return source if content is None else source.map(_with_text_in(target, content, _kept(inform, target)))


def _config(inform: TextDatasetInform) -> DatasetConfig:
    if inform.data_files is None:
        raise ConfigError(
            "TextDatasetInform: data_files is missing; give a file, glob, directory, URL or Hub id"
        )
    given: dict[str, Any] = {
        "type": "csv" if inform.type == "tsv" else inform.type,
        "data_files": inform.data_files,
        "num_rows": inform.num_rows,
        "dataset_split_name": inform.dataset_split_name,
        "split": inform.split,
        "subset": inform.subset,
        "storage_options": inform.storage_options,
        "name": inform.name,
        "delimiter": "\t" if inform.type == "tsv" else None,
    }
    if inform.type in ("txt", "text"):
        given |= {"text_mode": "lines", "content_field": inform.content_field or "text"}
    try:
        return DatasetConfig.model_validate(given)
    except ValueError as error:  # pydantic's, whose messages are in our words
        raise ConfigError(f"TextDatasetInform: {_told(error)}") from None


def _told(error: Any) -> str:
    lines: list[dict[str, Any]] = error.errors(include_url=False)
    return "; ".join(f"{'.'.join(map(str, line['loc']))}: {line['msg']}" for line in lines)


def _kept(inform: TextDatasetInform, target: str) -> tuple[str, ...]:
    fields = inform.additional_fields or ()
    if isinstance(fields, str) or not all(isinstance(field, str) for field in fields):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"additional_fields: got {fields!r}, must be a list of names, such as ['id']")
    if target in fields and target != inform.content_field:
        raise ConfigError(
            f"additional_fields: got {target!r}, but that is the field that gets the text of {inform.content_field!r}; "
            "rename one of them with format_fields, or choose another text_target_field"
        )
    return tuple(fields)


def _with_text_in(target: str, content: str, kept: tuple[str, ...]) -> Callable[[Row], Row]:
    def to_target(row: Row) -> Row:
        if content not in row and "chosen" in row and "rejected" in row:
            return row
        missing = [field for field in (content, *kept) if field not in row]
        if missing:
            shown = ", ".join(map(repr, list(row)[:_SHOWN])) or "none"
            raise BadRecordError(
                f"the row lacks {', '.join(map(repr, missing))}; it has {shown}. content_field and "
                "additional_fields name fields that every row has",
                reason="missing_field",
            )
        return {target: row[content], **{field: row[field] for field in kept}}

    return to_target
