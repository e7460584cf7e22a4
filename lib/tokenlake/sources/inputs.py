"""One input file as the plan knows it, and the two things that can be wrong with it as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from tokenlake.errors import DamagedFileError, InputChangedError
from tokenlake.sources.formats import Compression, Format


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
        origin: what a person should know of where it comes from, such as the commit of a dataset on the
            Hub, or ""; not identity.
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

    @property
    def is_local(self) -> bool:
        """Whether it is a file of this machine, not an object at a URL."""
        return "://" not in self.url


def changed(file: InputFile, what: str) -> InputChangedError:
    """Return the error for a file that is not what it was when the build was planned."""
    return InputChangedError(
        f"{file.url}: the input changed since the build was planned: {what}. Inputs must stay as they are "
        "during a build; run again to plan with the file as it is now.",
        file=file.path,
    )


def damaged(file: InputFile, what: str, **details: object) -> DamagedFileError:
    """Return the error for a file that cannot be trusted as a whole."""
    return DamagedFileError(
        f"{file.url}: the file is damaged: {what}. Damaged files are never read in part: replace it, "
        "or leave it out of data_files.",
        file=file.path,
        **details,
    )
