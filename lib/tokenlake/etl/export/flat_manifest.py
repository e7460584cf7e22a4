"""The manifest of a flat directory: its files, their rows, and their origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self, final

import pyarrow as pa

from tokenlake.base.checks import require_one_of
from tokenlake.config.formats import ROW_FORMATS
from tokenlake.errors import NotFoundError
from tokenlake.etl.export.file_mode import file_mode
from tokenlake.runtime.store.sealed import Count, Sealed, SealedDocument, Sha256

# The underscore keeps libraries that read a whole folder from reading these files.
FOLDER: Final = "_tokenlake"
MANIFEST: Final = "manifest.json"

_COMPRESSIONS: Final = {
    "parquet": ("none", "gzip", "lz4", "zstd"),
    "arrow": ("none", "lz4", "zstd"),
    "jsonl": ("none", "gzip", "lz4", "zstd"),
    "megatron": ("none",),
    "numpy": ("none",),
    "npy": ("none",),
    "mds": ("none",),
    "litdata": ("none", "zstd"),
    "array_record": ("none",),
}

_ENDINGS: Final = {"gzip": ".gz", "lz4": ".lz4", "zstd": ".zst"}


@final
@dataclass(frozen=True, slots=True)
class FileFormat:
    """Format of data files.

    Attributes:
        format: ``parquet``, ``arrow`` (IPC files), ``jsonl``, or a format of trainers:
            ``megatron``, ``numpy``, ``npy``, ``mds``, ``litdata`` or ``array_record``.
        compression: ``none`` or a compression.
    """

    format: str
    compression: str

    @classmethod
    def of(cls, format: str, compression: str | None) -> FileFormat:
        """Return the format of files.

        Args:
            format: Name of the format.
            compression: Name of the compression; None: the usual one, zstd in Parquet
                and none elsewhere.

        Raises:
            ConfigError: There is no such format or compression, or they do not go
                together.
        """
        # Parquet compresses each page by itself, so that readers still reach any row
        # group. Other formats are mapped into memory, or read as text.
        if compression is None:
            compression = "none"
            if format == "parquet":
                compression = "zstd"
        require_one_of("format", format, tuple(_COMPRESSIONS))
        require_one_of(
            f"compression of format {format!r}", compression, _COMPRESSIONS[format]
        )
        return cls(format, compression)

    @property
    def is_of_rows(self) -> bool:
        """True for a format of rows with any columns, false for one of trainers."""
        return self.format in ROW_FORMATS

    @property
    def extension(self) -> str:
        """Extension of files of rows.

        One of ``.parquet``, ``.arrow``, ``.jsonl``, ``.jsonl.gz``, ``.jsonl.lz4`` or
        ``.jsonl.zst``.
        """
        extension = f".{self.format}"
        if self.format == "jsonl":
            extension += _ENDINGS.get(self.compression, "")
        return extension


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FlatFile:
    """A data file.

    Attributes:
        path: Name of the file; with the folder of its split in formats that have such
            folders.
        split: Split of its rows; empty for a file that describes those of all splits.
        bytes: Size of the file.
        sha256: Hash of its bytes (hex).
        rows: Number of its rows.
    """

    path: str
    split: str
    bytes: Count
    sha256: Sha256
    rows: Count


@final
@dataclass(frozen=True, slots=True)
class Origin:
    """Kind and origin of rows, as :class:`FlatManifest` states them.

    Attributes:
        kind: ``rows``, ``tokens`` or ``packed``.
        made_of: Configuration, tokenizers and inputs, as far as they are known.
        produced_by: Names and versions of the packages that wrote the rows.
        beside: Name -> content of files that lie beside the manifest.
    """

    kind: str = "rows"
    made_of: Mapping[str, Any] = field(default_factory=dict[str, Any])
    produced_by: Mapping[str, str] = field(default_factory=dict[str, str])
    beside: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FlatManifest(Sealed):
    """Manifest of a flat directory: sealed canonical JSON without clock, host or user.

    Attributes:
        kind: ``rows``, ``tokens`` (a row per document) or ``packed``.
        format: Format of the files.
        compression: Compression of the files.
        columns: Name -> Arrow type; empty if lines have no schema.
        files: Files, in the order of the rows.
        made_of: Configuration, tokenizers and inputs of a pipeline or a build, and the
            fingerprint and account of a build; empty if they are not known.
        produced_by: Names and versions of the packages that wrote the directory.
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
        """Number of rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def pad_token_id(self) -> int | None:
        """Id of the padding of the rows' tokenizer, or of its EOS if it has no padding.

        None if tokenizers of several sources differ in it, no tokenizer is known, or
        rows hold no tokens.
        """
        if self.kind != "tokens":
            return None
        # Either one tokenizer, or one for each source.
        recorded: dict[str, Any] = self.made_of.get("tokenizer") or {}
        tokenizers = list(recorded.values())
        if "pad_id" in recorded:
            tokenizers = [recorded]
        # Rows of several sources can be padded together if all have the same id.
        pad_ids: set[int | None] = set()
        for tokenizer in tokenizers:
            pad_id = tokenizer["pad_id"]
            if pad_id is None:
                pad_id = tokenizer["eos_id"]
            pad_ids.add(pad_id)
        if len(pad_ids) != 1:
            return None
        return pad_ids.pop()

    def _check(self, document: SealedDocument) -> None:
        # Paths are used below the directory: none may lead out of it.
        for index, file in enumerate(self.files):
            folder, slash, file_name = file.path.rpartition("/")
            path_names = [file_name]
            if slash:
                path_names.append(folder)
            is_bad_path = any(
                "/" in name or name in ("", ".", "..", FOLDER) for name in path_names
            )
            if is_bad_path:
                expected_path = "the name of a file in the directory, or in a folder of a split in it"
                document.fail(f"files[{index}].path", expected_path, file.path)

    @classmethod
    def of(cls, directory: str | Path) -> Self:
        """Read the manifest of a flat directory.

        Raises:
            NotFoundError: The directory has none.
            IntegrityError: The manifest was changed.
        """
        # The manifest is written last: without one the files may be incomplete.
        manifest_path = Path(directory) / FOLDER / MANIFEST
        if not manifest_path.is_file():
            raise NotFoundError(
                f"{manifest_path}: missing; {directory} was not written completely by tokenlake"
            )
        return cls.from_bytes(manifest_path.read_bytes(), str(manifest_path))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStats:
    """Numbers of rows, files and bytes that were written.

    Attributes:
        num_examples: Number of rows.
        num_shards: Number of files.
        total_bytes: Size of all files, as stored.
        output_paths: Paths of the files, in the order of their rows.
        num_tokens: Number of ids in all rows, including BOS and EOS and without
            padding; None if rows hold no tokens.
        num_cut: Number of documents that were longer than `max_length` and lost tokens;
            None if that is not known.
        num_dropped_tokens: Number of tokens that they lost; None if that is not known.
        compared: Comparison by which an export that was there already was found whole,
            ``sizes`` or ``hashes``; empty if files were written.
        missing_paths: Names of files of this export that were missing, so that it was
            written again.

    Example:
        >>> import tokenlake as tl
        >>> stats = tl.export_version("artifacts/books", "out", "jsonl", split="validation")
        >>> stats.num_shards, stats.output_paths[0][-31:]
        (1, 'validation-00000-of-00001.jsonl')
    """

    num_examples: int
    num_shards: int
    total_bytes: int
    output_paths: list[str]
    num_tokens: int | None = None
    num_cut: int | None = None
    num_dropped_tokens: int | None = None
    # Equal rows and files are equal numbers, whether they were written now or before.
    compared: Literal["", "sizes", "hashes"] = field(default="", compare=False)
    missing_paths: list[str] = field(default_factory=list[str], compare=False)

    @classmethod
    def of(
        cls, manifest: FlatManifest, url: str, num_tokens: int | None = None
    ) -> WriteStats:
        """Return the numbers of a flat directory at a path or URL."""
        # Sizes are those of the manifest, so that a bucket is not listed.
        total_bytes = sum(file.bytes for file in manifest.files)
        output_paths = [f"{url}/{file.path}" for file in manifest.files]
        return cls(
            num_examples=manifest.rows,
            num_shards=len(manifest.files),
            total_bytes=total_bytes,
            output_paths=output_paths,
            num_tokens=num_tokens,
        )


def put_manifest(
    folder: Path,
    form: FileFormat,
    schema: pa.Schema,
    files: Sequence[FlatFile],
    origin: Origin,
) -> FlatManifest:
    """Write the manifest of a folder, and the files beside it; return the manifest.

    Args:
        folder: Folder with the files.
        form: Format of the files.
        schema: Schema of their rows.
        files: Files, in the order of the rows.
        origin: Kind and origin of the rows.
    """
    # Types are stored as Arrow spells them, which any reader of the manifest can show.
    columns: dict[str, str] = {}
    for column_name, column_type in zip(schema.names, schema.types, strict=True):
        columns[column_name] = str(column_type)
    manifest = FlatManifest(
        kind=origin.kind,
        format=form.format,
        compression=form.compression,
        columns=columns,
        files=tuple(files),
        made_of=dict(origin.made_of),
        produced_by=dict(origin.produced_by),
    )
    # The manifest is the last file: a directory that has one is whole.
    described_files = {**origin.beside, MANIFEST: manifest.to_bytes()}
    for file_name, content in described_files.items():
        file_path = folder / FOLDER / file_name
        file_path.parent.mkdir(parents=True, exist_ok=True)
        file_path.write_bytes(content)
        file_path.chmod(file_mode(folder))
    return manifest
