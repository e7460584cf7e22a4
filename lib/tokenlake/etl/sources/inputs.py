"""Input files and ranges of them, as a plan names them.

A listing makes one :class:`InputFile` per file. A plan cuts it into :class:`FileRange` parts, which workers read on
their own.
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

_LARGEST: Final = 1 << 50  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One input file as it was when the build was planned; JSON-able by ``dataclasses.asdict``.

    Attributes:
        source: name of the source it belongs to.
        path: relative to the listing's root, with ``/``; identity, together with size and token.
        url: absolute local path, or a URL with its scheme and without credentials; not identity.
        size: bytes as they are stored.
        token: version token: ``sha256:<hex>`` of a local file's bytes, else what the store calls the
            version, such as ``etag:<value>`` or ``generation:<number>``.
        stat: (inode, mtime_ns, ctime_ns) of a local file when it was hashed, re-checked by every
            read; empty for a URL, whose token is.
        format: what it holds.
        compression: how its bytes are compressed as a whole, None for plain files and Parquet.
        file_id: signed 64-bit identity of (source, path), stored as provenance.
        text_mode: for format ``text``: ``document`` (a file is a document) or ``lines``.
        origin: what a person should know of where it comes from, such as the Hub's commit, or ""; not identity.
        kept_bytes: of remote blocks that the reading machine keeps; None: as its environment says; not identity.
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

    @property
    def is_local(self) -> bool:
        """Whether it is a file of this machine, not an object at a URL."""
        return "://" not in self.url

    @property
    def facts(self) -> FormatFacts:
        """What is known of its format."""
        return FORMATS[self.format]

    @property
    def is_lines(self) -> bool:
        """Whether its records are lines, whose positions are byte offsets."""
        return self.facts.layout == "lines" and (self.format != "text" or self.text_mode == "lines")

    @property
    def has_blocks(self) -> bool:
        """Whether it has row groups or record batches (an Arrow stream has none that are listed)."""
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
    """Return an input of `source` as a listing found it; see :class:`InputFile`.

    Args:
        compression: what the storage says, where the name says nothing.

    Raises:
        ConfigError: neither the extension nor the source's type says what it holds.
        SourceError: a storage says that it has more bytes than any file.
    """
    if size > _LARGEST:
        # Planning would cut it into as many pieces as that takes.
        raise SourceError(
            f"{url}: the storage says that the file has {size} bytes, more than any file has; expected at most "
            f"{_LARGEST}",
            file=path,
            got=size,
        )
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
    """Say whether an entry names an object of another storage; ``file://`` is this machine's."""
    scheme, separator, _ = entry.partition("://")
    return bool(separator) and scheme.lower() != "file"


def is_hub_url(entry: str) -> bool:
    """Say whether an entry names files of a dataset on the Hub."""
    return entry.startswith("hf://datasets/")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRange:
    """A part of a file.

    Attributes:
        file: the file.
        start, stop: byte offsets for plain line formats (the range owns the lines that START in
            ``[start, stop)``); row groups for Parquet; record batches for Arrow files (not streams); 0 and
            the file's size for everything else.
        rows: read at most so many records of it, good or bad; None for all.
        weight: how much there is to read: bytes on disk, for Parquet uncompressed bytes of the row groups.
        records: how many there are, where the file says so without being read; None where it does not.
            For planning only: no reader looks at it.
    """

    file: InputFile
    start: int
    stop: int
    weight: int
    rows: int | None = None
    records: int | None = None
