"""URLs, and the objects at them: their versions, ranges of their bytes, and bytes that are to become one.

URLs hold no secrets. Their schemes are an allow-list, because fsspec opens much that nobody meant: shells on other
machines, caches that unpickle what lies in a folder, ways round the rules for local paths. What is not on it is refused
before anything of fsspec is asked.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, final
from urllib.parse import quote, unquote, urlsplit

from tokenlake.base.checks import did_you_mean
from tokenlake.errors import SIGNED, ConfigError, StoreError
from tokenlake.store.layout import check_key
from tokenlake.store.local import open_regular
from tokenlake.store.rates import RateFloor

VARIABLE: Final = "TOKENLAKE_ALLOWED_SCHEMES"
"""Environment variable: further schemes that may be opened, separated by commas, such as ``sftp,oss``."""

USUAL: Final = ("s3", "gs", "http", "https", "hf", "file", "az", "abfs", "abfss", "adl")
"""What may be opened without being asked for; ``s3a`` and ``gcs`` are other names of the first two."""

# Whatever the variable says: they go round the rules for local paths, open other addresses in turn, or keep copies
# that are read back unchecked.
_NEVER: Final = re.compile(
    "local|simplecache|filecache|blockcache|cached|reference|generic|dir|zip|tar|libarchive"
)


def check_scheme(scheme: str, option: str) -> None:
    """Refuse a scheme that is not allowed.

    Args:
        scheme: in lower case, without aliases.
        option: what holds the URL, for the message.

    Raises:
        ConfigError: it is not on the list; the message says how to allow it.
    """
    if scheme in USUAL:
        return
    asked = {name.strip().lower() for name in os.environ.get(VARIABLE, "").split(",")}
    if scheme in asked and not _NEVER.fullmatch(scheme):
        return
    guess = did_you_mean(scheme, (*USUAL, *_ALIASES, "sftp", "ftp"))
    allow = f"to allow it, set {VARIABLE}={scheme} in the environment"
    if _NEVER.fullmatch(scheme):
        allow = "it bypasses the rules for addresses and cannot be allowed"
    raise ConfigError(
        f"{option}: {scheme}:// is not an allowed scheme; expected one of {', '.join(USUAL)}{guess} ({allow})",
        got=scheme,
    )


INSTALLED_BY: Final = dict.fromkeys(("az", "abfs", "abfss"), "'tokenlake[azure]'")
"""Schemes that fsspec alone reads to what `pip` installs for them."""

EXTRAS: Final = {
    "s3": "'tokenlake[s3]'",
    "gs": "'tokenlake[gcs]'",
    **dict.fromkeys(("http", "https"), "'tokenlake[http]'"),
}
"""What has to be installed for the schemes that have a client of their own."""

BUCKETS: Final = ("s3", "s3a", "gs", "gcs")
"""Schemes of stores that can be written to, with their other names."""

_ALIASES: Final = {"s3a": "s3", "gcs": "gs"}
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")


@dataclass(frozen=True, slots=True)
class Url:
    """A URL without secrets.

    Attributes:
        scheme: in lower case, aliases replaced (``s3a`` is ``s3``).
        root: scheme and bucket or host: ``s3://bucket``; never ends with a slash.
        path: what follows, without the slash before it; for HTTP with its query.
    """

    scheme: str
    root: str
    path: str

    @property
    def is_http(self) -> bool:
        """Whether it is of a web server, which cannot list what it has."""
        return self.scheme in ("http", "https")

    @property
    def bucket(self) -> str:
        """Name of the bucket, or of the host."""
        return self.root.partition("://")[2]

    def __str__(self) -> str:
        return f"{self.root}/{self.path}"


def parse_url(text: str, option: str = "data_files") -> Url:
    """Return the parts of a URL.

    Args:
        option: what holds the URL, for messages.

    Raises:
        ConfigError: it holds credentials, has no host, is of a scheme that may not be read, or chains file systems.
    """
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    if not _SCHEME.fullmatch(scheme):
        raise ConfigError(
            f"{option}: {scheme.partition(':')[0]!r}... is not a URL; expected scheme://host/path, "
            "with one scheme (file systems cannot be chained with ::)"
        )
    scheme = _ALIASES.get(scheme, scheme)
    if scheme in ("http", "https"):
        rest = re.sub(r"^([^/?#]*)\?", r"\1/?", rest).partition("#")[0]
    host, _, path = rest.partition("/")
    if scheme == "memory":  # has no hosts
        host, path = "", rest.lstrip("/")
    url = Url(scheme, f"{scheme}://{host}" if host else f"{scheme}:/", path)
    _refuse_password(url, host, option)
    _refuse_signature(url, option)
    check_scheme(scheme, option)
    if "::" in text:
        raise ConfigError(f"{option}: {url.root}...: file systems cannot be chained with ::")
    if not host and scheme in EXTRAS:
        raise ConfigError(f"{option}: {text!r} names no {'host' if url.is_http else 'bucket'}", got=text)
    return url


def _refuse_password(url: Url, host: str, option: str) -> None:
    if ":" not in host.rpartition("@")[0] and not (url.is_http and "@" in host):
        return
    path = url.path.partition("?")[0] if url.is_http else url.path
    shown = f"{url.scheme}://...@{host.rpartition('@')[2]}/{path}"
    raise ConfigError(
        f"{option}: {shown} has a password in it (not shown), and URLs are recorded "
        "with what is built from them. Write the URL without it, and storage_options: "
        "{username: NAME, password: {env: VARIABLE}}"
    )


def _refuse_signature(url: Url, option: str) -> None:
    query = urlsplit(str(url)).query if url.is_http or "?" in url.path else ""
    names = [unquote(pair.partition("=")[0]) for pair in re.split("[&;]", query)]
    if signed := [name for name in names if SIGNED.search(name) and "versionid" not in name.lower()]:
        raise ConfigError(
            f"{option}: {str(url).partition('?')[0]}?... has credentials in its query ({', '.join(signed)}), and "
            "URLs are recorded with what is built from them. Write the URL without its query, and the query as "
            "storage_options: {query: {env: VARIABLE}}, or {query: {FILE NAME: {env: VARIABLE}}} where every "
            "file has its own"
        )


def root_of(address: str) -> Url:
    """Return the URL of a store's root; its path has no slash at its ends.

    Raises:
        ConfigError: it holds credentials, or a query.
    """
    url = parse_url(address, "store")
    if "?" in url.path:
        raise ConfigError(
            f"store: {str(url).partition('?')[0]}?... has a query, and the names of files belong behind the URL. "
            "Write it without, and the query as storage_options: {query: {env: VARIABLE}} (web servers)"
        )
    return Url(url.scheme, url.root, url.path.strip("/"))


def url_of(root: Url, key: str) -> Url:
    """Return where an object is; StoreError for an unsafe key."""
    path = check_key(key)
    path = quote(path) if root.is_http else path
    return Url(root.scheme, root.root, f"{root.path}/{path}" if root.path else path)


def folder_of(root: Url, prefix: str) -> Url:
    """Return what the objects below the folder `prefix` ("" = all) begin with."""
    folder = url_of(root, prefix) if prefix else root
    return Url(folder.scheme, folder.root, f"{folder.path}/" if folder.path else "")


def key_of(root: Url, path: str) -> str:
    """Return the key of an object."""
    return path.removeprefix(f"{root.path}/" if root.path else "")


LARGE: Final = 32 << 20
"""Bytes from which on an object is sent in parts, where the storage has such; a smaller one is held in memory."""

PIECE: Final = 8 << 20
"""Bytes of a part, and of what is held in memory at once of a file that is sent."""

_MOST_PARTS: Final = 9_000  # S3 takes 10,000
_READ: Final = 1 << 20


@final
class Payload:
    """Bytes that are to be sent.

    Attributes:
        size: of all of them.
        sha256: hex, of all of them.
        in_parts: whether it is sent in parts where the storage has such.
        part_bytes: what is sent at once; the last part may be shorter.
        md5s: base64, of each part.
    """

    def __init__(self, source: bytes | int, size: int, *, in_parts: bool = False) -> None:
        """`source`: the bytes, or the descriptor of a file, which must stay open."""
        self._source, self.size, self.in_parts = source, size, in_parts
        self.part_bytes = max(PIECE, -(-size // _MOST_PARTS)) if in_parts else max(size, 1)
        whole = hashlib.sha256()
        parts: list[str] = []
        for start in range(0, max(size, 1), self.part_bytes):
            part = hashlib.md5(usedforsecurity=False)
            for at in range(start, min(start + self.part_bytes, size), _READ):
                piece = self.read(at, min(_READ, start + self.part_bytes - at))
                whole.update(piece)
                part.update(piece)
            parts.append(base64.b64encode(part.digest()).decode())
        self.sha256: str = whole.hexdigest()
        self.md5s: tuple[str, ...] = tuple(parts)

    @classmethod
    @contextmanager
    def of_file(cls, path: Path, *, in_parts: bool) -> Generator[Payload]:
        """Read a file, and keep it open to be sent.

        Args:
            in_parts: a large one is sent in parts.
        """
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            yield cls(stream.fileno(), size, in_parts=in_parts and size >= LARGE)

    @classmethod
    def of(cls, data: bytes, *, in_parts: bool = False) -> Payload:
        """Return bytes as a payload."""
        return cls(data, len(data), in_parts=in_parts)

    def part(self, index: int) -> bytes:
        """Return the bytes of a part, counted from 0."""
        return self.read(index * self.part_bytes, self.part_bytes)

    def read(self, start: int, size: int) -> bytes:
        """Return so many bytes from `start` on; fewer only at the end of what was there at first.

        Raises:
            StoreError: the file has become shorter.
        """
        wanted = min(size, self.size - start)
        if isinstance(self._source, bytes):
            return self._source if wanted == self.size else self._source[start : start + wanted]
        data = os.pread(self._source, wanted, start)
        while len(data) < wanted and (more := os.pread(self._source, wanted - len(data), start + len(data))):
            data += more
        if len(data) < wanted:
            raise StoreError(
                f"a temporary file has become shorter than its {self.size} bytes; nothing was published"
            )
        return data


CHUNK: Final = 1 << 20

Write = Callable[[bytes], object]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteObject:
    """An object that is there.

    Attributes:
        path: as in :class:`Url`, of which `root` is the same for all that are listed together.
        size: bytes as they are stored.
        token: of its version.
        packed: compression that the storage itself names (``Content-Encoding``), "" if none.
        modified: seconds since the epoch, by the storage's clock; None where it does not say.
    """

    path: str
    size: int
    token: str
    packed: str = ""
    modified: float | None = None


ListPage: TypeAlias = tuple[list[RemoteObject], str | None]
"""Some objects of a listing, and the mark of the page that follows, None after the last one."""


class OtherObjectError(Exception):
    """The object is not the planned one; the message says how it differs."""


class SourceChangedError(Exception):
    """What is copied is not any more what it was."""


class NoRangesError(Exception):
    """The server sends the whole object whatever range is asked for."""


@final
class RangeBuffer:
    """Where a range of bytes goes, piece by piece.

    Attributes:
        start: of the range in the object.
        data: the range, its first `got` bytes filled.
    """

    def __init__(self, start: int, size: int) -> None:
        self.start, self.data, self.got = start, bytearray(size), 0

    @property
    def at(self) -> int:
        """Offset in the object of the next byte."""
        return self.start + self.got

    @property
    def stop(self) -> int:
        """Offset in the object behind the last byte."""
        return self.start + len(self.data)

    @property
    def header(self) -> str:
        """The value of ``Range`` that asks for what is missing."""
        return f"bytes={self.at}-{self.stop - 1}"

    async def fill(self, read: Callable[[int], Awaitable[bytes]], stop: int | None = None) -> None:
        """Take the bytes of a body up to `stop`, all that are missing by default; what is too much is dropped.

        Raises:
            ShortBodyError: it ended early.
            SlowServerError: it comes too slowly.
        """
        stop = self.stop if stop is None else stop
        floor = RateFloor()
        while self.at < stop and (chunk := await floor.read(read, CHUNK)):
            taken = min(len(chunk), self.stop - self.at)
            self.data[self.got : self.got + taken] = chunk if taken == len(chunk) else chunk[:taken]
            self.got += taken
        if self.at < stop:
            raise ShortBodyError(f"the body ended at byte {self.at}, {stop - self.at} before its end")


async def pour(
    read: Callable[[int], Awaitable[bytes]], write: Write, stated: int | None, planned: RemoteObject | None
) -> None:
    """Hand a body to `write`, piece by piece; it must be as long as its answer stated and as was planned.

    Raises:
        OtherObjectError: it has another length than planned.
        ShortBodyError: it ended early.
        SlowServerError: it comes too slowly.
    """
    require_size(stated, planned)
    size, got = stated if planned is None else planned.size, 0
    floor = RateFloor()
    while chunk := await floor.read(read, CHUNK):
        got += len(chunk)
        if size is not None and got > size:
            raise OtherObjectError(f"it has more than the {size} bytes that were expected")
        write(chunk)
    if size is not None and got < size:
        raise ShortBodyError(f"the body ended at byte {got}, {size - got} before its end")


def require_size(stated: int | None, planned: RemoteObject | None) -> None:
    """Raise OtherObjectError if an answer speaks of an object of another size than planned."""
    if planned is not None and stated not in (None, planned.size):
        raise OtherObjectError(f"it has {stated} bytes, expected {planned.size}")


class HttpStatusError(Exception):
    """An answer with a status of 400 or more.

    Attributes:
        status: of the answer.
        wait: seconds that the server asks to wait, None if it does not.
    """

    def __init__(self, status: int, reason: str, wait: float | None = None) -> None:
        super().__init__(f"HTTP status {status} {reason}".rstrip())
        self.status, self.wait = status, wait


class ShortBodyError(ConnectionError):
    """A body ended before all of it had come."""


class DamagedBodyError(ConnectionError):
    """Other bytes came than were sent, as a checksum shows."""
