"""Inspection of a source before a build: its files, columns, kinds of records, and a
proposed configuration.

The cost is limited, however large the source is: the listing, and at most 4 MiB of each
of about eight files. A local Arrow file is mapped, and only the pages of its first
records are read. Local files are not hashed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Final, Self, final

import msgspec

from tokenlake.base import numbers
from tokenlake.base.fingerprint import fingerprint
from tokenlake.base.result import Result, attempt
from tokenlake.base.threads import in_order
from tokenlake.base.typed_json import decoder
from tokenlake.config.dataset import is_hub_id
from tokenlake.config.formats import SourceType
from tokenlake.config.load import load_config
from tokenlake.config.resolve import resolve
from tokenlake.config.resolved import ResolvedSource
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.etl.introspection import file_choice, file_group
from tokenlake.etl.introspection.file_group import FileGroup
from tokenlake.etl.introspection.inspection import (
    DatasetMetadata,
    Feature,
    Group,
    Inspection,
    Remark,
    Split,
)
from tokenlake.etl.introspection.mapping import ColumnMapper
from tokenlake.etl.introspection.proposal import (
    SEQ_LENGTH,
    entry_of,
    proposal,
    text_options,
)
from tokenlake.etl.introspection.sample import FileSample, look, shortened
from tokenlake.etl.sources.file_signatures import kind_of
from tokenlake.etl.sources.formats import belongs, compression_of, format_of
from tokenlake.etl.sources.hub import list_repo, listed
from tokenlake.etl.sources.hub_client import HubClient
from tokenlake.etl.sources.hub_id import parse_id
from tokenlake.etl.sources.inputs import InputFile, is_url
from tokenlake.etl.sources.listing import list_inputs, require_use_of_options
from tokenlake.etl.sources.numbered_files import missing_numbers
from tokenlake.etl.sources.patterns import expand
from tokenlake.etl.sources.split_choice import Survey, left_over

_DEFAULT_SPLIT: Final = "train"


@final
@dataclass(frozen=True, slots=True)
class _HubFacts:
    """Subsets and splits of a dataset on the Hub.

    Attributes:
        configs: Names of all subsets.
        splits: Splits of the inspected subset.
        subset: Inspected subset: as requested, else the default one, else the first.
        split: Inspected split, chosen in the same way.
        remarks: Choices that the user should know.
    """

    configs: tuple[str, ...]
    splits: tuple[Split, ...]
    subset: str | None
    split: str
    remarks: tuple[Remark, ...]

    @classmethod
    def of(cls, source: ResolvedSource, split: str | None) -> Self:
        """Ask the Hub; of several ids, the first decides the subsets and splits.

        Args:
            source: Source with type ``hub``.
            split: Requested split; None for the default.
        """
        listing = list_repo(
            HubClient(source.storage_options), parse_id(source.data_files[0])
        )
        subsets = listing.layout.subsets
        remarks: list[Remark] = []

        subset = source.subset or listing.layout.default
        if subset is None and subsets:
            subset = next(iter(subsets))
            remarks.append(_first_of("subset", subset, tuple(subsets)))

        splits: list[Split] = []
        for name, paths in subsets.get(subset or "", {}).items():
            sizes = [
                listing.files[path].size for path in paths if path in listing.files
            ]
            splits.append(Split(name=name, files=len(paths), bytes=sum(sizes)))
        names = tuple(entry.name for entry in splits)
        chosen = split
        if not chosen:
            has_default = _DEFAULT_SPLIT in names or not names
            chosen = _DEFAULT_SPLIT if has_default else names[0]
            if split is None and not has_default:
                remarks.append(_first_of("split", chosen, names))
        return cls(tuple(subsets), tuple(splits), subset, chosen, tuple(remarks))


def _first_of(choice: str, name: str, names: tuple[str, ...]) -> Remark:
    """Return the remark that a subset or split was chosen only because it is the
    first.
    """
    message = f"this is {choice} {name!r}, the first of {listed(names)}: none of them is the default one"
    return Remark(file="", what=message)


SourceLike = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_NAME: Final = "inspected"
_HEAD: Final = 64 << 10  # bytes


@final
@dataclass(frozen=True, slots=True)
class _ChosenFiles:
    """Which files are looked into.

    Attributes:
        files: of one split, or all.
        split: their split, where the proposal must name it; else None.
        remarks: what is left out.
    """

    files: Sequence[InputFile]
    split: str | None
    remarks: tuple[Remark, ...]


@final
class _Request:
    """A source (`given` as `data_files`) and the options of a configuration's dataset
    that it was given with.

    `source` has the listing's options resolved; its tokenizer means nothing. `survey`
    knows the splits of files once they are listed.
    """

    def __init__(
        self,
        source: SourceLike,
        options: Mapping[str, Any],
        overrides: Iterable[str] = (),
    ) -> None:
        sources = source if isinstance(source, list | tuple) else (source,)
        self.given: tuple[str, ...] = tuple(
            os.fspath(entry)  # pyright: ignore[reportArgumentType, reportCallIssue]
            for entry in sources
        )
        written = {name: value for name, value in options.items() if value is not None}
        dataset = {"name": _NAME, "data_files": list(self.given), **written}
        config = load_config(
            {"name": _NAME, "datasets": [dataset], "default_tokenizer": "none"},
            [f"datasets.{_NAME}.{override}" for override in overrides],
        )
        if config.datasets[0].ids is not None:
            raise ConfigError(
                f"type: {config.datasets[0].type or 'tokens'} has token ids, and this looks into text; "
                "`tokenlake import` imports them, and `tokenlake import --print-config` writes a configuration",
                field_path="type",
            )
        self.source: ResolvedSource = resolve(config).sources[0]
        self.survey = Survey()
        shown: dict[str, Any] = config.datasets[0].model_dump(
            mode="json", exclude_unset=True
        )
        self.options: dict[str, Any] = {
            name: value
            for name, value in shown.items()
            if name not in {"name", "data_files"}
        }

    @property
    def is_hub(self) -> bool:
        """Whether the entries are ids of datasets on the Hub."""
        return self.source.type == "hub"

    @cached_property
    def hub(self) -> _HubFacts | None:
        """What the Hub says, None for files; the subset and split it chose become
        part of the source.
        """
        if not self.is_hub:
            return None
        facts = _HubFacts.of(self.source, self.options.get("split"))
        self.source = replace(self.source, subset=facts.subset, split=facts.split)
        if facts.subset is not None and len(facts.configs) > 1:
            self.options["subset"] = facts.subset
        self.options["split"] = facts.split
        return facts

    @cached_property
    def listing(self) -> Sequence[InputFile]:
        """All files, of whatever split; a local one without a telling extension is
        what its first bytes show.
        """
        if self.hub is not None:
            return list_inputs(self.source)
        try:
            return list_inputs(self.source, hashed=False, select=self.survey)
        except ConfigError:
            kind = None if self.source.type else self._sniffed_type()
            if kind is None:
                raise
            again = _Request(self.given, {**self.options, "type": kind})
            self.source, self.options = again.source, again.options
            self.survey = Survey()
            return list_inputs(self.source, hashed=False, select=self.survey)

    @cached_property
    def chosen(self) -> _ChosenFiles:
        """The files to look into: those of the split that was asked for, else of the
        one that a build should train on.

        Raises:
            ConfigError: there is no such split.
        """
        listing = self.listing  # which fills the survey
        survey = self.survey
        has_lines = self.options.get("text_mode") == "lines"
        require_use_of_options(
            _NAME,
            listing,
            delimiter=self.source.delimiter,
            text_mode="lines" if has_lines else None,
        )
        if self.is_hub:
            return _ChosenFiles(listing, None, ())
        if self.source.split_from != "default":
            return _ChosenFiles(
                list_inputs(self.source, hashed=False), self.options.get("split"), ()
            )
        is_named_alone = (
            not survey.has_folder and len(survey.splits) == 1 and not survey.unnamed
        )
        if not survey.splits or is_named_alone:
            return _ChosenFiles(listing, None, ())

        split = (
            _DEFAULT_SPLIT
            if _DEFAULT_SPLIT in survey.splits
            else next(iter(survey.splits))
        )
        if not survey.has_folder and survey.unnamed:
            split = _DEFAULT_SPLIT
        urls = set(survey.splits.get(split, ()))
        if not survey.has_folder and split == _DEFAULT_SPLIT:
            urls |= set(survey.unnamed)
        files = [file for file in listing if file.url in urls]
        rest = left_over(survey.splits, survey.unnamed, urls)
        if not rest:
            return _ChosenFiles(files, None, ())
        what = f"these are the files of split {split!r}; not among them: {rest}. `split` names another one"
        return _ChosenFiles(files, split, (Remark(file="", what=what),))

    def _sniffed_type(self) -> str | None:
        """The type that all files' first bytes show, None where one is named
        otherwise or shows nothing.
        """
        if any(map(is_url, self.given)):
            return None
        paths = [Path(path) for entry in self.given for path in expand(entry, None)[1]]
        if any(format_of(path.name) or compression_of(path.name) for path in paths):
            return None
        kinds = {_kind_of_bytes(path) for path in paths[:8]}
        return kinds.pop() if len(kinds) == 1 else None


def _kind_of_bytes(path: Path) -> str | None:
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if (kind := kind_of(head)) is not None:
        return {"Parquet": "parquet", "Arrow IPC": "arrow"}.get(kind)
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"{"):
        return "jsonl"
    if start.startswith((b"[{", b"[\n")):
        return "json"
    try:
        str(head[:-4] if len(head) == _HEAD else head, "utf-8")
    except UnicodeDecodeError:
        return None
    return "txt" if head and b"\x00" not in head else None


_SHOWN = 6


def _passed_over(
    given: tuple[str, ...], wanted: SourceType | None
) -> tuple[Remark, ...]:
    """Return a remark about the files with other extensions in the given
    directories, without hidden files.
    """
    endings: Counter[str] = Counter()
    for entry in given:
        for _, folders, names in os.walk(
            Path(entry.removeprefix("file://")).expanduser()
        ):
            folders[:] = [name for name in folders if not name.startswith((".", "_"))]
            endings.update(
                "".join(PurePath(name).suffixes[-2:]) or name
                for name in names
                if not name.startswith((".", "_")) and not belongs(name, wanted)
            )
    if not endings:
        return ()
    most_frequent = sorted(endings.items(), key=lambda item: (-item[1], item[0]))
    counts = ", ".join(f"{name} {count:,}" for name, count in most_frequent[:_SHOWN])
    if len(most_frequent) > _SHOWN:
        counts += f" and {len(most_frequent) - _SHOWN} more endings"
    return (
        Remark(
            file="", what=f"files that are not read, because of their names: {counts}"
        ),
    )


_THREADS: Final = 8
_NAMED: Final = 10  # empty files that are named one by one
_SURE: Final = 0.8  # a wrong column costs more than none


@final
class DatasetIntrospector:
    """Inspection of raw data without reading all of it.

    The source is looked at once, on first use; all answers come from that look.

    Args:
        source: Path, glob, directory, URL, or with ``type="hf"`` the id of a dataset on
            the Hub; or several of them. None: only :meth:`discover` can be called.
        type: Format of all files; None: that of their names.
        subset: Subset of a dataset on the Hub, or of a folder whose README.md names
            subsets; None: the default one.
        split: Split of a dataset on the Hub, or of files whose names contain splits;
            None: train, otherwise the first.
        delimiter: Delimiter of CSV files; None: that of the format.
        storage_options: Options of fsspec's file system; ``{"env": NAME}`` stands for
            an environment variable.
        overrides: Further options as ``key=value`` texts, without literal secrets.
        columns: Role -> column, if it is known (``{"text": "body"}``); None: all roles
            are searched.
        mapper: Mapper that finds the other roles; None: one with a minimum score of
            0.8.
        tokenizer: Tokenizer of the proposed configuration; None: a placeholder.
        seq_length: Tokens of a packed row in the proposed configuration.
        rows: Number of example records.
        token: Token of the Hub: a text, ``{"env": NAME}``, or False for none; None:
            ``HF_TOKEN``, then the saved login.
        cache_dir: Folder in which :meth:`discover` keeps its results; a changed dataset
            is looked at again. None: no cache.

    Raises:
        ConfigError: An option is wrong.

    Example:
        >>> import tokenlake as tl
        >>> look = tl.DatasetIntrospector("data/books")
        >>> [column.name for column in look.features()]
        ['text', 'lang']
    """

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
        """Check the options; nothing is read yet."""
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
        """Return the whole inspection.

        Raises:
            SourceNotFoundError: Nothing matches the source.
            ConfigError: An option is wrong, or the format of the files cannot be
                determined.
            SourceError: The storage cannot be reached.
        """
        return self._inspection

    def discover(
        self, dataset: str, config: str | None = None
    ) -> Result[DatasetMetadata, TokenlakeError]:
        """Return the contents of a dataset, or the error.

        Args:
            dataset: Id on the Hub, path, glob, directory or URL.
            config: Subset; None: the default one, otherwise the first, which a remark
                then names.
        """
        return attempt(lambda: self._discovered(dataset, config))

    def _discovered(self, dataset: str, config: str | None) -> DatasetMetadata:
        given: dict[str, Any] = {
            **self._given,
            "subset": config or self._given["subset"],
        }
        if given["type"] is None and is_hub_id(dataset):
            given["type"] = "hf"
        look = DatasetIntrospector(
            dataset,
            **given,
            overrides=self._overrides,
            mapper=self._mapper,
            rows=0,
            token=self._token,
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
        """Subset that is looked at; None if the source has no subsets."""
        if self._request.hub is not None:
            return self._request.hub.subset
        _ = self._request.listing
        return self._request.survey.subset

    @property
    def version(self) -> str:
        """Hash of the listing: names, sizes and versions of all files, and the
        options of the inspection.
        """
        files = [(file.path, file.size, file.token, file.stat) for file in self._files]
        return fingerprint([self._request.given, self.subset, self.configs(), files])

    @cached_property
    def _request(self) -> _Request:
        options = dict(self._given)
        if self._token is not None and options["type"] in ("hf", "huggingface"):
            options["storage_options"] = {
                **(options["storage_options"] or {}),
                "token": self._token,
            }
        return _Request(self._source or (), options, self._overrides)

    def configs(self) -> tuple[str, ...]:
        """Return the subsets of a dataset on the Hub, or of a folder whose README.md
        names them; else none.
        """
        if self._request.hub is not None:
            return self._request.hub.configs
        _ = self._request.listing
        return self._request.survey.subsets

    def splits(self) -> tuple[Split, ...]:
        """Return the splits: of a dataset on the Hub, or as the names of the files
        suggest.
        """
        if self._request.hub is not None:
            return self._request.hub.splits
        size_of = {file.url: file.size for file in self._request.listing}
        found: list[Split] = []
        for name, urls in sorted(self._request.survey.splits.items()):
            sizes = [size_of[url] for url in urls if url in size_of]
            found.append(Split(name=name, files=len(sizes), bytes=sum(sizes)))
        return tuple(found)

    def features(self) -> tuple[Feature, ...]:
        """Return the columns; those of the largest group where files hold different
        kinds of records.
        """
        return self._inspection.groups[0].features

    @cached_property
    def _files(self) -> Sequence[InputFile]:
        return self._request.chosen.files

    @cached_property
    def _inspection(self) -> Inspection:
        request = self._request
        parts = self._file_groups()
        remarks = self._source_remarks()
        for part in parts:
            remarks += part.findings()
        damaged_paths = {remark.file for remark in remarks if remark.fatal}

        groups: list[Group] = []
        opened_files = 0
        bytes_read = 0
        for part, name in zip(parts, self._names(parts), strict=True):
            groups.append(self._group(part, name, damaged_paths))
            opened_files += len(part.looks)
            bytes_read += sum(look.bytes_read for look in part.looks)
        file_count = numbers.plural(len(self._files), "file")
        return Inspection(
            source=request.given,
            configs=self.configs(),
            splits=self.splits(),
            files=len(self._files),
            bytes=sum(file.size for file in self._files),
            looked_into=opened_files,
            bytes_read=bytes_read,
            groups=tuple(groups),
            findings=tuple(remarks),
            proposal=proposal(
                request.given,
                groups,
                remarks,
                tokenizer=self._tokenizer,
                seq_length=self._seq_length,
                looked=f"Sampled {opened_files} of {file_count}, {numbers.size(bytes_read)} read.",
            ),
        )

    def _file_groups(self) -> list[FileGroup]:
        """Return the files by kind of records, judged by samples of about eight
        files.
        """
        families = file_choice.families(self._files)
        source = self._request.source  # the listing may have changed it
        chosen = file_choice.chosen(families)
        chosen_files: list[InputFile] = []
        for files in chosen:
            chosen_files += files
        samples = in_order(
            lambda file: look(file, source.delimiter, source.storage_options),
            chosen_files,
            _THREADS,
        )
        looked: list[tuple[list[InputFile], list[FileSample]]] = []
        for family, files in zip(families, chosen, strict=True):
            looked.append((family, [next(samples) for _ in files]))
        return file_group.merged_groups(looked, self._mapper, self._columns)

    def _source_remarks(self) -> list[Remark]:
        """Return the remarks about the choice of files, and about empty files."""
        request = self._request
        remarks: list[Remark] = []
        if request.hub is None:
            remarks += _passed_over(request.given, request.source.type)
        else:
            remarks += request.hub.remarks
        remarks += request.chosen.remarks
        paths = (file.path for file in self._files)
        for note in missing_numbers(paths, request.given):
            remarks.append(Remark(file="", what=note))

        empty_files = [file for file in self._files if not file.size]
        for file in empty_files[:_NAMED]:
            # An empty file is valid where the format needs no byte.
            needs_bytes = (
                file.format in {"parquet", "arrow", "json"}
                or file.compression is not None
            )
            remarks.append(
                Remark(file=file.path, what="it is empty", fatal=needs_bytes)
            )
        if len(empty_files) > _NAMED:
            remarks.append(
                Remark(
                    file="", what=f"{len(empty_files) - _NAMED:,} more files are empty"
                )
            )
        return remarks

    def _names(self, parts: list[FileGroup]) -> list[str]:
        """Return a different name for each source; the name of a single source comes
        from the given path.
        """
        if len(parts) == 1 and len(self._request.given) == 1:
            path_parts = PurePosixPath(self._request.given[0]).parts
            plain_parts = [part for part in path_parts if not set("*?[") & set(part)]
            if plain_parts:
                name = file_group.source_name(plain_parts[-1].partition(".")[0])
                if name:
                    return [name]

        # Equal names are numbered from the second on.
        occurrences: Counter[str] = Counter()
        names: list[str] = []
        for part in parts:
            name = file_group.name_of(part.files)
            occurrences[name] += 1
            names.append(
                name if occurrences[name] == 1 else f"{name[:60]}-{occurrences[name]}"
            )
        return names

    def _group(self, part: FileGroup, name: str, damaged: set[str]) -> Group:
        estimate = part.row_count()
        return Group(
            name=name,
            files=len(part.files),
            bytes=sum(file.size for file in part.files),
            formats=part.formats(),
            rows=None if estimate is None else estimate.rows,
            rows_exact=estimate is not None and estimate.margin == 0,
            rows_margin=None if estimate is None else estimate.margin,
            features=part.features(),
            kind=part.kind,
            mapping=part.mapping,
            text=part.statistics(),
            sampled=sum(look.seen for look in part.good),
            bad=sum((Counter(look.bad) for look in part.good), Counter[str]()),
            sample=tuple(shortened(row) for row in part.rows[: self._rows]),
            entry=self._entry(part, name, damaged),
        )

    def _entry(
        self, part: FileGroup, name: str, damaged: set[str]
    ) -> dict[str, Any] | None:
        """Options of a configuration's dataset for these files; damaged ones are
        left out.
        """
        made = (
            None
            if part.content_field is not None
            else text_options(part.kind, part.mapping)
        )
        if part.content_field is None and made is None:
            return None
        good = [file for file in part.files if file.path not in damaged]
        if not good:
            return None
        given, options = self._request.given, dict(self._request.options)
        if self._request.chosen.split is not None:
            options["split"] = self._request.chosen.split
        if (
            self._request.survey.subset is not None
            and len(self._request.survey.subsets) > 1
        ):
            options["subset"] = self._request.survey.subset
        options |= {
            "type": options.get("type") or part.retyped,
            "delimiter": options.get("delimiter") or part.delimiter,
            "content_field": None if part.format == "text" else part.content_field,
            "text_mode": part.text_mode,
        }
        files = file_choice.data_files(good, self._files, given)
        return entry_of(name, files, options | (made or {}))


def inspect(source: SourceLike, **options: Any) -> Inspection:
    """Look into raw data without reading all of it; :class:`DatasetIntrospector`
    answers single questions.

    Args:
        source: Path, glob, directory, URL, or with ``type="hf"`` the id of a dataset on
            the Hub; or several of them.
        options: Keyword arguments of :class:`DatasetIntrospector`.

    Returns:
        Files, splits, columns and statistics of a sample, example rows, and a proposed
        configuration.

    Raises:
        SourceNotFoundError: Nothing matches the source.
        ConfigError: An option is wrong, or the format of the files cannot be
            determined.
        SourceError: The storage cannot be reached.

    Example:
        >>> import tokenlake as tl
        >>> inspection = tl.inspect("data/books", tokenizer="openai-community/gpt2")
        >>> "content_field: text" in inspection.proposal  # a configuration in YAML
        True
    """
    return DatasetIntrospector(source, **options).inspect()
