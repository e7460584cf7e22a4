"""The arguments that all sources of files share, checked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypedDict, get_args

from tokenlake.config.near import did_you_mean
from tokenlake.config.resolved import ResolvedSource, ResolvedTokenizer, SourceType
from tokenlake.config.sizes import MIB, parse_size
from tokenlake.errors import ConfigError
from tokenlake.predicate.where import Predicate

DataFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file, glob, directory or URL, or several of them."""

BadRecordPolicy = Literal["fail", "quarantine"]


class ReadOptions(TypedDict, total=False):
    """Keywords of every source of files.

    Attributes:
        on_bad_record: ``fail`` (the default: the first bad record is an error) or ``quarantine`` (bad
            records are left out; their numbers stay unused).
        where: one SQL predicate (DuckDB) that rows must meet, such as ``"lang = 'en'"``.
        max_record_bytes: a longer record is a bad one; bytes, or text like "64MB". 256 MB by default.
        num_rows: read at most so many records, good or bad, in the order of the shards.
    """

    on_bad_record: BadRecordPolicy
    where: str | None
    max_record_bytes: int | str
    num_rows: int | None


_NO_TOKENIZER: Final = ResolvedTokenizer(
    name_or_path="",
    add_special_tokens=True,
    max_length=0,
    trust_remote_code=False,
    special_tokens_in_text="literal",
    engine="auto",
)


def wanted_source(
    kind: SourceType | None,
    data_files: DataFiles,
    storage_options: Mapping[str, Any] | None,
    *,
    on_bad_record: BadRecordPolicy = "fail",
    where: str | None = None,
    max_record_bytes: int | str = 256 * MIB,
    num_rows: int | None = None,
) -> ResolvedSource:
    """Return what reading needs to know of a source.

    Raises:
        ConfigError: an argument is none of what is allowed.
    """
    policies = get_args(BadRecordPolicy)
    if on_bad_record not in policies:
        near = did_you_mean(on_bad_record, policies)
        raise ConfigError(f"on_bad_record: got {on_bad_record!r}, must be 'fail' or 'quarantine'{near}")
    if where is not None:
        Predicate(where)  # what is wrong with it is said now, not at the first row
    return ResolvedSource(
        name="rows",
        data_files=file_list(data_files),
        type=kind,
        content_field="text",
        text_mode="document",
        on_bad_record=on_bad_record,
        max_bad_fraction=1.0,
        max_record_bytes=parse_size(max_record_bytes),
        splits=(),
        exclude=None,
        num_rows=_checked_count(num_rows),
        tokenizer=_NO_TOKENIZER,
        where=where,
        storage_options=_checked_options(storage_options),
    )


def file_list(data_files: object) -> tuple[str, ...]:
    """Return the entries of `data_files` as text; ConfigError if it is anything else."""
    if isinstance(data_files, str | os.PathLike):
        return (os.fspath(data_files),)
    if isinstance(data_files, Sequence) and data_files:
        entries: list[Any] = list(data_files)
        if all(isinstance(entry, str | os.PathLike) for entry in entries):
            return tuple(os.fspath(entry) for entry in entries)
    raise ConfigError(
        f"data_files: got {data_files!r}, must be a file, glob, directory or URL, or a list of them"
    )


def _checked_count(num_rows: object) -> int | None:
    if num_rows is None or (isinstance(num_rows, int) and not isinstance(num_rows, bool) and num_rows >= 0):
        return num_rows
    raise ConfigError(f"num_rows: got {num_rows!r}, must be a whole number from 0 on, or None for all")


def _checked_options(options: object) -> dict[str, Any]:
    if options is None:
        return {}
    if isinstance(options, Mapping):
        return dict(options)
    raise ConfigError("storage_options: must be a mapping of option to value (the given value is not shown)")
