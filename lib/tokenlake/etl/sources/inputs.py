"""Input files and ranges of them, as a plan names them.

A listing makes one :class:`InputFile` per file. A plan cuts it into :class:`FileRange`
parts, which workers read on their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tokenlake.base.fingerprint import file_id
from tokenlake.config.formats import FORMATS, Format, FormatFacts
from tokenlake.errors import SourceError
from tokenlake.etl.sources.formats import Compression, compression_of, format_for

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource

# Largest size that is believed, 1 PiB: a storage may report anything.
_MAX_FILE_BYTES: Final = 1 << 50


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One input file as it was when the build was planned.

    It becomes JSON by ``dataclasses.asdict``.

    Attributes:
        source: Name of the source that it belongs to.
        path: Path relative to the listing's root, with ``/``; identity, together with
            size and token.
        url: Absolute local path, or a URL with its scheme and without credentials; not
            identity.
        size: Number of bytes as they are stored.
        token: Version token: ``sha256:<hex>`` of a local file's bytes, otherwise the
            store's version, such as ``etag:<value>`` or ``generation:<number>``.
        stat: (inode, mtime_ns, ctime_ns) of a local file when it was hashed, checked
            again by every read; empty for a URL, whose token is checked.
        format: Format of the content.
        compression: Compression of the file as a whole, None for plain files and
            Parquet.
        file_id: Signed 64-bit identity of (source, path), stored as provenance.
        text_mode: Mode of the format ``text``: ``document`` (a file is a document) or
            ``lines``.
        origin: Note for people on the file's origin, such as the Hub's commit, or "";
            not identity.
        kept_bytes: Size of the remote blocks that the reading machine keeps; None for
            the size that its environment sets; not identity.
        companions: Files that belong to this one and hold no records, such as its
            index, in the order of its format's names for them
            (:class:`~tokenlake.config.formats.FormatFacts`).
    """

    source: str
    path: str
    url: str
    size: int
    token: str
    stat: tuple[int, ...]
    format: Format
    compression: Compression | None
    file_id: int
    text_mode: str = "document"
    origin: str = ""
    kept_bytes: int | None = None
    companions: tuple[InputFile, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether it is a file of this machine, not an object at a URL."""
        return "://" not in self.url

    @property
    def facts(self) -> FormatFacts:
        """Facts about its format."""
        return FORMATS[self.format]

    @property
    def is_lines(self) -> bool:
        """Whether its records are lines, whose positions are byte offsets."""
        return self.facts.layout == "lines" and (
            self.format != "text" or self.text_mode == "lines"
        )

    @property
    def has_records(self) -> bool:
        """Whether its records are numbered, and any of them can be read by itself."""
        return self.facts.layout == "records"

    @property
    def companion(self) -> str:
        """The name that its format has for a file that belongs to others; otherwise "".

        Such a file holds no records.
        """
        return self.facts.companion(self.path)

    @property
    def has_blocks(self) -> bool:
        """Whether it has row groups or record batches.

        An Arrow stream has none that are listed.
        """
        return self.facts.layout == "blocks"


def planned(
    source: ResolvedSource,
    path: str,
    url: str,
    *,
    size: int,
    token: str,
    stat: tuple[int, ...] = (),
    compression: Compression | None = None,
    origin: str = "",
) -> InputFile:
    """Return a file of `source` as a listing found it; see :class:`InputFile`.

    Args:
        source: Source that it belongs to.
        path: Path relative to the listing's root.
        url: Absolute local path, or URL.
        size: Number of bytes as they are stored.
        token: Version token.
        stat: State of a local file.
        compression: Compression that the storage states, which counts if the name has
            no extension of a compression.
        origin: Note for people on the file's origin.

    Raises:
        ConfigError: Neither the extension nor the source's type gives the format.
        SourceError: A storage states more bytes than any file has.
    """
    if size > _MAX_FILE_BYTES:
        # Planning would cut it into an enormous number of ranges.
        raise SourceError(
            f"{url}: the storage reports a file size of {size} bytes, which is impossible; expected at most "
            f"{_MAX_FILE_BYTES}",
            file=path,
            got=size,
        )
    # The identity consists of the source and the path alone, so that a copy of the
    # inputs elsewhere has the same provenance.
    return InputFile(
        source=source.name,
        path=path,
        url=url,
        size=size,
        token=token,
        stat=stat,
        format=format_for(path, url, source.type),
        compression=compression_of(path) or compression,
        file_id=file_id(source.name, path),
        text_mode=source.text_mode,
        origin=origin,
        kept_bytes=source.remote_cache_bytes,
    )


def is_url(entry: str) -> bool:
    """Say whether an entry names an object of another storage.

    A ``file://`` URL is of this machine.
    """
    scheme, separator, _ = entry.partition("://")
    return bool(separator) and scheme.lower() != "file"


def is_hub_url(entry: str) -> bool:
    """Say whether an entry names files of a dataset on the Hub."""
    return entry.startswith("hf://datasets/")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRange:
    """A part of a file.

    Attributes:
        file: The file.
        start: First byte of a plain file of lines (the range owns the lines that START
            in ``[start, stop)``, with the blank lines among them) and of a stream of
            ids; first row group of Parquet; first record batch of an Arrow file (not a
            stream); first record of a file whose records are numbered; 0 for other
            files. All count from 0.
        stop: End of the range, in the same unit: the first byte, row group, batch or
            record behind it, or the file's size.
        weight: Number of bytes to read: on disk, for Parquet uncompressed bytes of the
            row groups.
        rows: Largest number of records to read, good or bad; None for all.
        records: Number of records, if the file states it; None if only reading tells.
            For planning only: no reader uses it.
    """

    file: InputFile
    start: int
    stop: int
    weight: int
    rows: int | None = None
    records: int | None = None
