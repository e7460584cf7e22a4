"""One text dataset of a :class:`tokenlake.DatasetMixture`: where its files are and how its rows are read."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final, Self, final

from pydantic import TypeAdapter, ValidationError

from tokenlake.config.formats import Format
from tokenlake.config.secret import LITERALS_REFUSED, Options
from tokenlake.config.values import expected
from tokenlake.errors import BadRecordError, ConfigError, SourceError
from tokenlake.rowwise.files import create_source
from tokenlake.rowwise.shards import Row, fields_in
from tokenlake.rowwise.source import ShardedDataSource
from tokenlake.sources.formats import format_of

DatasetLoadError = SourceError
"""What a dataset that cannot be loaded raises."""

_OF_FILES: Final = (
    "data_files",
    "num_rows",
    "dataset_split_name",
    "split",
    "subset",
    "storage_options",
    "name",
)
_OPTIONS: Final[TypeAdapter[Any]] = TypeAdapter(Options)


@final
class DatasetType(StrEnum):
    """What a dataset's files hold."""

    JSON = "json"
    PARQUET = "parquet"
    CSV = "csv"
    ARROW = "arrow"
    HF = "huggingface"
    TSV = "tsv"
    TXT = "txt"

    @classmethod
    def from_string(cls, value: str) -> DatasetType | str:
        """Return the type of that name, whatever its case; else the text itself."""
        return next((kind for kind in cls if kind == value.lower()), value)

    @classmethod
    def infer_from_path(cls, path: str) -> DatasetType | None:
        """Return the type that the extension of a file says, compressed or not; None if it says none."""
        found: Format | None = format_of(path)
        renamed = {"jsonl": "json", "text": "txt"}
        return None if found is None else cls(renamed.get(found, found))


class BaseDatasetInform(ABC):
    """What a mixture takes as a dataset."""

    __slots__ = ()

    @abstractmethod
    def get_str_type(self) -> str | None:
        """Return the type of the files as text; None: by the extension of each."""


@final
@dataclass(frozen=True, slots=True)
class TextDatasetInform(BaseDatasetInform):
    """One text dataset of a mixture: where its files are and how its rows are read.

    Attributes:
        type: json, jsonl, parquet, arrow, csv, tsv, txt, huggingface or hf; None: by the extension of each file.
            ``json`` files may be an array of objects or have an object on every line: their first character tells.
            ``txt`` files have a text on every line, which gets the name `content_field`.
        data_files: file, glob, directory, URL or Hub id, or a list of them.
        num_rows: read at most this many rows.
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

    type: DatasetType | str | None = None
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

    def get_str_type(self) -> str | None:
        """Return `type` as text."""
        return None if self.type is None else str(self.type)

    def to_json(self) -> dict[str, Any]:
        """Return what was set, as values of JSON; :meth:`from_json` reads it.

        Raises:
            ConfigError: a function was set, or a credential that is not ``{env: NAME}`` or ``{block: NAME}``.
        """
        if self.format_callback is not None:
            raise ConfigError(
                "format_callback: JSON holds no function; set it after loading, by dataclasses.replace"
            )
        try:
            options = _OPTIONS.validate_python(
                dict(self.storage_options or {}), context={LITERALS_REFUSED: True}
            )
        except ValidationError as error:
            raise ConfigError(f"storage_options: {error.errors(include_url=False)[0]['msg']}") from None
        given = set_fields(self) | {"storage_options": _OPTIONS.dump_python(options, mode="json") or None}
        files = self.data_files
        if isinstance(files, str | os.PathLike):
            given["data_files"] = os.fspath(files)
        elif files is not None:
            given["data_files"] = [os.fspath(file) for file in files]
        return given

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the dataset that :meth:`to_json` told; ConfigError if it is none."""
        try:
            return cls(**value)
        except TypeError as error:
            raise ConfigError(f"informs: {error}; expected the fields of a TextDatasetInform") from None

    def open(self, target: str) -> ShardedDataSource:
        """Return the rows of the dataset, with their text in the field `target`.

        Raises:
            ConfigError: an option is not what is allowed.
            SourceNotFoundError: an entry of `data_files` matches nothing.
        """
        source = self._opened()
        if self.format_fields:
            source = source.rename_fields(self.format_fields)
        if self.format_callback is not None:
            source = source.transform(self.format_callback)
        content = self.content_field
        return source if content is None else source.map(_with_text_in(target, content, self._kept(target)))

    def _opened(self) -> ShardedDataSource:
        if self.data_files is None:
            raise expected("TextDatasetInform: data_files", None, "a file, glob, directory, URL or Hub id")
        given: dict[str, Any] = {field: getattr(self, field) for field in _OF_FILES}
        kind = self.get_str_type()
        given["type"], given["delimiter"] = ("csv", "\t") if kind == "tsv" else (kind, None)
        if kind in ("txt", "text"):
            given |= {"text_mode": "lines", "content_field": self.content_field or "text"}
        return create_source(given)

    def _kept(self, target: str) -> tuple[str, ...]:
        fields = self.additional_fields or ()
        if isinstance(fields, str) or not all(isinstance(field, str) for field in fields):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("additional_fields", fields, "a list of names, such as ['id']")
        if target in fields and target != self.content_field:
            why = f"must not be {target!r}, the field that gets the text of {self.content_field!r}"
            raise ConfigError(f"additional_fields: {why}; rename it, or choose another text_target_field")
        return tuple(fields)


def set_fields(given: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that are not as they are by default."""
    found = {each.name: (getattr(given, each.name), each.default) for each in fields(given)}
    return {name: value for name, (value, default) in found.items() if value != default}


def _with_text_in(target: str, content: str, kept: tuple[str, ...]) -> Callable[[Row], Row]:
    def to_target(row: Row) -> Row:
        if content not in row and "chosen" in row and "rejected" in row:
            return row
        missing = [field for field in (content, *kept) if field not in row]
        if missing:
            why = f"the row lacks {', '.join(map(repr, missing))}; it has {fields_in(row)}"
            raise BadRecordError(f"{why}. Every row must have the fields named", reason="missing_field")
        return {target: row[content], **{field: row[field] for field in kept}}

    return to_target
