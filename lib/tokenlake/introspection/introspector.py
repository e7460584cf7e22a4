"""A look at a source before anybody reads it: what is there, what it is good for, how to build from it.

Bounded however large the source is: the listing, and about eight files of which at most 4 MiB are read each. An Arrow
file of this machine is mapped, and only what its first records touch is read. Local files are not hashed.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast, final

import msgspec

from tokenlake import numbers
from tokenlake.config.data_module import is_hub_id
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.fingerprint import fingerprint
from tokenlake.introspection import file_group
from tokenlake.introspection.file_group import FileGroup
from tokenlake.introspection.inspection import (
    SEQ_LENGTH,
    DatasetMetadata,
    Feature,
    Group,
    Inspection,
    Remark,
    Split,
    entry_of,
    proposal,
    text_options,
)
from tokenlake.introspection.mapping import ColumnMapper
from tokenlake.introspection.sample import look
from tokenlake.introspection.source import Request, SourceLike, passed_over, split_of
from tokenlake.result import Result, attempt
from tokenlake.sources.inputs import InputFile
from tokenlake.threads import in_order
from tokenlake.typed_json import decoder

STRING_CHARACTERS: Final = 300
_ITEMS: Final = 5
_DEPTH: Final = 6


def shortened(value: object, limit: int = STRING_CHARACTERS, depth: int = _DEPTH) -> Any:
    """Return a JSON-able copy of `value`: long strings and lists cut (saying so), bytes by their number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value if len(value) <= limit else f"{value[:limit]}... ({len(value):,} characters)"
    if isinstance(value, bytes):
        return f"({len(value):,} bytes)"
    if depth == 0:
        return "..."
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        return {str(key): shortened(item, limit, depth - 1) for key, item in entries.items()}
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        shown = [shortened(item, limit, depth - 1) for item in items[:_ITEMS]]
        return shown if len(items) <= _ITEMS else [*shown, f"... ({len(items):,} items)"]
    return str(value)[:limit]  # dates, decimals


_THREADS: Final = 8
_NAMED: Final = 10  # empty files that are named one by one
_SURE: Final = 0.8  # a wrong column costs more than none


@final
class DatasetIntrospector:
    """Looks at a source once, at the first question; all answers are of that look."""

    def __init__(
        self,
        source: SourceLike | None = None,
        *,
        type: str | None = None,
        subset: str | None = None,
        split: str | None = None,
        delimiter: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        overrides: Iterable[str] = (),
        columns: Mapping[str, str] | None = None,
        mapper: ColumnMapper | None = None,
        tokenizer: str | None = None,
        seq_length: int = SEQ_LENGTH,
        rows: int = 3,
        token: object = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Take the source and what is known of it.

        Args:
            source: path, glob, directory, URL, or with type ``hf`` the id of a dataset on the Hub; or several. May be
                left out where only :meth:`discover` is called.
            type: format of all files, where their names do not say.
            subset: of a dataset on the Hub.
            split: of a dataset on the Hub; of files, those whose names say that split.
            overrides: further options as ``key=value`` texts, which hold no literal secrets.
            columns: role to column, where it is known (``{"text": "body"}``).
            mapper: that finds the others; by default one with a minimum score of 0.8.
            tokenizer: for the proposal.
            seq_length: for the proposal, tokens of a packed row.
            rows: how many records to show.
            token: of the Hub: a text, ``{"env": NAME}``, or False for none at all; None: HF_TOKEN or the saved login.
            cache_dir: where :meth:`discover` keeps what it found; a dataset that changes is looked at again.

        Raises:
            ConfigError: an option is wrong.
        """
        if rows < 0:
            raise ConfigError(f"rows: got {rows}, must be 0 or more")
        self._source, self._token, self._overrides = source, token, tuple(overrides)
        self._cache = None if cache_dir is None else Path(cache_dir)
        self._given: dict[str, Any] = {
            "type": type,
            "subset": subset,
            "split": split,
            "delimiter": delimiter,
            "storage_options": storage_options,
        }
        if source is not None:
            _ = self._request  # a wrong option is told at once
        self._columns, self._mapper = dict(columns or {}), mapper or ColumnMapper(_SURE)
        self._tokenizer, self._seq_length, self._rows = tokenizer, seq_length, rows

    def inspect(self) -> Inspection:
        """Return all that was found.

        Raises:
            SourceNotFoundError: nothing is there.
            ConfigError: an option is wrong, or nobody can say what the files hold.
            SourceError: the storage cannot be reached.
        """
        return self._inspection

    def discover(self, dataset: str, config: str | None = None) -> Result[DatasetMetadata, TokenlakeError]:
        """Return what a dataset holds, or why nobody can tell.

        Args:
            dataset: an id on the Hub, or a path, glob, directory or URL.
            config: subset; None: the default one, else the first, which a remark then says.
        """
        return attempt(lambda: self._discovered(dataset, config))

    def _discovered(self, dataset: str, config: str | None) -> DatasetMetadata:
        given: dict[str, Any] = {**self._given, "subset": config or self._given["subset"]}
        if given["type"] is None and is_hub_id(dataset):
            given["type"] = "hf"
        look = DatasetIntrospector(
            dataset, **given, overrides=self._overrides, mapper=self._mapper, rows=0, token=self._token
        )
        kept = None if self._cache is None else self._cache / f"{look.version}.json"
        if kept is not None and kept.is_file():
            return decoder(DatasetMetadata).decode(kept.read_bytes())
        found = DatasetMetadata.of(dataset, look.inspect(), look.subset)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            unfinished = kept.with_suffix(f".{os.getpid()}")
            unfinished.write_bytes(msgspec.json.encode(found))
            unfinished.replace(kept)
        return found

    @property
    def subset(self) -> str | None:
        """The subset that is looked at; None where there are none."""
        return None if self._request.hub is None else self._request.hub.subset

    @property
    def version(self) -> str:
        """A hash of the listing: names, bytes and versions of all files, and of what is looked at."""
        files = [(file.path, file.size, file.token, file.stat) for file in self._files]
        return fingerprint([self._request.given, self.subset, self.configs(), files])

    @cached_property
    def _request(self) -> Request:
        options = dict(self._given)
        if self._token is not None and options["type"] in ("hf", "huggingface"):
            options["storage_options"] = {**(options["storage_options"] or {}), "token": self._token}
        return Request(self._source or (), options, self._overrides)

    def configs(self) -> tuple[str, ...]:
        """Return the subsets of a dataset on the Hub; files have none."""
        return () if self._request.hub is None else self._request.hub.configs

    def splits(self) -> tuple[Split, ...]:
        """Return the splits: of a dataset on the Hub, or as the names of the files suggest."""
        if self._request.hub is not None:
            return self._request.hub.splits
        found: dict[str, list[int]] = {}
        for file in self._files:
            if (name := split_of(file.path)) is not None:
                found.setdefault(name, []).append(file.size)
        return tuple(Split(name=name, files=len(s), bytes=sum(s)) for name, s in sorted(found.items()))

    def features(self) -> tuple[Feature, ...]:
        """Return the columns; those of the largest group where files hold different kinds of records."""
        return self._inspection.groups[0].features

    @cached_property
    def _files(self) -> Sequence[InputFile]:
        return self._request.files()

    @cached_property
    def _inspection(self) -> Inspection:
        request = self._request
        grouped = file_group.families(self._files)
        picked = file_group.chosen(grouped)
        delimiter, options = request.source.delimiter, request.source.storage_options
        files = [file for few in picked for file in few]
        looks = in_order(lambda file: look(file, delimiter, options), files, _THREADS)
        parts = file_group.merged_groups(
            [(all_, [next(looks) for _ in few]) for all_, few in zip(grouped, picked, strict=True)],
            self._mapper,
            self._columns,
        )

        hub, empty = request.hub, [file for file in self._files if not file.size]
        found = list(passed_over(request.given, request.source.type) if hub is None else hub.remarks)
        for file in empty[:_NAMED]:  # fine where a format needs no byte
            fatal = file.format in {"parquet", "arrow", "json"} or file.compression is not None
            found.append(Remark(file=file.path, what="it is empty", fatal=fatal))
        if len(empty) > _NAMED:
            found.append(Remark(file="", what=f"{len(empty) - _NAMED:,} more files are empty"))
        found += (each for part in parts for each in part.findings())
        damaged = {finding.file for finding in found if finding.fatal}
        groups = [
            self._group(part, name, damaged) for part, name in zip(parts, self._names(parts), strict=True)
        ]
        seen = [look for part in parts for look in part.looks]
        read = sum(look.bytes_read for look in seen)
        return Inspection(
            source=request.given,
            configs=self.configs(),
            splits=self.splits(),
            files=len(self._files),
            bytes=sum(file.size for file in self._files),
            looked_into=len(seen),
            bytes_read=read,
            groups=tuple(groups),
            findings=tuple(found),
            proposal=proposal(
                request.given,
                groups,
                found,
                tokenizer=self._tokenizer,
                seq_length=self._seq_length,
                looked=f"Looked into {len(seen)} of {numbers.plural(len(self._files), 'file')}, "
                f"{numbers.size(read)} read.",
            ),
        )

    def _names(self, parts: list[FileGroup]) -> list[str]:
        """Names of sources, each once; of a single one as it was given, where that says anything."""
        if len(parts) == 1 and len(self._request.given) == 1:
            plain = [
                part for part in PurePosixPath(self._request.given[0]).parts if not set("*?[") & set(part)
            ]
            if name := file_group.source_name(plain[-1].partition(".")[0] if plain else ""):
                return [name]
        taken: Counter[str] = Counter()
        names: list[str] = []
        for part in parts:
            name = file_group.name_of(part.files)
            taken[name] += 1
            names.append(name if taken[name] == 1 else f"{name[:60]}-{taken[name]}")
        return names

    def _group(self, part: FileGroup, name: str, damaged: set[str]) -> Group:
        rows, exact = part.row_count()
        return Group(
            name=name,
            files=len(part.files),
            bytes=sum(file.size for file in part.files),
            formats=part.formats(),
            rows=rows,
            rows_exact=exact,
            features=part.features(),
            kind=part.kind,
            mapping=part.mapping,
            text=part.statistics(),
            sampled=sum(look.seen for look in part.good),
            bad=sum((Counter(look.bad) for look in part.good), Counter[str]()),
            sample=tuple(shortened(row) for row in part.rows[: self._rows]),
            entry=self._entry(part, name, damaged),
        )

    def _entry(self, part: FileGroup, name: str, damaged: set[str]) -> dict[str, Any] | None:
        """Options of a configuration's dataset for these files; damaged ones are left out."""
        made = None if part.content_field is not None else text_options(part.kind, part.mapping)
        if part.content_field is None and made is None:
            return None
        good = [file for file in part.files if file.path not in damaged]
        if not good:
            return None
        given, options = self._request.given, dict(self._request.options)
        if not self._request.is_hub:
            options.pop("split", None)
        options |= {
            "type": options.get("type") or part.retyped,
            "delimiter": options.get("delimiter") or part.delimiter,
            "content_field": None if part.format == "text" else part.content_field,
            "text_mode": part.text_mode,
        }
        files = file_group.data_files(good, self._request.listing, given)
        return entry_of(name, files, options | (made or {}))


def inspect(source: SourceLike, **options: Any) -> Inspection:
    """Look into raw data without reading all of it; :class:`DatasetIntrospector` answers single questions.

    ::

        found = tl.inspect("data/", tokenizer="gpt2")
        print(found.proposal)  # a configuration

    Args:
        source: path, glob, directory, URL, or with ``type="hf"`` the id of a dataset on the Hub; or several.
        options: as :class:`DatasetIntrospector` takes them.

    Raises:
        SourceNotFoundError: nothing is there.
        ConfigError: an option is wrong, or nobody can say what the files hold.
        SourceError: the storage cannot be reached.
    """
    return DatasetIntrospector(source, **options).inspect()
