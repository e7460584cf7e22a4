"""The source that is inspected: its files, the subsets and splits of a dataset on the Hub, and splits told by names."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Final, Self, final

from tokenlake.config.formats import SourceType
from tokenlake.config.load import load_config
from tokenlake.config.resolve import resolve
from tokenlake.config.resolved import ResolvedSource
from tokenlake.errors import ConfigError, SourceNotFoundError
from tokenlake.introspection.inspection import Remark, Split
from tokenlake.introspection.mapping import words_of
from tokenlake.sources.formats import belongs, compression_of, format_of
from tokenlake.sources.hub import list_repo, listed
from tokenlake.sources.hub_repo import HubClient, parse_id
from tokenlake.sources.inputs import InputFile, is_url
from tokenlake.sources.listing import expand, list_inputs
from tokenlake.sources.opening import kind_of

_DEFAULT_SPLIT: Final = "train"


@final
@dataclass(frozen=True, slots=True)
class HubFacts:
    """Subsets and splits, and which of them a look is at.

    Attributes:
        configs: all subsets, in the order of the card or the names.
        splits: of the subset looked at.
        subset, split: what is looked at: as asked, else the default ones, else the first there are.
        remarks: where it is the first of several and not the default.
    """

    configs: tuple[str, ...]
    splits: tuple[Split, ...]
    subset: str | None
    split: str
    remarks: tuple[Remark, ...]

    @classmethod
    def of(cls, source: ResolvedSource, split: str | None) -> Self:
        """Ask the Hub; of several ids, the first says which subsets and splits there are.

        Args:
            source: of type ``hub``.
            split: what was asked for, None for nothing.

        Raises:
            SourceNotFoundError: no such dataset or revision.
            ConfigError: the entry is no id, or nothing in the repository can be read.
            SourceError: the Hub refuses, or cannot be reached.
        """
        listing = list_repo(HubClient(source.storage_options), parse_id(source.data_files[0]))
        subsets, sizes = listing.layout.subsets, {path: file.size for path, file in listing.files.items()}
        subset, first_of = source.subset or listing.layout.default, list[tuple[str, str, tuple[str, ...]]]()
        if subset is None and subsets:
            subset = next(iter(subsets))
            first_of.append(("subset", subset, tuple(subsets)))
        splits = tuple(
            Split(name=name, files=len(paths), bytes=sum(sizes.get(path, 0) for path in paths))
            for name, paths in subsets.get(subset or "", {}).items()
        )
        names = tuple(each.name for each in splits)
        chosen = split or (_DEFAULT_SPLIT if _DEFAULT_SPLIT in names or not names else names[0])
        if split is None and names and chosen != _DEFAULT_SPLIT:
            first_of.append(("split", chosen, names))
        told = (
            f"this is {what} {name!r}, the first of {listed(others)}: none of them is the default one"
            for what, name, others in first_of
        )
        remarks = tuple(Remark(file="", what=each) for each in told)
        return cls(tuple(subsets), splits, subset, chosen, remarks)


_WORDS: Final = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "development"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation", "heldout"), "test"),
}


def split_of(path: str) -> str | None:
    """Return the split that a path names as a word of its own, the file's name before its folders."""
    parts = PurePosixPath(path).parts
    for part in reversed(parts):
        named = {_WORDS[word] for word in words_of(part) if word in _WORDS}
        if len(named) == 1:
            return named.pop()
    return None


SourceLike = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_NAME = "inspected"
_HEAD = 64 << 10


@final
class Request:
    """A source and the options it was given with.

    Attributes:
        source: with the listing's options resolved; its tokenizer means nothing.
        given: `data_files` as they were given.
        options: the options of a configuration's dataset that were given, without `data_files`.
    """

    def __init__(self, source: SourceLike, options: Mapping[str, Any], overrides: Iterable[str] = ()) -> None:
        """Check and resolve the options.

        Args:
            source: path, glob, directory, URL or Hub id (with type ``hf``), or several.
            options: of a configuration's dataset; None means not given.
            overrides: ``key=value`` texts for further options, as in a file: no literal secrets.

        Raises:
            ConfigError: an option is wrong.
        """
        several = isinstance(source, list | tuple)
        self.given: tuple[str, ...] = tuple(map(os.fspath, source if several else (source,)))  # pyright: ignore[reportArgumentType]
        written = {name: value for name, value in options.items() if value is not None}
        dataset = {"name": _NAME, "data_files": list(self.given), **written}
        config = load_config(
            {"name": _NAME, "datasets": [dataset], "default_tokenizer": "none"},
            [f"datasets.{_NAME}.{override}" for override in overrides],
        )
        self.source: ResolvedSource = resolve(config).sources[0]
        shown: dict[str, Any] = config.datasets[0].model_dump(mode="json", exclude_unset=True)
        self.options: dict[str, Any] = {
            name: value for name, value in shown.items() if name not in {"name", "data_files"}
        }

    @property
    def is_hub(self) -> bool:
        """Whether the entries are ids of datasets on the Hub."""
        return self.source.type == "hub"

    @cached_property
    def hub(self) -> HubFacts | None:
        """What the Hub says, None for files; the subset and split it chose become part of the source."""
        if not self.is_hub:
            return None
        facts = HubFacts.of(self.source, self.options.get("split"))
        self.source = replace(self.source, subset=facts.subset, split=facts.split)
        if facts.subset is not None and len(facts.configs) > 1:
            self.options["subset"] = facts.subset
        self.options["split"] = facts.split
        return facts

    @cached_property
    def listing(self) -> Sequence[InputFile]:
        """All files, of whatever split; local ones are not read.

        A local file without a telling extension gets the type that its first bytes show.

        Raises:
            SourceNotFoundError: nothing is there.
            ConfigError: nobody can say what the files hold.
        """
        if self.hub is not None:
            return list_inputs(self.source)
        try:
            return list_inputs(self.source, hashed=False)
        except ConfigError:
            kind = None if self.source.type else self._sniffed_type()
            if kind is None:
                raise
            again = Request(self.given, {**self.options, "type": kind})
            self.source, self.options = again.source, again.options
            return list_inputs(self.source, hashed=False)

    def files(self) -> Sequence[InputFile]:
        """Return the files of the split that was asked for, all if none was.

        Raises: like :attr:`listing`, and SourceNotFoundError if no name says that split.
        """
        wanted = None if self.is_hub else self.options.get("split")
        if wanted is None:
            return self.listing
        splits = [split_of(file.path) for file in self.listing]
        asked = split_of(wanted) or wanted
        found = [file for file, split in zip(self.listing, splits, strict=True) if split == asked]
        if not found:
            known = ", ".join(sorted({name for name in splits if name}))
            raise SourceNotFoundError(
                f"no file of {', '.join(self.given)} is named after a split {wanted!r}; the names suggest "
                f"{known or 'no splits at all: leave the split out'}",
                got=wanted,
            )
        return found

    def _sniffed_type(self) -> str | None:
        """The type that all files' first bytes show, None where one is named otherwise or shows nothing."""
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


def passed_over(given: tuple[str, ...], wanted: SourceType | None) -> tuple[Remark, ...]:
    """Count the files with other extensions in the directories among `given`; hidden ones mean nothing."""
    found: Counter[str] = Counter()
    for entry in given:
        for _, folders, names in os.walk(Path(entry.removeprefix("file://")).expanduser()):
            folders[:] = [name for name in folders if not name.startswith((".", "_"))]
            found.update(
                "".join(PurePath(name).suffixes[-2:]) or name
                for name in names
                if not name.startswith((".", "_")) and not belongs(name, wanted)
            )
    if not found:
        return ()
    most = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    told = ", ".join(f"{name} {count:,}" for name, count in most[:_SHOWN])
    more = f" and {len(most) - _SHOWN} more endings" if len(most) > _SHOWN else ""
    return (Remark(file="", what=f"files that are not read, because of their names: {told}{more}"),)
