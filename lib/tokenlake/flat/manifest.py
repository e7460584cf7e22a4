"""``_tokenlake/manifest.json`` of a flat directory: which files it has, and what they were made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, final

from tokenlake.errors import IntegrityError, NotFoundError
from tokenlake.sealed import FORMAT_VERSION, SHA256, Fields, seal, unseal
from tokenlake.storage.durable import hash_regular

FOLDER: Final = "_tokenlake"
MANIFEST: Final = "manifest.json"


def _nothing() -> dict[str, Any]:
    return {}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FlatFile:
    """A data file: its name, split, size, sha256 (hex) and rows."""

    path: str
    split: str
    bytes: int
    sha256: str
    rows: int

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "split": self.split,
            "bytes": self.bytes,
            "sha256": self.sha256,
            "rows": self.rows,
        }

    @classmethod
    def read(cls, fields: Fields) -> Self:
        """Read an entry; an impossible value is an IntegrityError."""
        entry = cls(
            path=fields.text("path"),
            split=fields.text("split"),
            bytes=fields.count("bytes"),
            sha256=fields.text("sha256", SHA256),
            rows=fields.count("rows"),
        )
        if "/" in entry.path or entry.path in ("", ".", ".."):
            fields.fail("path", "the name of a file in the directory", entry.path)
        fields.end()
        return entry


@final
@dataclass(frozen=True, slots=True)
class Origin:
    """What rows are and what they were made of, as :class:`FlatManifest` says it."""

    kind: str = "rows"
    made_of: dict[str, Any] = field(default_factory=_nothing)


NO_ORIGIN: Final = Origin()


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
    made_of: dict[str, Any] = field(default_factory=_nothing)
    produced_by: dict[str, str] = field(default_factory=_nothing)

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        fields: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "kind": self.kind,
            "format": self.format,
            "compression": self.compression,
            "columns": self.columns,
            "files": [file.to_json() for file in self.files],
            "made_of": self.made_of,
            "produced_by": self.produced_by,
        }
        return seal(fields)

    @classmethod
    def from_bytes(cls, data: bytes, where: str = MANIFEST) -> Self:
        """Read a manifest; any change after it was written is an IntegrityError."""
        fields = unseal(data, where)
        manifest = cls(
            kind=fields.text("kind"),
            format=fields.text("format"),
            compression=fields.text("compression"),
            columns=fields.texts("columns"),
            files=tuple(FlatFile.read(entry) for entry in fields.children("files")),
            made_of=fields.json_object("made_of"),
            produced_by=fields.texts("produced_by"),
        )
        fields.end()
        return manifest

    @classmethod
    def of(cls, directory: str | Path) -> Self:
        """Read the manifest of a flat directory.

        Raises:
            NotFoundError: it has none.
            IntegrityError: it was changed.
        """
        path = Path(directory) / FOLDER / MANIFEST
        if not path.is_file():
            raise NotFoundError(
                f"{path}: there is no such file; {directory} was not written by tokenlake, or not whole"
            )
        return cls.from_bytes(path.read_bytes(), str(path))

    def check(self, directory: str | Path) -> None:
        """Compare the files of a directory with this manifest.

        Raises:
            IntegrityError: one is missing or has other bytes.
        """
        for file in self.files:
            path = Path(directory) / file.path
            if not path.is_file():
                raise IntegrityError(f"{path}: missing, but the manifest lists it", file=file.path)
            if (found := hash_regular(path)) != file.sha256:
                raise IntegrityError(
                    f"{path}: its sha256 is {found}, expected {file.sha256}; the file was changed or damaged. "
                    "Write it again",
                    file=file.path,
                )
