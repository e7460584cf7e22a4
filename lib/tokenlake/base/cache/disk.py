"""Entries in the files of a folder: checksummed, compressed, of limited age and size,
for many processes at once.

A file is named by the sha256 of its key and holds::

    "TLCACHE1"   8 bytes
    checksum     16 bytes, xxh3_128 of everything after it
    length       4 bytes, of the header, little-endian
    header       JSON: key, shape of the value, codec, size before compression, times, metadata
    payload

It is written under a temporary name and gets its own by a rename, so that a process
which dies leaves no entry, and a reader sees an old one or a new one, never a part.
When a file is read its time is set, which is how the ones that were used longest ago
are known to all processes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, final

import numpy as np
import pyarrow as pa
import xxhash

from tokenlake.errors import ConfigError


@final
@dataclass(frozen=True, kw_only=True)
class CacheMetadata:
    """The inputs of an entry, from which callers decide whether it is still valid.

    Attributes:
        version: Version of the program that wrote it.
        created_at: Time of creation, in seconds since 1970.
        source_hash, tokenizer_hash, transform_hash, config_hash: Hashes of the inputs
            of the value.
        num_examples: Number of rows.
        extra: Further JSON values.
    """

    version: str = "1.0"
    created_at: float = field(default_factory=time.time)
    source_hash: str = ""
    tokenizer_hash: str | None = None
    transform_hash: str | None = None
    num_examples: int = 0
    config_hash: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def is_valid_for(self, config_hash: str, source_hash: str | None = None) -> bool:
        """Return whether the entry has this configuration, and this source if one is
        given.
        """
        return self.config_hash == config_hash and source_hash in (
            None,
            self.source_hash,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes by name, as JSON has them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CacheMetadata:
        """Return the metadata of :meth:`to_dict`; missing fields have their defaults.

        Raises:
            ConfigError: It has another name.
        """
        field_names = [field.name for field in fields(cls)]
        if unknown := ", ".join(sorted(set(data) - set(field_names))):
            raise ConfigError(
                f"metadata of a cache entry: got {unknown}; expected {', '.join(field_names)}"
            )
        return cls(**data)


class Entry(NamedTuple):
    """A value with its metadata and its time of expiry in seconds since 1970, None
    for never.
    """

    value: Any
    metadata: CacheMetadata | None = None
    expires: float | None = None


Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Shape: TypeAlias = "dict[str, Any]"
"""Kind of a value, and the types and names that its bytes do not hold."""

_ARROW: Final[Any] = pa
_PLAIN: Final = "biufcmMSU"
_EXPECTED: Final = (
    "bytes, JSON values, numpy arrays, a dict of these, or an Arrow table or batch"
)


def encoded(value: object) -> tuple[Shape, bytes]:
    """Return a value's shape and bytes.

    Raises:
        ConfigError: It holds a value of a type that a cache does not keep.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return {"kind": "bytes"}, bytes(value)
    if isinstance(value, pa.Table | pa.RecordBatch):
        sink = _ARROW.BufferOutputStream()
        with _ARROW.ipc.new_stream(sink, value.schema) as writer:
            writer.write(value)
        kind = "table" if isinstance(value, pa.Table) else "batch"
        return {"kind": kind}, sink.getvalue().to_pybytes()
    if isinstance(value, np.ndarray):
        array = cast("Array", value)
        return {"kind": "array", **_kind_of(array, "$")}, array.tobytes()
    if isinstance(value, Mapping):
        return _encoded_mapping(cast("Mapping[Any, Any]", value))
    return {"kind": "json"}, _json_bytes(value, "$")


def _encoded_mapping(mapping: Mapping[Any, Any]) -> tuple[Shape, bytes]:
    """Return the shape and the bytes of a mapping: its arrays one after the other,
    then a JSON list of the rest.
    """
    # Name and kind of each array, name and None of each other value.
    fields: list[list[Any]] = []
    array_bytes: list[bytes] = []
    plain_values: list[Any] = []
    for name, value in mapping.items():
        if not isinstance(name, str):
            raise ConfigError(
                f"cache: $ has the key {name!r}; expected text keys, so write {str(name)!r}"
            )
        if isinstance(value, np.ndarray):
            fields.append([name, _kind_of(value, f"$.{name}")])
            array_bytes.append(value.tobytes())
        else:
            fields.append([name, None])
            plain_values.append(value)
    body = b"".join(array_bytes) + _json_bytes(plain_values, "$")
    return {"kind": "mapping", "fields": fields}, body


def decoded(shape: Shape, data: memoryview) -> Any:
    """Return the value of a shape and its bytes; arrays are copies and can be
    written to, tables are views.
    """
    match shape["kind"]:
        case "bytes":
            return bytes(data)
        case "table":
            return _ARROW.ipc.open_stream(_ARROW.py_buffer(data)).read_all()
        case "batch":
            return _ARROW.ipc.open_stream(_ARROW.py_buffer(data)).read_next_batch()
        case "array":
            return _array(shape, data)
        case "json":
            return json.loads(bytes(data))
        case "mapping":
            fields, at, arrays = shape["fields"], 0, dict[str, Array]()
            for name, array in fields:
                if array is not None:
                    arrays[name] = _array(array, data[at:])
                    at += arrays[name].nbytes
            rest = iter(json.loads(bytes(data[at:])))
            return {
                name: next(rest) if array is None else arrays[name]
                for name, array in fields
            }
        case kind:
            raise ValueError(f"unsupported kind of value: {kind!r}")


def _kind_of(array: Array, place: str) -> Shape:
    if array.dtype.kind not in _PLAIN:
        expected = "numbers, booleans or fixed texts"
        raise ConfigError(
            f"cache: {place} is an array of {array.dtype}; expected {expected}"
        )
    return {"dtype": array.dtype.str, "shape": list(array.shape)}


def _array(shape: Shape, data: memoryview) -> Array:
    kind, lengths = np.dtype(shape["dtype"]), shape["shape"]
    count = int(np.prod(lengths, dtype=np.int64))
    return (
        np.frombuffer(data, kind, count).reshape(lengths).copy()
        if count
        else np.zeros(lengths, kind)
    )


def _json_bytes(value: object, place: str) -> bytes:
    for problem in _no_json(value, place):
        raise ConfigError(f"cache: {problem}; expected {_EXPECTED}")
    return json.dumps(value).encode()


def _no_json(value: object, path: str) -> Iterator[str]:
    """Yield the places of values that JSON would change."""
    if type(value) is list:
        for index, item in enumerate(cast("list[object]", value)):
            yield from _no_json(item, f"{path}[{index}]")
    elif type(value) is dict:
        for key, item in cast("dict[object, object]", value).items():
            if type(key) is not str:
                yield f"{path} has the key {key!r}"
            yield from _no_json(item, f"{path}.{key}")
    elif type(value) not in (str, int, float, bool, type(None)):
        yield f"{path} is a {type(value).__name__}"


Compression = Literal["none", "gzip", "lz4", "zstd"]

_CODECS: Final = ("none", "gzip", "lz4", "zstd")
_MAGIC: Final = b"TLCACHE1"
_BODY = len(_MAGIC) + 16
_HEADER = len(_MAGIC) + 20
_ENTRY = ".entry"
_PART = ".part-"
# Seconds after which a temporary file belongs to no running process.
_ABANDONED: Final = 3600.0
# The folder is listed after this part of the limit was written: others write, too.
_LOOK_SHARE: Final = 16
_LOOK_BYTES: Final = 16 << 30  # stands for the limit if there is none
_DAMAGED: Final = (ValueError, KeyError, TypeError, MemoryError, pa.ArrowException)


def default_folder() -> Path:
    """Return the folder of all caches: ``$TOKENLAKE_CACHE``, otherwise the user's
    cache directory.
    """
    folder = os.environ.get("TOKENLAKE_CACHE")
    if folder:
        return Path(folder)
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenlake"
    )


@final
class DiskCache:
    """A cache in a folder, for any number of processes and threads.

    If the folder cannot be read or written, nothing is kept, and that is no error: a
    cache is a convenience. Several processes that write at once may exceed `max_bytes`
    by a sixteenth each.

    Args:
        cache_dir: Folder, which is created with the first entry.
        compression: Compression of written values: ``none``, ``gzip``, ``lz4`` or
            ``zstd``. Any of them is read.
        expiry_seconds: Age at which an entry becomes a miss; None for never.
        max_bytes: Largest size of all files together; the least recently used ones are
            removed. None for any size.
        clock: Function that returns the seconds since 1970.

    Raises:
        ConfigError: The compression does not exist, or a bound is negative.
    """

    def __init__(
        self,
        cache_dir: str | Path,
        compression: Compression = "none",
        expiry_seconds: float | None = None,
        *,
        max_bytes: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if compression not in _CODECS:
            raise ConfigError(
                f"compression: got {compression!r}, must be one of {', '.join(_CODECS)}"
            )
        if min(expiry_seconds or 0, max_bytes or 0) < 0:
            raise ConfigError(
                f"a cache of {max_bytes} bytes for {expiry_seconds} seconds; expected 0 or more of each"
            )
        self.cache_dir = Path(cache_dir)
        self.max_bytes = max_bytes
        self.compression: Compression = compression
        self.expiry_seconds = expiry_seconds
        self._clock = clock
        self._lock = Lock()
        self._unseen = 0  # bytes to write until the folder is listed again
        # Bytes to write until the limit is reached, as far as this process knows.
        self._room = 0

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())

    @property
    def stats(self) -> dict[str, Any]:
        """Folder and compression, and the present numbers of entries and bytes."""
        sizes = [size for _, size, _ in self._entries()]
        return {
            "cache_dir": str(self.cache_dir),
            "compression": self.compression,
            "size": len(sizes),
            "bytes": sum(sizes),
            "max_bytes": self.max_bytes,
        }

    def get(self, key: str) -> tuple[Any, CacheMetadata | None] | None:
        """Return (value, metadata), None for a miss."""
        entry = self.entry(key)
        if entry is None:
            return None
        return entry.value, entry.metadata

    def entry(self, key: str) -> Entry | None:
        """Return the entry of a key, with its time of expiry; a damaged or expired
        one is removed.
        """
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        try:
            entry = _unpacked(key, memoryview(data))
        except _DAMAGED:
            entry = None
        if (
            entry is not None
            and entry.expires is not None
            and self._clock() >= entry.expires
        ):
            entry = None
        with suppress(OSError):
            if entry is not None:
                self._touch(path)
            # Otherwise another process has replaced it since.
            elif path.read_bytes() == data:
                path.unlink()
        return entry

    def put(
        self,
        key: str,
        value: Any,
        metadata: CacheMetadata | None = None,
        *,
        expires: float | None = None,
    ) -> None:
        """Keep a value.

        Args:
            key: Key of the value.
            value: Value to keep.
            metadata: Metadata of the value.
            expires: Time of expiry in seconds since 1970; None for `expiry_seconds`
                from now.

        Raises:
            ConfigError: The value, or `metadata.extra`, has a type that a cache does
                not keep.
        """
        if expires is None and self.expiry_seconds is not None:
            expires = self._clock() + self.expiry_seconds
        data = _packed(key, Entry(value, metadata, expires), self.compression)
        if self.max_bytes is not None and len(data) > self.max_bytes:
            self.invalidate(key)
            return
        with suppress(OSError):
            self._write(self._path(key), data)
            self._make_room(len(data))

    def contains(self, key: str) -> bool:
        """Say whether an entry is there and can be read."""
        return self.entry(key) is not None

    def invalidate(self, key: str | None = None) -> None:
        """Remove one entry, or all of them."""
        for path in (
            [path for _, _, path in self._entries()]
            if key is None
            else [self._path(key)]
        ):
            with suppress(OSError):
                path.unlink()

    def _path(self, key: str) -> Path:
        return (
            self.cache_dir
            / f"{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}{_ENTRY}"
        )

    def _write(self, path: Path, data: bytes) -> None:
        self.cache_dir.mkdir(parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(prefix=_PART, dir=self.cache_dir)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            self._touch(part)
            Path(part).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(part).unlink()
            raise

    def _touch(self, path: str | Path) -> None:
        now = int(self._clock() * 1e9)
        os.utime(path, ns=(now, now))

    def _make_room(self, size: int) -> None:
        """Remove expired entries, and the least recently used ones while the folder is
        too large.

        The folder is listed only now and then: after enough was written to matter.

        Args:
            size: Number of bytes that were just written.
        """
        with self._lock:
            self._unseen -= size
            self._room -= size
            if self._unseen >= 0 and self._room >= 0:
                return
            max_bytes = sys.maxsize if self.max_bytes is None else self.max_bytes
            expired_before = 0
            if self.expiry_seconds is not None:
                expired_before = int((self._clock() - self.expiry_seconds) * 1e9)
            entries = sorted(self._entries())  # the least recently used first
            used_bytes = sum(entry_bytes for _, entry_bytes, _ in entries)
            for last_used, entry_bytes, path in entries:
                if used_bytes <= max_bytes and last_used > expired_before:
                    break
                with suppress(OSError):
                    path.unlink()
                used_bytes -= entry_bytes
            self._unseen = min(max_bytes, _LOOK_BYTES) // _LOOK_SHARE
            self._room = max_bytes - used_bytes

    def _entries(self) -> Iterator[tuple[int, int, Path]]:
        """Yield each entry's time of last use in ns, its bytes and its path; remove
        files of dead processes.
        """
        with suppress(OSError), os.scandir(self.cache_dir) as files:
            for file in files:
                with suppress(OSError):
                    status = file.stat(follow_symlinks=False)
                    if file.name.endswith(_ENTRY):
                        yield status.st_mtime_ns, status.st_size, Path(file.path)
                    elif (
                        file.name.startswith(_PART)
                        and status.st_mtime < time.time() - _ABANDONED
                    ):
                        Path(file.path).unlink()


def _packed(key: str, entry: Entry, codec: Compression) -> bytes:
    shape, payload = encoded(entry.value)
    header: dict[str, Any] = {
        "key": key,
        "shape": shape,
        "codec": codec,
        "size": len(payload),
    }
    metadata = None if entry.metadata is None else entry.metadata.to_dict()
    header |= {"expires": entry.expires, "metadata": metadata}
    if codec != "none":
        payload = _ARROW.compress(payload, codec=codec, asbytes=True)
    try:
        text = json.dumps(header).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"metadata of a cache entry: {error}; expected JSON values in `extra`"
        ) from error
    body = len(text).to_bytes(4, "little") + text + payload
    return _MAGIC + xxhash.xxh3_128_digest(body) + body


def _unpacked(key: str, data: memoryview) -> Entry | None:
    """Return the entry of a file, None where it is damaged or another key's."""
    if bytes(data[:_BODY]) != _MAGIC + xxhash.xxh3_128_digest(data[_BODY:]):
        return None
    start = _HEADER + int.from_bytes(data[_BODY:_HEADER], "little")
    header, payload = json.loads(bytes(data[_HEADER:start])), data[start:]
    if header["key"] != key:
        return None
    if header["codec"] != "none":
        payload = memoryview(
            _ARROW.decompress(
                payload, header["size"], codec=header["codec"], asbytes=True
            )
        )
    metadata = header["metadata"] and CacheMetadata.from_dict(header["metadata"])
    return Entry(decoded(header["shape"], payload), metadata, header["expires"])
