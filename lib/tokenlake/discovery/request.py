"""What is to be inspected, as the source that a configuration would make of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

from tokenlake.config import load_config
from tokenlake.config.resolve import resolve
from tokenlake.config.resolved import ResolvedSource
from tokenlake.discovery.hubinfo import HubFacts, hub_facts
from tokenlake.discovery.splits import split_of
from tokenlake.errors import ConfigError, SourceNotFoundError
from tokenlake.sources.formats import compression_of, format_of
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.listing import list_inputs
from tokenlake.sources.local.patterns import expand, is_url

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
        facts = hub_facts(self.source, self.options.get("split"))
        self.source = replace(self.source, subset=facts.subset, split=facts.split)
        if facts.subset is not None and len(facts.configs) > 1:
            self.options["subset"] = facts.subset
        self.options["split"] = facts.split
        return facts

    @cached_property
    def listing(self) -> list[InputFile]:
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

    def files(self) -> list[InputFile]:
        """Return the files of the split that was asked for, all if none was.

        Raises: like :attr:`listing`, and SourceNotFoundError if no name says that split.
        """
        wanted = None if self.is_hub else self.options.get("split")
        return self.listing if wanted is None else _of_split(self.listing, wanted, self.given)

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
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "arrow"
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


def _of_split(files: list[InputFile], wanted: str, given: tuple[str, ...]) -> list[InputFile]:
    asked = split_of(wanted) or wanted
    found = [file for file in files if split_of(file.path) == asked]
    if not found:
        known = sorted({name for file in files if (name := split_of(file.path))})
        raise SourceNotFoundError(
            f"no file of {', '.join(given)} is named after a split {wanted!r}; the names suggest "
            f"{', '.join(known) or 'no splits at all: leave the split out'}",
            got=wanted,
        )
    return found
