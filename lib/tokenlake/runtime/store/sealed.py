"""Sealed JSON documents: canonical bytes that carry their own sha256, read back strictly.

Manifests, ledger records, claims and tags are sealed. A document is the canonical JSON of an object whose ``sha256`` is
that of the same object without that member, so any changed bit is found without a second file. Reading trusts nothing:
each member is decoded to its type, and what was decoded must be written as the very bytes that were read. A missing,
unknown, repeated, mistyped or absurd value is an :class:`IntegrityError` that names the file and the key.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, ClassVar, Final, NoReturn, Self, final, get_type_hints

import msgspec
from msgspec import Meta

from tokenlake.base.fingerprint import canonical_members, joined
from tokenlake.base.typed_json import decoder
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.runtime.store.layout import DATASET_NAME, SPLIT_NAME, TAG_NAME

FORMAT_VERSION: Final = 1
MAX_COUNT: Final = 1 << 60  # more rows, tokens or bytes than any store will hold: a hostile or damaged number

# What a member may be. Patterns are searched for, hence the anchors.
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Positive = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Signed = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Share = Annotated[float, Meta(ge=0.0, le=1 + 1e-6)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
DatasetName = Annotated[str, Meta(pattern=rf"^(?:{DATASET_NAME.pattern})\Z")]
SplitName = Annotated[str, Meta(pattern=rf"^(?:{SPLIT_NAME.pattern})\Z")]
TagName = Annotated[str, Meta(pattern=rf"^(?:{TAG_NAME.pattern})\Z")]

_ENTRIES: Final = msgspec.json.Encoder(order="sorted")
_AT: Final = re.compile(r"(.*) - at `\$(.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(.+)`")
_LARGE: Final = 1 << 20  # bytes of a document that is worth it
_SHOWN: Final = 80  # characters on both sides of a difference
_DAMAGED: Final = "The file is damaged or was not written by tokenlake: restore it, or rebuild the version."


def seal(members: Mapping[str, Any]) -> bytes:
    """Return the document's bytes: canonical JSON of ``members``, which are plain JSON, with their seal."""
    return seal_members(canonical_members({key: value for key, value in members.items() if key != "sha256"}))


def seal_members(members: Mapping[str, bytes]) -> bytes:
    """Return the document's bytes, made of the canonical form of its members."""
    return joined({**members, "sha256": f'"{seal_of(members)}"'.encode()})


def seal_of(members: Mapping[str, bytes]) -> str:
    """Return the sha256 (hex) of a document, made of the canonical form of its other members."""
    return hashlib.sha256(joined(members)).hexdigest()


class Sealed:
    """A dataclass that a sealed document says: its fields are the members, those that have their default left out."""

    __slots__ = ()

    FREE: ClassVar[tuple[str, ...]] = ()
    """Members that may hold floats, which are written in another way."""

    def to_bytes(self) -> bytes:
        """Return the file's bytes: sealed canonical JSON."""
        return seal_members(self._canonical())

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "document") -> Self:
        """Read a file; any change after it was written, or impossible value, is an IntegrityError.

        Args:
            where: the file's name, for messages.
        """
        # No cyclic garbage collection: a large document is all of new objects, and no cycle is among them.
        collects = len(data) > _LARGE and gc.isenabled()
        if collects:
            gc.disable()
        try:
            document = SealedDocument(data, where)
            stated: str = document.get("sha256", Sha256)
            if (real := _content_hash(data, stated)) != stated:
                got = f"{stated}; the file was changed after it was written"
                document.fail("sha256", f"{real}, the hash of the content", got)
            return cls._read(document)
        finally:
            if collects:
                gc.enable()

    @classmethod
    def _read(cls, document: SealedDocument) -> Self:
        found = cls(**document.values(cls))
        found._check(document)
        document.end(found)
        return found

    def _members(self) -> dict[str, Any]:
        members: dict[str, Any] = {"format_version": FORMAT_VERSION}
        for name, (_, default) in _fields_of(type(self)).items():
            if (value := getattr(self, name)) != default:
                members[name] = value
        return members

    def _canonical(self) -> dict[str, bytes]:
        """Return the canonical form of all members but the seal."""
        members = self._members()
        free = {name: members.pop(name) for name in self.FREE if name in members}
        # Entries of ours are written as objects, in a tenth of the time that floats need.
        try:
            found = {key: _ENTRIES.encode(value) for key, value in members.items()}
        except UnicodeEncodeError as error:
            raise ConfigError(f"a name is not valid UTF-8: {error}") from error
        return found | (canonical_members(free) if free else {})

    def _check(self, document: SealedDocument) -> None:
        """Check what must hold between members; see :meth:`SealedDocument.fail`."""


@functools.cache
def _fields_of(kind: type[Any]) -> dict[str, tuple[Any, Any]]:
    """Return the type and the default of each field of a dataclass."""
    kinds = get_type_hints(kind, include_extras=True)

    def default(each: Field[Any]) -> Any:
        return each.default if each.default_factory is MISSING else each.default_factory()

    return {each.name: (kinds[each.name], default(each)) for each in fields(kind)}


@final
class SealedDocument:
    """A JSON object that is decoded member by member.

    Args:
        data: canonical JSON.
        where: the file's name, for messages.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where = data, where
        try:
            self._members: dict[str, msgspec.Raw] = decoder(dict[str, msgspec.Raw]).decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise IntegrityError(
                f"{where}: not valid JSON ({error}); {len(data)} bytes. The file is cut or damaged.",
                file=where,
            ) from None
        version = self.get("format_version", Positive)
        if version != FORMAT_VERSION:
            expected = f"{FORMAT_VERSION} (this release reads no other; upgrade tokenlake)"
            self.fail("format_version", expected, version)

    def __contains__(self, key: str) -> bool:
        return key in self._members

    def get(self, key: str, kind: Any) -> Any:
        """Return a member as a value of a type; IntegrityError where it is none."""
        if key not in self._members:
            self._fail(key, f"is missing. {_DAMAGED}")
        try:
            return decoder(kind).decode(self._members[key])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            found = _AT.fullmatch(str(error))
            what, path = found.groups() if found else (str(error), "")
            if missing := _MISSING.fullmatch(what):
                self._fail(f"{key}{path}.{missing[1]}", f"is missing. {_DAMAGED}")
            got = "wrong" if path else _short(bytes(self._members[key]).decode("utf-8", "backslashreplace"))
            self._fail(f"{key}{path}", f"is {got}: {what}. {_DAMAGED}")

    def values(self, kind: type[Any], *left_out: str) -> dict[str, Any]:
        """Return the members that the fields of a dataclass name; a field with a default may be missing."""
        wanted = {name: each for name, each in _fields_of(kind).items() if name not in left_out}
        return {
            name: self.get(name, hint)
            for name, (hint, default) in wanted.items()
            if default is MISSING or name in self
        }

    def fail(self, key: str, expected: str, got: object) -> NoReturn:
        """Raise the IntegrityError about a member, or what is inside one."""
        self._fail(key, f"is {_short(got)}; expected {expected}. {_DAMAGED}")

    def end(self, sealed: Sealed) -> None:
        """Check that the document is what would be written for what was read of it.

        Args:
            sealed: What was read.
        """
        try:
            members = sealed._canonical()  # pyright: ignore[reportPrivateUsage] - of this file
        except ConfigError as error:  # a text that is no UTF-8, or a number that is none
            raise IntegrityError(f"{self._where}: {error} {_DAMAGED}", file=self._where) from None
        seal = self._members.get("sha256")
        wanted = {**members, **({} if seal is None else {"sha256": bytes(seal)})}
        if joined(wanted) == self._data:
            return
        written = {key: text.decode() for key, text in wanted.items()}
        there = {key: bytes(raw).decode("utf-8", "backslashreplace") for key, raw in self._members.items()}
        for key in sorted(written.keys() ^ there.keys()):
            self._fail(key, f"is {'missing' if key in written else 'no known key'}. {_DAMAGED}")
        for key, expected in sorted(written.items()):
            if (got := there[key]) != expected:
                same = (at for at, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b)
                start = max(next(same, 0) - _SHOWN, 0)
                got, expected = (f"...{text[start : start + 2 * _SHOWN]}..." for text in (got, expected))
                what = f"is {got}; expected {expected}, the canonical form of what all members say"
                self._fail(key, f"{what}. {_DAMAGED}")
        raise IntegrityError(
            f"{self._where}: the bytes are not the canonical form of their content; the file was edited. "
            "Restore it, or rebuild the version.",
            file=self._where,
        )

    def _fail(self, key: str, what: str) -> NoReturn:
        raise IntegrityError(f"{self._where}: {key} {what}", file=self._where, key=key)


def _content_hash(data: bytes, seal: str) -> str | None:
    """Return the sha256 (hex) of a document without its member ``sha256``; None where that is not this one."""
    field = f'"sha256":"{seal}"'.encode()
    start = data.find(field)
    stop = start + len(field)
    if start < 0:
        return None
    # With the member goes the comma that parts it from the next one, or from the one before if it is the last.
    if data[stop : stop + 1] == b",":
        stop += 1
    elif data[start - 1 : start] == b",":
        start -= 1
    real = hashlib.sha256(memoryview(data)[:start])
    real.update(memoryview(data)[stop:])
    return real.hexdigest()


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 200 else text[:200] + "..."
