"""Inspection of a source before a build: files, columns, kinds of records, a proposal.

The cost is limited, however large the source is: the listing, and at most 4 MiB of each
of about eight files. A local Arrow file is mapped, and only the pages of its first
records are read. Local files are not hashed.

1. List the files of the source, with their splits and subsets.
2. Group them in families, and sample about eight files of them.
3. Join families whose samples have the same kind of records and the same options.
4. Judge the sampled records of each group as a build does.
5. Describe each group, and propose an entry of a configuration for it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
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
from tokenlake.etl.introspection.judgement import judged
from tokenlake.etl.introspection.mapping import ColumnMapper
from tokenlake.etl.introspection.proposal import (
    SEQ_LENGTH,
    entry_of,
    proposal,
    text_options,
)
from tokenlake.etl.introspection.sample import FileSample, look, shortened
from tokenlake.etl.sources.bad_reasons import BadReason, added_up
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
class _HubContents:
    """Subsets and splits of a dataset on the Hub.

    Attributes:
        configs: Names of all subsets.
        splits: Splits of the inspected subset.
        subset: Inspected subset: the requested one, otherwise the default one,
            otherwise the first.
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
        """Return what the Hub lists; of several ids, the first one decides.

        Args:
            source: Source with type ``hub``.
            split: Requested split; None for the default.
        """
        client = HubClient(source.storage_options)
        listing = list_repo(client, parse_id(source.data_files[0]))
        subsets = listing.layout.subsets
        remarks: list[Remark] = []

        # The subset. The first of several is a guess, which the user must know.
        subset = source.subset or listing.layout.default
        if subset is None and subsets:
            subset = next(iter(subsets))
            remarks.append(_first_of("subset", subset, tuple(subsets)))

        # Its splits, with the sizes of files that the listing has.
        splits: list[Split] = []
        for split_name, paths in subsets.get(subset or "", {}).items():
            split_bytes = 0
            for path in paths:
                if path in listing.files:
                    split_bytes += listing.files[path].size
            splits.append(Split(name=split_name, files=len(paths), bytes=split_bytes))

        # The split: the requested one, otherwise train, otherwise the first.
        split_names = tuple(subsets.get(subset or "", {}))
        chosen_split = split
        if not chosen_split:
            chosen_split = _DEFAULT_SPLIT
            if split_names and _DEFAULT_SPLIT not in split_names:
                chosen_split = split_names[0]
                if split is None:
                    remarks.append(_first_of("split", chosen_split, split_names))
        return cls(tuple(subsets), tuple(splits), subset, chosen_split, tuple(remarks))


def _first_of(choice: str, name: str, names: tuple[str, ...]) -> Remark:
    """Return the remark that a subset or split was chosen only as the first one."""
    message = f"this is {choice} {name!r}, the first of {listed(names)}: none of them is the default one"
    return Remark(file="", what=message)


SourceLike = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, glob, folder, URL or id of a dataset on the Hub, or several of them."""

# Name of the dataset in the configuration from which the options are resolved.
_NAME: Final = "inspected"
_HEAD_BYTES: Final = 64 << 10  # of a file, by which its format is recognised
_SNIFFED_FILES: Final = 8  # files whose first bytes are read


@final
@dataclass(frozen=True, slots=True)
class _ChosenFiles:
    """Files that are inspected.

    Attributes:
        files: Files of one split, or all.
        split: Their split, if the proposal must name it; otherwise None.
        remarks: Remarks about files that are left out.
    """

    files: Sequence[InputFile]
    split: str | None
    remarks: tuple[Remark, ...]


@final
class _Request:
    """A source and the options of a configuration's dataset.

    Options have the same names and the same checks as in a configuration, because they
    are resolved by one.

    Attributes:
        entries: Paths, globs, URLs or ids, as the user gave them.
        source: Resolved dataset. Its tokenizer has no meaning.
        survey: Splits and subsets of the files, once they are listed.
        options: Options that the user gave, and those that the source requires.
    """

    def __init__(
        self,
        source: SourceLike,
        options: Mapping[str, Any],
        overrides: Iterable[str] = (),
    ) -> None:
        entries = source if isinstance(source, list | tuple) else (source,)
        paths: list[str] = []
        for entry in entries:
            paths.append(os.fspath(entry))  # pyright: ignore[reportArgumentType, reportCallIssue]
        self.entries: tuple[str, ...] = tuple(paths)
        # A configuration of one dataset. An option that is None has its default.
        set_options = {
            key: value for key, value in options.items() if value is not None
        }
        dataset = {"name": _NAME, "data_files": list(self.entries), **set_options}
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

        # Options for the proposal, with those of `overrides`, as a file has them.
        self.options: dict[str, Any] = config.datasets[0].model_dump(
            mode="json", exclude_unset=True
        )
        for option in ("name", "data_files"):
            self.options.pop(option, None)

    @property
    def is_hub(self) -> bool:
        """True if the entries are ids of datasets on the Hub."""
        return self.source.type == "hub"

    @cached_property
    def hub(self) -> _HubContents | None:
        """Contents of the dataset on the Hub; None for files.

        The subset and split that are chosen become part of the source.
        """
        if not self.is_hub:
            return None
        contents = _HubContents.of(self.source, self.options.get("split"))
        self.source = replace(self.source, subset=contents.subset, split=contents.split)
        # A single subset need not be named in a configuration.
        if contents.subset is not None and len(contents.configs) > 1:
            self.options["subset"] = contents.subset
        self.options["split"] = contents.split
        return contents

    @cached_property
    def listing(self) -> Sequence[InputFile]:
        """All files, of all splits.

        The format of local files whose names do not show it is that of their first
        bytes.
        """
        if self.hub is not None:
            return list_inputs(self.source)
        try:
            return list_inputs(self.source, hashed=False, select=self.survey)
        except ConfigError:
            # The listing fails if the names of the files show no format.
            sniffed_type: str | None = None
            if not self.source.type:
                sniffed_type = self._sniffed_type()
            if sniffed_type is None:
                raise
            request = _Request(self.entries, {**self.options, "type": sniffed_type})
            self.source = request.source
            self.options = request.options
            # The failed listing may have filled the survey in part.
            self.survey = Survey()
            return list_inputs(self.source, hashed=False, select=self.survey)

    @cached_property
    def chosen(self) -> _ChosenFiles:
        """The files that are inspected.

        They are those of the requested split, otherwise those of the split that a build
        should train on.

        Raises:
            ConfigError: The split does not exist.
        """
        listing = self.listing  # fills the survey
        survey = self.survey
        text_mode = None
        if self.options.get("text_mode") == "lines":
            text_mode = "lines"
        require_use_of_options(
            _NAME, listing, delimiter=self.source.delimiter, text_mode=text_mode
        )

        # The whole listing: the Hub has chosen already, or there is nothing to choose.
        if self.is_hub:
            return _ChosenFiles(listing, None, ())
        if self.source.split_from != "default":
            files = list_inputs(self.source, hashed=False)
            return _ChosenFiles(files, self.options.get("split"), ())
        is_only_split = len(survey.splits) == 1 and not survey.unnamed
        if not survey.splits or (is_only_split and not survey.has_folder):
            return _ChosenFiles(listing, None, ())

        # One of several splits. Files without the name of a split are for training, if
        # their folders do not name splits either.
        split = next(iter(survey.splits))
        if _DEFAULT_SPLIT in survey.splits:
            split = _DEFAULT_SPLIT
        if not survey.has_folder and survey.unnamed:
            split = _DEFAULT_SPLIT
        urls = set(survey.splits.get(split, ()))
        if not survey.has_folder and split == _DEFAULT_SPLIT:
            urls |= set(survey.unnamed)
        files = [file for file in listing if file.url in urls]
        left_out = left_over(survey.splits, survey.unnamed, urls)
        if not left_out:
            return _ChosenFiles(files, None, ())
        message = f"these are the files of split {split!r}; not among them: {left_out}. `split` names another one"
        return _ChosenFiles(files, split, (Remark(file="", what=message),))

    def _sniffed_type(self) -> str | None:
        """Return the type that the first bytes of all files show.

        It is None if a name shows another format, or if the files are not of one type.
        """
        # Remote files are not opened to find a format: that takes a request for each.
        if any(is_url(entry) for entry in self.entries):
            return None
        paths: list[Path] = []
        for entry in self.entries:
            _, listed_paths = expand(entry, None)
            for listed_path in listed_paths:
                path = Path(listed_path)
                if format_of(path.name) or compression_of(path.name):
                    return None
                paths.append(path)
        types = {_type_of_bytes(path) for path in paths[:_SNIFFED_FILES]}
        if len(types) != 1:
            return None
        return types.pop()


def _type_of_bytes(path: Path) -> str | None:
    """Return the type of a file by its first bytes; None for unknown binary data."""
    with path.open("rb") as file:
        first_bytes = file.read(_HEAD_BYTES)
    # 1. Formats with a signature.
    signature = kind_of(first_bytes)
    if signature == "Parquet":
        return "parquet"
    if signature == "Arrow IPC":
        return "arrow"
    if signature is not None:
        return None

    # 2. JSON, by its first characters after a byte order mark and white space.
    json_start = first_bytes.removeprefix(b"\xef\xbb\xbf").lstrip()
    if json_start.startswith(b"{"):
        return "jsonl"
    if json_start.startswith((b"[{", b"[\n")):
        return "json"

    # 3. Text, if it is UTF-8. The last character of a longer file may be cut, which has
    #    at most 4 bytes.
    if not first_bytes or b"\x00" in first_bytes:
        return None
    complete_bytes = first_bytes
    if len(first_bytes) == _HEAD_BYTES:
        complete_bytes = first_bytes[:-4]
    try:
        str(complete_bytes, "utf-8")
    except UnicodeDecodeError:
        return None
    return "txt"


_SHOWN_ENDINGS = 6


def _passed_over(
    entries: tuple[str, ...], source_type: SourceType | None
) -> tuple[Remark, ...]:
    """Return a remark about files in folders that are not read, because of their names.

    Hidden files are not mentioned.

    Args:
        entries: Entries of the source.
        source_type: Type of the source; None: any.
    """
    endings: Counter[str] = Counter()
    for entry in entries:
        folder = Path(entry.removeprefix("file://")).expanduser()
        for _, folder_names, file_names in os.walk(folder):
            # `os.walk` visits the folders that remain in its list.
            folder_names[:] = [name for name in folder_names if not _is_hidden(name)]
            for file_name in file_names:
                if not _is_hidden(file_name) and not belongs(file_name, source_type):
                    ending = "".join(PurePath(file_name).suffixes[-2:])
                    endings[ending or file_name] += 1
    if not endings:
        return ()

    # The most frequent endings, which are the most probable mistakes.
    most_frequent = sorted(endings.items(), key=lambda item: (-item[1], item[0]))
    shown_endings = most_frequent[:_SHOWN_ENDINGS]
    counts = ", ".join(f"{ending} {files:,}" for ending, files in shown_endings)
    if len(most_frequent) > _SHOWN_ENDINGS:
        counts += f" and {len(most_frequent) - _SHOWN_ENDINGS} more endings"
    message = f"files that are not read, because of their names: {counts}"
    return (Remark(file="", what=message),)


def _is_hidden(name: str) -> bool:
    """Return True for names that a listing of a folder leaves out."""
    return name.startswith((".", "_"))


_THREADS: Final = 8  # files are sampled side by side: remote ones mostly wait
_NAMED_FILES: Final = 10  # empty files that are named one by one
_MIN_SCORE: Final = 0.8  # of a column's name: a wrong column costs more than none

# Formats whose empty files are damaged. A text file may be empty.
_FORMATS_WITH_BYTES: Final = frozenset({"parquet", "arrow", "json"})


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
        tokenizer: Tokenizer of the proposed configuration; None: a placeholder. One of
            this machine also renders the first conversations, to name bad ones.
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
        self._source = source
        self._token = token
        self._overrides = tuple(overrides)
        self._cache: Path | None = None
        if cache_dir is not None:
            self._cache = Path(cache_dir)
        self._options: dict[str, Any] = {
            "type": type,
            "subset": subset,
            "split": split,
            "delimiter": delimiter,
            "storage_options": storage_options,
        }
        if source is not None:
            _ = self._request  # a wrong option is reported at once
        self._columns = dict(columns or {})
        self._mapper = mapper or ColumnMapper(_MIN_SCORE)
        self._tokenizer = tokenizer
        self._seq_length = seq_length
        self._rows = rows

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
        """Return the contents of a dataset, from the cache if it has not changed."""
        options = dict(self._options)
        if config:
            options["subset"] = config
        if options["type"] is None and is_hub_id(dataset):
            options["type"] = "hf"
        introspector = DatasetIntrospector(
            dataset,
            **options,
            overrides=self._overrides,
            mapper=self._mapper,
            rows=0,
            token=self._token,
        )

        # The version of a dataset is known from its listing, before any file is read.
        cache_path: Path | None = None
        if self._cache is not None:
            cache_path = self._cache / f"{introspector.version}.json"
            if cache_path.is_file():
                return decoder(DatasetMetadata).decode(cache_path.read_bytes())
        inspection = introspector.inspect()
        metadata = DatasetMetadata.of(dataset, inspection, introspector.subset)
        if cache_path is not None:
            cache_path.parent.mkdir(parents=True, exist_ok=True)
            # Another process may read the cache now: it sees a complete file or none.
            unfinished_path = cache_path.with_suffix(f".{os.getpid()}")
            unfinished_path.write_bytes(msgspec.json.encode(metadata))
            unfinished_path.replace(cache_path)
        return metadata

    @property
    def subset(self) -> str | None:
        """Subset that is inspected; None if the source has no subsets."""
        if self._request.hub is not None:
            return self._request.hub.subset
        _ = self._request.listing  # fills the survey
        return self._request.survey.subset

    @property
    def version(self) -> str:
        """Hash of the listing and of the options.

        The listing has the names, sizes and versions of all files.
        """
        files: list[tuple[object, ...]] = []
        for file in self._files:
            files.append((file.path, file.size, file.token, file.stat))
        return fingerprint([self._request.entries, self.subset, self.configs(), files])

    @cached_property
    def _request(self) -> _Request:
        options = dict(self._options)
        # The token is an option of the Hub's storage; for other storages it has no
        # meaning.
        if self._token is not None and options["type"] in ("hf", "huggingface"):
            storage_options = options["storage_options"] or {}
            options["storage_options"] = {**storage_options, "token": self._token}
        return _Request(self._source or (), options, self._overrides)

    def configs(self) -> tuple[str, ...]:
        """Return the subsets of a dataset on the Hub, or of a folder with a README.md.

        They are empty if none are named.
        """
        if self._request.hub is not None:
            return self._request.hub.configs
        _ = self._request.listing  # fills the survey
        return self._request.survey.subsets

    def splits(self) -> tuple[Split, ...]:
        """Return the splits: of a dataset on the Hub, or by the names of the files."""
        if self._request.hub is not None:
            return self._request.hub.splits
        size_by_url: dict[str, int] = {}
        for file in self._request.listing:
            size_by_url[file.url] = file.size
        splits: list[Split] = []
        for split_name, urls in sorted(self._request.survey.splits.items()):
            listed_files = 0
            listed_bytes = 0
            for url in urls:
                if url in size_by_url:
                    listed_files += 1
                    listed_bytes += size_by_url[url]
            splits.append(
                Split(name=split_name, files=listed_files, bytes=listed_bytes)
            )
        return tuple(splits)

    def features(self) -> tuple[Feature, ...]:
        """Return the columns; those of the largest group, if there are several."""
        return self._inspection.groups[0].features

    @cached_property
    def _files(self) -> Sequence[InputFile]:
        return self._request.chosen.files

    @cached_property
    def _inspection(self) -> Inspection:
        """The inspection, which is made once."""
        # 1. Sample files, and collect the remarks about the source. A damaged file is
        #    left out of the proposal.
        request = self._request
        parts = self._file_groups()
        remarks = self._source_remarks()
        damaged_paths: set[str] = set()
        for remark in chain(remarks, *(part.findings() for part in parts)):
            if remark.fatal:
                damaged_paths.add(remark.file)

        # 2. Describe the groups, whose sampled records are judged as a build of the
        #    proposal does.
        groups: list[Group] = []
        opened_files = 0
        bytes_read = 0
        for sampled_part, group_name in zip(parts, self._names(parts), strict=True):
            entry = self._entry(sampled_part, group_name, damaged_paths)
            part = sampled_part
            if entry is not None:
                part = judged(sampled_part, entry, self._tokenizer)
            groups.append(self._group(part, group_name, entry))
            remarks += part.findings()
            opened_files += len(part.looks)
            for file_sample in part.looks:
                bytes_read += file_sample.bytes_read

        # 3. Propose a configuration.
        file_count = numbers.plural(len(self._files), "file")
        sampling_note = (
            f"Sampled {opened_files} of {file_count}, {numbers.size(bytes_read)} read."
        )
        proposed = proposal(
            request.entries,
            groups,
            remarks,
            tokenizer=self._tokenizer,
            seq_length=self._seq_length,
            looked=sampling_note,
        )
        return Inspection(
            source=request.entries,
            configs=self.configs(),
            splits=self.splits(),
            files=len(self._files),
            bytes=sum(file.size for file in self._files),
            looked_into=opened_files,
            bytes_read=bytes_read,
            groups=tuple(groups),
            findings=tuple(remarks),
            proposal=proposed,
        )

    def _file_groups(self) -> list[FileGroup]:
        """Return the files by kind of records, judged by about eight samples."""
        families = file_choice.families(self._files)
        source = self._request.source  # the listing may have changed it
        chosen = file_choice.chosen(families)
        chosen_files: list[InputFile] = []
        for family_files in chosen:
            chosen_files += family_files
        samples = in_order(
            lambda file: look(file, source.delimiter, source.storage_options),
            chosen_files,
            _THREADS,
        )
        # The samples come in the order of the files: each family takes its own.
        looked: list[tuple[list[InputFile], list[FileSample]]] = []
        for family, family_files in zip(families, chosen, strict=True):
            family_samples = [next(samples) for _ in family_files]
            looked.append((family, family_samples))
        return file_group.merged_groups(looked, self._mapper, self._columns)

    def _source_remarks(self) -> list[Remark]:
        """Return the remarks about the choice of files, and about empty files."""
        request = self._request
        remarks: list[Remark] = []
        if request.hub is None:
            remarks += _passed_over(request.entries, request.source.type)
        else:
            remarks += request.hub.remarks
        remarks += request.chosen.remarks
        paths = (file.path for file in self._files)
        for note in missing_numbers(paths, request.entries):
            remarks.append(Remark(file="", what=note))

        # Empty files. The first ones of many are named.
        empty_files = [file for file in self._files if not file.size]
        for file in empty_files[:_NAMED_FILES]:
            # An empty file is valid if the format needs no byte. A compressed one is
            # never empty: it has a header.
            is_compressed = file.compression is not None
            is_damaged = file.format in _FORMATS_WITH_BYTES or is_compressed
            remarks.append(Remark(file=file.path, what="it is empty", fatal=is_damaged))
        if len(empty_files) > _NAMED_FILES:
            message = f"{len(empty_files) - _NAMED_FILES:,} more files are empty"
            remarks.append(Remark(file="", what=message))
        return remarks

    def _names(self, parts: list[FileGroup]) -> list[str]:
        """Return a different name for each group of files.

        The name of a single group comes from the path of the source.
        """
        if len(parts) == 1 and len(self._request.entries) == 1:
            # The last part of the path without a pattern: `books` of `books/*.jsonl`.
            path_parts = PurePosixPath(self._request.entries[0]).parts
            for path_part in reversed(path_parts):
                if set("*?[") & set(path_part):
                    continue
                group_name = file_group.source_name(path_part.partition(".")[0])
                if group_name:
                    return [group_name]
                break

        # Equal names are numbered from the second on. 60 characters leave room for the
        # number in a name of at most 64.
        occurrences: Counter[str] = Counter()
        names: list[str] = []
        for part in parts:
            group_name = file_group.name_of(part.files)
            occurrences[group_name] += 1
            if occurrences[group_name] == 1:
                names.append(group_name)
            else:
                names.append(f"{group_name[:60]}-{occurrences[group_name]}")
        return names

    def _group(self, part: FileGroup, name: str, entry: dict[str, Any] | None) -> Group:
        """Return the description of a group of files.

        Args:
            part: The group.
            name: Its name.
            entry: Options of a configuration's dataset for it; None for none.
        """
        row_count: int | None = None
        row_margin: int | None = None
        estimate = part.row_count()
        if estimate is not None:
            row_count = estimate.rows
            row_margin = estimate.margin
        sampled_records = 0
        is_judged = True
        reasons: list[BadReason] = []
        for file_sample in part.good:
            sampled_records += file_sample.judged or file_sample.seen
            is_judged = is_judged and file_sample.judged is not None
            reasons += file_sample.bad
        bad_records: dict[str, int] = {}
        first_places: dict[str, str] = {}
        for reason in added_up(reasons):
            bad_records[reason.reason] = reason.records
            first_places[reason.reason] = reason.first
        return Group(
            name=name,
            files=len(part.files),
            bytes=part.bytes,
            formats=part.formats(),
            rows=row_count,
            rows_exact=row_margin == 0,
            rows_margin=row_margin,
            features=part.features(),
            kind=part.kind,
            mapping=part.mapping,
            text=part.statistics(),
            sampled=sampled_records,
            bad=bad_records,
            first_bad=first_places,
            judged=is_judged,
            sample=tuple(shortened(row) for row in part.rows[: self._rows]),
            entry=entry,
        )

    def _entry(
        self, part: FileGroup, name: str, damaged_paths: set[str]
    ) -> dict[str, Any] | None:
        """Return the options of a configuration's dataset for a group of files.

        Damaged files are left out. The result is None if no text can be made.
        """
        # A column with the text is enough; otherwise the text is composed of columns.
        composition: dict[str, Any] = {}
        if part.content_field is None:
            composed_options = text_options(part.kind, part.mapping)
            if composed_options is None:
                return None
            composition = composed_options
        good_files: list[InputFile] = []
        for file in part.files:
            if file.path not in damaged_paths:
                good_files.append(file)
        if not good_files:
            return None

        # Options of the user, of the choice of files, and of the files themselves.
        request = self._request
        options = dict(request.options)
        if request.chosen.split is not None:
            options["split"] = request.chosen.split
        if request.survey.subset is not None and len(request.survey.subsets) > 1:
            options["subset"] = request.survey.subset
        options["type"] = options.get("type") or part.retyped
        options["delimiter"] = options.get("delimiter") or part.delimiter
        # The column of a text file is always the same, so that it is not named.
        options["content_field"] = part.content_field
        if part.format == "text":
            options["content_field"] = None
        options["text_mode"] = part.text_mode
        options.update(composition)
        data_files = file_choice.data_files(good_files, self._files, request.entries)
        return entry_of(name, data_files, options)


def inspect(source: SourceLike, **options: Any) -> Inspection:
    """Inspect raw data without reading all of it.

    :class:`DatasetIntrospector` answers single questions.
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
