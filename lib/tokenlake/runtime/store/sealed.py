"""Sealed JSON documents: canonical bytes that carry their own sha256.

They are read back strictly.

Manifests, ledger records, claims and tags are sealed. A document is the canonical JSON
of an object whose ``sha256`` is that of the same object without that member, so any
changed bit is found without a second file. Reading trusts nothing: each member is
decoded to its type, and the result must be written as the very bytes that were read. A
missing, unknown, repeated, mistyped or absurd value is an :class:`IntegrityError` that
names the file and the key.

Reading takes these steps:

1. Split the object into its members, each still undecoded.
2. Compare the hash of the other members with the member ``sha256``.
3. Decode each member to the type of its field.
4. Check the relations between members (``_check``).
5. Write the result again, and compare it with the bytes that were read
   (:meth:`SealedDocument.end`).
"""

from __future__ import annotations

import functools
import gc
import hashlib
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    NoReturn,
    Self,
    final,
    get_type_hints,
)

import msgspec
from msgspec import Meta

from tokenlake.base.fingerprint import canonical_members, joined
from tokenlake.base.typed_json import decoder
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.runtime.store.layout import DATASET_NAME, SPLIT_NAME, TAG_NAME

FORMAT_VERSION: Final = 1
MAX_COUNT: Final = 1 << 60
"""Largest count.

More rows, tokens or bytes than any store holds, so that a larger number is damaged or
hostile.
"""

# Types of members. msgspec searches for patterns anywhere in a text, so they have
# anchors.
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Positive = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Signed = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Share = Annotated[float, Meta(ge=0.0, le=1 + 1e-6)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
DatasetName = Annotated[str, Meta(pattern=rf"^(?:{DATASET_NAME.pattern})\Z")]
SplitName = Annotated[str, Meta(pattern=rf"^(?:{SPLIT_NAME.pattern})\Z")]
TagName = Annotated[str, Meta(pattern=rf"^(?:{TAG_NAME.pattern})\Z")]

# Encoder of the entries of this library, with sorted keys as canonical JSON has them.
_ENTRIES: Final = msgspec.json.Encoder(order="sorted")
# Forms of msgspec's messages: the path of the value, and the name of a missing field.
_AT: Final = re.compile(r"(.*) - at `\$(.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(.+)`")
# Bytes of a document from which on garbage collection is paused.
_LARGE: Final = 1 << 20
_SHOWN: Final = 80  # characters on both sides of a difference in a message
_MOST_TEXT: Final = 200  # characters of a value in a message
_DAMAGED: Final = "The file is damaged or was not written by tokenlake: restore it, or rebuild the version."


def seal(members: Mapping[str, Any]) -> bytes:
    """Return the bytes of a document.

    Args:
        members: Members of the document, plain JSON; a member ``sha256`` is replaced.
    """
    content = {key: value for key, value in members.items() if key != "sha256"}
    return seal_members(canonical_members(content))


def seal_members(members: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a document from the canonical form of its members."""
    return joined({**members, "sha256": f'"{seal_of(members)}"'.encode()})


def seal_of(members: Mapping[str, bytes]) -> str:
    """Return the sha256 (hex) of a document from its other, canonical members."""
    return hashlib.sha256(joined(members)).hexdigest()


class Sealed:
    """Dataclass whose fields are the members of a sealed document.

    Fields with their default value are left out.
    """

    __slots__ = ()

    FREE: ClassVar[tuple[str, ...]] = ()
    """Members that may hold floats or free JSON.

    They need the slower canonical writer.
    """

    def to_bytes(self) -> bytes:
        """Return the bytes of the file: sealed canonical JSON."""
        return seal_members(self._canonical())

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "document") -> Self:
        """Read a file.

        Args:
            data: Bytes of the file.
            where: Name of the file, for messages.

        Raises:
            IntegrityError: The file was changed after it was written, or holds an
                impossible value.
        """
        # Pause cyclic garbage collection: a large document makes many objects, and no
        # cycles.
        is_paused = len(data) > _LARGE and gc.isenabled()
        if is_paused:
            gc.disable()
        try:
            # Steps 1 and 2 of the module docstring; `_read` takes the others.
            document = SealedDocument(data, where)
            stated: str = document.get("sha256", Sha256)
            computed = _content_hash(data, stated)
            if computed != stated:
                got = f"{stated}; the file was changed after it was written"
                document.fail("sha256", f"{computed}, the hash of the content", got)
            return cls._read(document)
        finally:
            if is_paused:
                gc.enable()

    @classmethod
    def _read(cls, document: SealedDocument) -> Self:
        """Return the value of a document whose seal is right."""
        sealed = cls(**document.values(cls))
        sealed._check(document)
        document.end(sealed)
        return sealed

    def _members(self) -> dict[str, Any]:
        """Return the members of the document, without the seal."""
        members: dict[str, Any] = {"format_version": FORMAT_VERSION}
        # A default is left out, so that a new field does not change the bytes of
        # documents without it.
        for field_name, (_, default) in _fields_of(type(self)).items():
            value = getattr(self, field_name)
            if value != default:
                members[field_name] = value
        return members

    def _canonical(self) -> dict[str, bytes]:
        """Return the canonical form of all members but the seal."""
        members = self._members()
        # Free members need the canonical writer, which sorts keys at every level and
        # checks floats.
        free_members = {
            name: members.pop(name) for name in self.FREE if name in members
        }
        # Entries of ours are encoded as objects, in a tenth of the time that free JSON
        # needs.
        try:
            canonical = {key: _ENTRIES.encode(value) for key, value in members.items()}
        except UnicodeEncodeError as error:
            raise ConfigError(f"a name is not valid UTF-8: {error}") from error
        if free_members:
            canonical |= canonical_members(free_members)
        return canonical

    def _check(self, document: SealedDocument) -> None:
        """Check the relations between members.

        A wrong one is passed to :meth:`SealedDocument.fail`.
        """


@functools.cache
def _fields_of(kind: type[Any]) -> dict[str, tuple[Any, Any]]:
    """Return name -> (type, default) of the fields of a dataclass.

    The default is ``MISSING`` if there is none.
    """
    # Resolving annotations takes long, and is done once for each class.
    field_types = get_type_hints(kind, include_extras=True)
    types_and_defaults: dict[str, tuple[Any, Any]] = {}
    for field in fields(kind):
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        types_and_defaults[field.name] = (field_types[field.name], default)
    return types_and_defaults


@final
class SealedDocument:
    """A JSON object that is decoded member by member.

    Args:
        data: Canonical JSON.
        file_name: Name of the file, for messages.

    Raises:
        IntegrityError: The bytes are not a JSON object, or of another format version.
    """

    def __init__(self, data: bytes, file_name: str) -> None:
        self._data = data
        self._where = file_name
        # Only the members are split; each is decoded when it is read.
        try:
            self._members: dict[str, msgspec.Raw] = decoder(
                dict[str, msgspec.Raw]
            ).decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise IntegrityError(
                f"{file_name}: not valid JSON ({error}); {len(data)} bytes. The file is truncated or damaged.",
                file=file_name,
            ) from None
        version = self.get("format_version", Positive)
        if version != FORMAT_VERSION:
            expected = f"{FORMAT_VERSION} (the only one that this release reads; upgrade tokenlake)"
            self.fail("format_version", expected, version)

    def __contains__(self, key: str) -> bool:
        return key in self._members

    def get(self, key: str, kind: Any) -> Any:
        """Return a member, decoded to a type.

        Raises:
            IntegrityError: The member is missing, or not of this type.
        """
        if key not in self._members:
            self._fail(key, f"is missing. {_DAMAGED}")
        try:
            # Decoders are cached by type.
            return decoder(kind).decode(self._members[key])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._fail_decoding(key, str(error))

    def _fail_decoding(self, key: str, message: str) -> NoReturn:
        """Raise the IntegrityError for a member that msgspec could not decode."""
        # msgspec appends the path inside the member: "Expected `int`, got `str` - at
        # `$[0].rows`".
        problem = message
        path = ""
        match = _AT.fullmatch(message)
        if match is not None:
            problem, path = match.groups()
        # A missing field of an entry is named by its full path.
        missing = _MISSING.fullmatch(problem)
        if missing is not None:
            self._fail(f"{key}{path}.{missing[1]}", f"is missing. {_DAMAGED}")
        # The value itself is shown only if it is the whole member: a part of it is not
        # known here.
        got = "wrong" if path else _short(_text(self._members[key]))
        self._fail(f"{key}{path}", f"is {got}: {problem}. {_DAMAGED}")

    def values(self, kind: type[Any], *left_out: str) -> dict[str, Any]:
        """Return the members for the fields of a dataclass.

        A member whose field has a default may be missing.

        Args:
            kind: The dataclass.
            left_out: Names of fields that are not read.
        """
        values: dict[str, Any] = {}
        for field_name, (member_type, default) in _fields_of(kind).items():
            is_required = default is MISSING
            if field_name not in left_out and (is_required or field_name in self):
                values[field_name] = self.get(field_name, member_type)
        return values

    def fail(self, key: str, expected: str, got: object) -> NoReturn:
        """Raise the IntegrityError about a member, or a value inside one.

        Args:
            key: Dotted key.
            expected: Clause that describes a right value.
            got: The value.
        """
        self._fail(key, f"is {_short(got)}; expected {expected}. {_DAMAGED}")

    def end(self, sealed: Sealed) -> None:
        """Check that the document has the very bytes that would be written for a value.

        Args:
            sealed: The value that was read from the document.

        Raises:
            IntegrityError: The bytes differ; the message names the member and shows
                both.
        """
        try:
            members = sealed._canonical()  # pyright: ignore[reportPrivateUsage] - of this file
        except ConfigError as error:
            # Text that is not UTF-8, or a number that JSON does not have.
            raise IntegrityError(
                f"{self._where}: {error} {_DAMAGED}", file=self._where
            ) from None
        # The seal was compared with the content before, so that it may be repeated as
        # it is.
        if "sha256" in self._members:
            members["sha256"] = bytes(self._members["sha256"])
        if joined(members) == self._data:
            return

        # Name the member that differs.
        expected_texts = {key: data.decode() for key, data in members.items()}
        got_texts = {key: _text(raw) for key, raw in self._members.items()}
        for key in sorted(expected_texts.keys() ^ got_texts.keys()):
            state = "missing" if key in expected_texts else "no known key"
            self._fail(key, f"is {state}. {_DAMAGED}")
        # Both have the same members: a value is written in another form, such as 1.0
        # for 1.
        for key, expected in sorted(expected_texts.items()):
            if got_texts[key] != expected:
                got_excerpt, expected_excerpt = _excerpts(got_texts[key], expected)
                problem = f"is {got_excerpt}; expected {expected_excerpt}, the canonical form of all members"
                self._fail(key, f"{problem}. {_DAMAGED}")
        raise IntegrityError(
            f"{self._where}: the bytes are not the canonical form of their content; the file was edited. "
            "Restore it, or rebuild the version.",
            file=self._where,
        )

    def _fail(self, key: str, problem: str) -> NoReturn:
        raise IntegrityError(
            f"{self._where}: {key} {problem}", file=self._where, key=key
        )


def _excerpts(got: str, expected: str) -> tuple[str, str]:
    """Return both texts around their first difference."""
    # One text may be the begin of the other: the excerpt starts at 0 then.
    first_difference = 0
    for index, (got_character, expected_character) in enumerate(
        zip(got, expected, strict=False)
    ):
        if got_character != expected_character:
            first_difference = index
            break
    excerpt_start = max(first_difference - _SHOWN, 0)
    excerpt_end = excerpt_start + 2 * _SHOWN
    return (
        f"...{got[excerpt_start:excerpt_end]}...",
        f"...{expected[excerpt_start:excerpt_end]}...",
    )


def _text(raw: msgspec.Raw) -> str:
    """Return an undecoded member as text."""
    return bytes(raw).decode("utf-8", "backslashreplace")


def _content_hash(data: bytes, seal: str) -> str | None:
    """Return the sha256 (hex) of a document without its member ``sha256``.

    It is None if that member has another value.
    """
    # The bytes are searched, and not the members joined again: the hash is over the
    # bytes as they were read.
    seal_member = f'"sha256":"{seal}"'.encode()
    member_start = data.find(seal_member)
    if member_start < 0:
        return None
    member_end = member_start + len(seal_member)
    # With the member goes the comma behind it, or the one before it if it is the last.
    if data[member_end : member_end + 1] == b",":
        member_end += 1
    elif data[member_start - 1 : member_start] == b",":
        member_start -= 1
    # The hash runs over both parts in place, without a copy of a large document.
    content_hash = hashlib.sha256(memoryview(data)[:member_start])
    content_hash.update(memoryview(data)[member_end:])
    return content_hash.hexdigest()


def _short(value: object) -> str:
    """Return a value for a message."""
    value_text = value if isinstance(value, str) else repr(value)
    if len(value_text) <= _MOST_TEXT:
        return value_text
    return value_text[:_MOST_TEXT] + "..."
