"""The manifest of a flat directory: what its files are, what they hold, and what that was made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, final, get_type_hints

import msgspec
import pyarrow as pa

from tokenlake.errors import NotFoundError
from tokenlake.fingerprint import canonical_texts
from tokenlake.store.sealed import FORMAT_VERSION, Count, Sha256, seal_texts, unseal

if TYPE_CHECKING:
    from tokenlake.export.directory import Target
    from tokenlake.export.shard_files import FileFormat

FOLDER: Final = "_tokenlake"
MANIFEST: Final = "manifest.json"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FlatFile:
    """A data file: its name, split, size, sha256 (hex) and rows."""

    path: str
    split: str
    bytes: Count
    sha256: Sha256
    rows: Count


@final
@dataclass(frozen=True, slots=True)
class Origin:
    """What rows are and what they were made of, as :class:`FlatManifest` says it, and the files to lie beside that."""

    kind: str = "rows"
    made_of: Mapping[str, Any] = field(default_factory=dict[str, Any])
    produced_by: Mapping[str, str] = field(default_factory=dict[str, str])
    beside: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FlatManifest:
    """What a flat directory is: sealed canonical JSON without clock, host or user.

    Attributes:
        kind: ``rows``, ``tokens`` (a row per document) or ``packed``.
        format, compression: of the files.
        columns: name to Arrow type; empty where lines have no schema.
        files: in the order of the rows.
        made_of: the configuration, tokenizers and inputs where they are known (of a pipeline or a build; of a build
            also its fingerprint and account), else empty.
        produced_by: names and versions of what wrote it.
    """

    kind: str
    format: str
    compression: str
    columns: dict[str, str]
    files: tuple[FlatFile, ...]
    made_of: dict[str, Any] = field(default_factory=dict[str, Any])
    produced_by: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        return seal_texts(self._texts())

    def _texts(self) -> dict[str, str]:
        files = msgspec.to_builtins(self.files)
        return canonical_texts({"format_version": FORMAT_VERSION, **asdict(self), "files": files})

    @classmethod
    def from_bytes(cls, data: bytes, where: str = MANIFEST) -> Self:
        """Read a manifest; any change after it was written is an IntegrityError."""
        document = unseal(data, where)
        found = cls(**{name: document.get(name, kind) for name, kind in get_type_hints(cls).items()})
        for index, file in enumerate(found.files):
            if "/" in file.path or file.path in ("", ".", ".."):
                document.fail(f"files[{index}].path", "the name of a file in the directory", file.path)
        document.end(found._texts())
        return found

    @classmethod
    def of(cls, directory: str | Path) -> Self:
        """Read the manifest of a flat directory.

        Raises:
            NotFoundError: it has none.
            IntegrityError: it was changed.
        """
        path = Path(directory) / FOLDER / MANIFEST
        if not path.is_file():
            raise NotFoundError(f"{path}: missing; {directory} was not written whole by tokenlake")
        return cls.from_bytes(path.read_bytes(), str(path))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStats:
    """What was written.

    Attributes:
        num_examples: rows.
        num_shards: files.
        total_bytes: of all files, as stored.
        output_paths: of the files, in the order of their rows.
        num_tokens: ids in all rows, those around documents included, padding not; None where rows hold no tokens.
    """

    num_examples: int
    num_shards: int
    total_bytes: int
    output_paths: list[str]
    num_tokens: int | None = None

    @classmethod
    def of(cls, manifest: FlatManifest, target: Target, num_tokens: int | None = None) -> WriteStats:
        """Sum up what lies at `target`."""
        return cls(
            num_examples=manifest.rows,
            num_shards=len(manifest.files),
            total_bytes=sum(file.bytes for file in manifest.files),
            output_paths=[target.path(file.path) for file in manifest.files],
            num_tokens=num_tokens,
        )


def put_manifest(
    folder: Path, form: FileFormat, schema: pa.Schema, files: Sequence[FlatFile], origin: Origin
) -> FlatManifest:
    """Write the manifest of files that lie in `folder`, and what belongs beside it; return it."""
    manifest = FlatManifest(
        kind=origin.kind,
        format=form.format,
        compression=form.compression,
        columns={name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)},
        files=tuple(files),
        made_of=dict(origin.made_of),
        produced_by=dict(origin.produced_by),
    )
    for name, data in {**origin.beside, MANIFEST: manifest.to_bytes()}.items():
        path = folder / FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(file_mode(folder))
    return manifest


def file_mode(folder: Path) -> int:
    """Return the permissions that a file of `folder` gets: the folder's own, without execution."""
    return folder.stat().st_mode & 0o666
