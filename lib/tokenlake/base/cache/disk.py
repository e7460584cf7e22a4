"""Entries in the files of a folder, for many processes at once.

They are checksummed and compressed. Their age and their size are limited.

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
        """Return whether the entry has this configuration, and this source if given."""
        is_same_source = source_hash is None or source_hash == self.source_hash
        return self.config_hash == config_hash and is_same_source

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
        unknown_names = ", ".join(sorted(set(data) - set(field_names)))
        if unknown_names:
            raise ConfigError(
                f"metadata of a cache entry: got {unknown_names}; expected {', '.join(field_names)}"
            )
        return cls(**data)


class Entry(NamedTuple):
    """A value with its metadata and its time of expiry.

    The time is in seconds since 1970, None for never.
    """

    value: Any
    metadata: CacheMetadata | None = None
    expires: float | None = None


Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Shape: TypeAlias = "dict[str, Any]"
"""Kind of a value, and the types and names that its bytes do not hold."""

_ARROW: Final[Any] = pa
# Kinds of NumPy's types whose values lie in the array itself: no Python objects.
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
    # Both are streams of batches; the kind says whether one batch comes back, or a
    # table.
    if isinstance(value, pa.Table | pa.RecordBatch):
        stream = _ARROW.BufferOutputStream()
        with _ARROW.ipc.new_stream(stream, value.schema) as writer:
            writer.write(value)
        kind = "batch"
        if isinstance(value, pa.Table):
            kind = "table"
        return {"kind": kind}, stream.getvalue().to_pybytes()
    if isinstance(value, np.ndarray):
        array = cast("Array", value)
        return {"kind": "array", **_kind_of(array, "$")}, array.tobytes()
    if isinstance(value, Mapping):
        return _encoded_mapping(cast("Mapping[Any, Any]", value))
    return {"kind": "json"}, _json_bytes(value, "$")


def _encoded_mapping(mapping: Mapping[Any, Any]) -> tuple[Shape, bytes]:
    """Return the shape and the bytes of a mapping.

    The bytes are its arrays one after the other, then a JSON list of the other values.
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
            # The bytes of an array need no conversion, and no JSON.
            fields.append([name, _kind_of(value, f"$.{name}")])
            array_bytes.append(value.tobytes())
        else:
            fields.append([name, None])
            plain_values.append(value)
    encoded_values = b"".join(array_bytes) + _json_bytes(plain_values, "$")
    return {"kind": "mapping", "fields": fields}, encoded_values


def decoded(shape: Shape, data: memoryview) -> Any:
    """Return the value of a shape and its bytes.

    Arrays are copies and can be written to, tables are views.
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
            return _decoded_mapping(shape["fields"], data)
        case kind:
            raise ValueError(f"unsupported kind of value: {kind!r}")


def _decoded_mapping(fields: list[list[Any]], data: memoryview) -> dict[str, Any]:
    """Return a mapping, with its names in the order in which it had them."""
    # 1. The arrays, whose shapes say how many bytes each has.
    arrays: dict[str, Array] = {}
    byte_offset = 0
    for name, array_shape in fields:
        if array_shape is not None:
            arrays[name] = _array(array_shape, data[byte_offset:])
            byte_offset += arrays[name].nbytes
    # 2. All other values, which are a JSON list behind them.
    plain_values = iter(json.loads(bytes(data[byte_offset:])))
    mapping: dict[str, Any] = {}
    for name, array_shape in fields:
        if array_shape is None:
            mapping[name] = next(plain_values)
        else:
            mapping[name] = arrays[name]
    return mapping


def _kind_of(array: Array, place: str) -> Shape:
    if array.dtype.kind not in _PLAIN:
        expected = "numbers, booleans or fixed texts"
        raise ConfigError(
            f"cache: {place} is an array of {array.dtype}; expected {expected}"
        )
    return {"dtype": array.dtype.str, "shape": list(array.shape)}


def _array(shape: Shape, data: memoryview) -> Array:
    dtype = np.dtype(shape["dtype"])
    lengths = shape["shape"]
    value_count = int(np.prod(lengths, dtype=np.int64))
    # NumPy makes no array of no bytes, and a view could not be written to.
    if not value_count:
        return np.zeros(lengths, dtype)
    return np.frombuffer(data, dtype, value_count).reshape(lengths).copy()


def _json_bytes(value: object, place: str) -> bytes:
    # The first problem is enough for the message.
    for problem in _no_json(value, place):
        raise ConfigError(f"cache: {problem}; expected {_EXPECTED}")
    return json.dumps(value).encode()


def _no_json(value: object, path: str) -> Iterator[str]:
    """Yield the places of values that JSON would change."""
    # Exact types: JSON would make a list of a tuple, and a text of an enum.
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
"""Byte offset of the body, behind the checksum."""
_HEADER = len(_MAGIC) + 20
"""Byte offset of the header, behind its length."""
_ENTRY = ".entry"
_PART = ".part-"
# Seconds after which a temporary file belongs to no running process.
_ABANDONED: Final = 3600.0
# The folder is listed after this part of the limit was written: others write, too.
_LOOK_SHARE: Final = 16
_LOOK_BYTES: Final = 16 << 30  # stands for the limit if there is none
_DAMAGED: Final = (ValueError, KeyError, TypeError, MemoryError, pa.ArrowException)


def default_folder() -> Path:
    """Return the folder of all caches.

    It is ``$TOKENLAKE_CACHE``, otherwise in the user's cache directory.
    """
    folder = os.environ.get("TOKENLAKE_CACHE")
    if folder:
        return Path(folder)
    user_folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user_folder) / "tokenlake"


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
        # A lock cannot be copied into another process, which has its own.
        state = dict(self.__dict__)
        del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())

    @property
    def stats(self) -> dict[str, Any]:
        """Folder and compression, and the present numbers of entries and bytes."""
        entry_sizes = [entry_bytes for _, entry_bytes, _ in self._entries()]
        return {
            "cache_dir": str(self.cache_dir),
            "compression": self.compression,
            "size": len(entry_sizes),
            "bytes": sum(entry_sizes),
            "max_bytes": self.max_bytes,
        }

    def get(self, key: str) -> tuple[Any, CacheMetadata | None] | None:
        """Return (value, metadata), None for a miss."""
        entry = self.entry(key)
        if entry is None:
            return None
        return entry.value, entry.metadata

    def entry(self, key: str) -> Entry | None:
        """Return the entry of a key, with its time of expiry.

        A damaged or expired entry is removed.
        """
        path = self._path(key)
        try:
            file_bytes = path.read_bytes()
        except OSError:
            return None
        # 1. An entry that can be read and has not expired.
        try:
            entry = _unpacked(key, memoryview(file_bytes))
        except _DAMAGED:
            entry = None
        if entry is not None and self._is_expired(entry):
            entry = None
        # 2. Its time of use, or its removal.
        with suppress(OSError):
            if entry is not None:
                self._touch(path)
            # Otherwise another process has replaced it since.
            elif path.read_bytes() == file_bytes:
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
        file_bytes = _packed(key, Entry(value, metadata, expires), self.compression)
        # An older value of the key must not stay for a new one that is too large.
        if self.max_bytes is not None and len(file_bytes) > self.max_bytes:
            self.invalidate(key)
            return
        with suppress(OSError):
            self._write(self._path(key), file_bytes)
            self._make_room(len(file_bytes))

    def contains(self, key: str) -> bool:
        """Return whether an entry is there and can be read."""
        return self.entry(key) is not None

    def invalidate(self, key: str | None = None) -> None:
        """Remove one entry, or all of them."""
        if key is None:
            paths = [path for _, _, path in self._entries()]
        else:
            paths = [self._path(key)]
        for path in paths:
            with suppress(OSError):
                path.unlink()

    def _is_expired(self, entry: Entry) -> bool:
        return entry.expires is not None and self._clock() >= entry.expires

    def _path(self, key: str) -> Path:
        # Any text is a key, also one that is no file name.
        key_hash = sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        return self.cache_dir / f"{key_hash}{_ENTRY}"

    def _write(self, path: Path, file_bytes: bytes) -> None:
        """Write a file whole, or not at all."""
        self.cache_dir.mkdir(parents=True, exist_ok=True)
        descriptor, part_path = tempfile.mkstemp(prefix=_PART, dir=self.cache_dir)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(file_bytes)
            # The clock of the cache sets the time, also where a test turns it.
            self._touch(part_path)
            Path(part_path).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(part_path).unlink()
            raise

    def _touch(self, path: str | Path) -> None:
        now_ns = int(self._clock() * 1e9)
        os.utime(path, ns=(now_ns, now_ns))

    def _make_room(self, size: int) -> None:
        """Remove expired entries, and old ones while the folder is too large.

        Entries that were used least recently go first. The folder is listed only now
        and then: after enough was written to matter.

        Args:
            size: Number of bytes that were just written.
        """
        # 1. Most writes cannot have filled the folder, and look at nothing.
        with self._lock:
            self._unseen -= size
            self._room -= size
            if self._unseen >= 0 and self._room >= 0:
                return
            # 2. Files go, the oldest first, until the folder is small enough and none
            # has expired.
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
            # 3. The next look, after a share of the limit, or as soon as it is reached.
            self._unseen = min(max_bytes, _LOOK_BYTES) // _LOOK_SHARE
            self._room = max_bytes - used_bytes

    def _entries(self) -> Iterator[tuple[int, int, Path]]:
        """Yield each entry's time of last use in ns, its bytes and its path.

        Files of dead processes are removed.
        """
        with suppress(OSError), os.scandir(self.cache_dir) as files:
            for file in files:
                # Another process may remove a file between the list and the look.
                with suppress(OSError):
                    status = file.stat(follow_symlinks=False)
                    if file.name.endswith(_ENTRY):
                        yield status.st_mtime_ns, status.st_size, Path(file.path)
                    elif file.name.startswith(_PART):
                        is_abandoned = status.st_mtime < time.time() - _ABANDONED
                        if is_abandoned:
                            Path(file.path).unlink()


def _packed(key: str, entry: Entry, codec: Compression) -> bytes:
    """Return the bytes of a file, in the form of the module's docstring."""
    shape, payload = encoded(entry.value)
    # 1. The header, which is never compressed: it has what reading the payload needs.
    #    The size is that before compression, which some codecs must know.
    header: dict[str, Any] = {
        "key": key,
        "shape": shape,
        "codec": codec,
        "size": len(payload),
    }
    header |= {"expires": entry.expires, "metadata": None}
    if entry.metadata is not None:
        header["metadata"] = entry.metadata.to_dict()
    if codec != "none":
        payload = _ARROW.compress(payload, codec=codec, asbytes=True)
    try:
        header_bytes = json.dumps(header).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"metadata of a cache entry: {error}; expected JSON values in `extra`"
        ) from error
    header_length = len(header_bytes).to_bytes(4, "little")
    # 2. The checksum covers the header as well, so that a damaged length is found.
    body = header_length + header_bytes + payload
    return _MAGIC + xxhash.xxh3_128_digest(body) + body


def _unpacked(key: str, data: memoryview) -> Entry | None:
    """Return the entry of a file, None where it is damaged or another key's."""
    if bytes(data[:_BODY]) != _MAGIC + xxhash.xxh3_128_digest(data[_BODY:]):
        return None
    payload_start = _HEADER + int.from_bytes(data[_BODY:_HEADER], "little")
    header = json.loads(bytes(data[_HEADER:payload_start]))
    payload = data[payload_start:]
    # Two keys of one hash are not to be expected, but would be told apart.
    if header["key"] != key:
        return None
    if header["codec"] != "none":
        decompressed = _ARROW.decompress(
            payload, header["size"], codec=header["codec"], asbytes=True
        )
        payload = memoryview(decompressed)
    metadata: CacheMetadata | None = None
    if header["metadata"]:
        metadata = CacheMetadata.from_dict(header["metadata"])
    return Entry(decoded(header["shape"], payload), metadata, header["expires"])
