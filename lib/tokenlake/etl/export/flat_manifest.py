"""The manifest of a flat directory: its files, their rows, and what they were made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Self, final

import pyarrow as pa

from tokenlake.base.checks import require_one_of
from tokenlake.errors import NotFoundError
from tokenlake.etl.export.file_mode import file_mode
from tokenlake.runtime.store.sealed import Count, Sealed, SealedDocument, Sha256

FOLDER: Final = "_tokenlake"
MANIFEST: Final = "manifest.json"

_COMPRESSIONS: Final = {
    "parquet": ("none", "gzip", "lz4", "zstd"),
    "arrow": ("none", "lz4", "zstd"),
    "jsonl": ("none", "gzip", "lz4", "zstd"),
}
_ENDINGS: Final = {"gzip": ".gz", "lz4": ".lz4", "zstd": ".zst"}


@final
@dataclass(frozen=True, slots=True)
class FileFormat:
    """How files are written: ``parquet``, ``arrow`` (IPC files) or ``jsonl``, and ``none`` or a compression."""

    format: str
    compression: str

    @classmethod
    def of(cls, format: str, compression: str | None) -> FileFormat:
        """Return the format; None compresses as usual: zstd in Parquet, else nothing.

        Raises:
            ConfigError: there is no such format or compression, or they do not go together.
        """
        if compression is None:
            compression = "zstd" if format == "parquet" else "none"
        require_one_of("format", format, tuple(_COMPRESSIONS))
        require_one_of(f"compression of format {format!r}", compression, _COMPRESSIONS[format])
        return cls(format, compression)

    @property
    def extension(self) -> str:
        """Return ``.parquet``, ``.arrow``, ``.jsonl``, ``.jsonl.gz``, ``.jsonl.lz4`` or ``.jsonl.zst``."""
        return f".{self.format}" + (_ENDINGS.get(self.compression, "") if self.format == "jsonl" else "")


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
class FlatManifest(Sealed):
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

    FREE: ClassVar = ("made_of",)

    kind: str
    format: str
    compression: str
    columns: dict[str, str]
    files: tuple[FlatFile, ...]
    made_of: dict[str, Any]
    produced_by: dict[str, str]

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def pad_token_id(self) -> int | None:
        """Id of the padding of the tokenizer of the rows, otherwise of its EOS.

        None where tokenizers of several sources differ in it, no tokenizer is known, or rows hold no tokens.
        """
        if self.kind != "tokens":
            return None
        # Either one tokenizer, or one for each source.
        stated: dict[str, Any] = self.made_of.get("tokenizer") or {}
        tokenizers = [stated] if "pad_id" in stated else list(stated.values())
        pad_ids: set[int | None] = set()
        for tokenizer in tokenizers:
            pad_id = tokenizer["pad_id"]
            pad_ids.add(tokenizer["eos_id"] if pad_id is None else pad_id)
        return pad_ids.pop() if len(pad_ids) == 1 else None

    def _check(self, document: SealedDocument) -> None:
        for index, file in enumerate(self.files):
            if "/" in file.path or file.path in ("", ".", ".."):
                document.fail(f"files[{index}].path", "the name of a file in the directory", file.path)

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
        num_cut: documents that were longer than `max_length` and lost tokens; None where that is not known.
        num_dropped_tokens: tokens that they lost; None where that is not known.
    """

    num_examples: int
    num_shards: int
    total_bytes: int
    output_paths: list[str]
    num_tokens: int | None = None
    num_cut: int | None = None
    num_dropped_tokens: int | None = None

    @classmethod
    def of(cls, manifest: FlatManifest, url: str, num_tokens: int | None = None) -> WriteStats:
        """Sum up what lies at a path or URL."""
        return cls(
            num_examples=manifest.rows,
            num_shards=len(manifest.files),
            total_bytes=sum(file.bytes for file in manifest.files),
            output_paths=[f"{url}/{file.path}" for file in manifest.files],
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
