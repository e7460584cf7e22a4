"""What a version was made from: input files, ranges of them, and parent versions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from operator import eq
from typing import Any, Final, Self, final

from tokenlake.fingerprint import file_id, fingerprint
from tokenlake.store.entries import are_all, are_counts, columns
from tokenlake.store.layout import DATASET_NAME
from tokenlake.store.sealed import SHA256, Fields

_FILE: Final = ("source", "path", "size", "token", "file_id")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InputFileEntry:
    """An input file as identity knows it.

    Attributes:
        source: the configured source's name.
        path: POSIX, relative to the listing's root.
        size: bytes.
        token: version token, ``sha256:<hex>`` for local files.
        file_id: :func:`tokenlake.fingerprint.file_id` of source and path; what provenance columns hold.
    """

    source: str
    path: str
    size: int
    token: str
    file_id: int

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "path": self.path,
            "size": self.size,
            "token": self.token,
            "file_id": self.file_id,
        }

    @classmethod
    def read_all(cls, source: Fields, key: str) -> tuple[Self, ...]:
        """Read a list of entries."""
        found = columns(source.plain_list(key), _FILE)
        if found is None or not _are_identities(*found):
            return tuple(map(cls.read, source.children(key)))
        return tuple(
            cls(source=name, path=path, size=size, token=token, file_id=id_)
            for name, path, size, token, id_ in zip(*found, strict=True)
        )

    @classmethod
    def read(cls, source: Fields) -> Self:
        found = cls(**_identity(source))
        source.end()
        return found


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InputEntry:
    """The range of an input file that one unit read: identity as in :class:`InputFileEntry`, and

    Attributes:
        start, stop: half open, in bytes for line formats, in row groups for Parquet.
    """

    source: str
    path: str
    size: int
    token: str
    file_id: int
    start: int
    stop: int

    @property
    def file(self) -> InputFileEntry:
        """The file without the range: the row of the manifest's table."""
        return InputFileEntry(
            source=self.source, path=self.path, size=self.size, token=self.token, file_id=self.file_id
        )

    def to_json(self) -> dict[str, Any]:
        return {**self.file.to_json(), "start": self.start, "stop": self.stop}

    @classmethod
    def read(cls, source: Fields) -> Self:
        start = source.count("start")
        found = cls(**_identity(source), start=start, stop=source.count("stop", low=start))
        source.end()
        return found


def _are_identities(*table: tuple[Any, ...]) -> bool:
    sources, paths, sizes, tokens, ids = table
    return (
        all(are_all(texts, str) for texts in (sources, paths, tokens))
        and are_counts(sizes)
        and are_all(ids, int)
        and all(map(eq, map(file_id, sources, paths), ids))
    )


def _identity(source: Fields) -> dict[str, Any]:
    name, path, stated = source.text("source"), source.text("path"), source.signed("file_id")
    expected = file_id(name, path)
    if stated != expected:
        source.fail("file_id", f"{expected}, the id of {name!r} and {path!r}", stated)
    return {
        "source": name,
        "path": path,
        "size": source.count("size"),
        "token": source.text("token"),
        "file_id": stated,
    }


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """A version that this one was made from."""

    dataset: str
    version: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, source: Fields) -> Self:
        found = cls(
            dataset=source.text("dataset", DATASET_NAME),
            version=source.count("version", low=1),
            sha256=source.text("sha256", SHA256),
        )
        source.end()
        return found


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Where a version comes from: parent versions, and one hash over all input files."""

    parents: tuple[Parent, ...]
    inputs_fingerprint: str

    def to_json(self) -> dict[str, Any]:
        return {
            "parents": [parent.to_json() for parent in self.parents],
            "inputs_fingerprint": self.inputs_fingerprint,
        }


def inputs_fingerprint(inputs: Iterable[InputFileEntry]) -> str:
    """Return the hash of source, path, size and token of all input files, in any order."""
    return fingerprint(sorted([entry.source, entry.path, entry.size, entry.token] for entry in inputs))
