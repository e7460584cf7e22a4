"""Sealed JSON documents: canonical bytes that carry their own sha256, read back strictly.

Manifests, ledger records, claims and tags are sealed. A document is the canonical JSON of an object whose ``sha256`` is
that of the same object without that member, so any changed bit is found without a second file. Reading trusts nothing:
each member is decoded to its type, and what was decoded must be written as the very bytes that were read. A missing,
unknown, repeated, mistyped or absurd value is an :class:`IntegrityError` that names the file and the key.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, NoReturn, cast, final

import msgspec
from msgspec import Meta

from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.fingerprint import canonical_text, canonical_texts, joined
from tokenlake.store.layout import DATASET_NAME, SPLIT_NAME, TAG_NAME

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
_STEP: Final = re.compile(r"\.([^.\[\]`]+)|\[(\d+|\.\.\.)\]")
_GOT: Final = re.compile(r", got `\w+`")
_ANY_NAME: Final = "..."
_NOTHING: Final = object()
_DAMAGED: Final = "The file is damaged or was not written by tokenlake: restore it, or rebuild the version."


def entry_texts(members: Mapping[str, Any]) -> dict[str, str]:
    """Return the canonical texts of members that hold no floats; entries of ours are written as objects.

    It takes a tenth of the time of :func:`tokenlake.fingerprint.canonical_texts`, which floats need.
    """
    try:
        return {key: _ENTRIES.encode(value).decode() for key, value in members.items()}
    except UnicodeEncodeError as error:
        raise ConfigError(f"a name is not valid UTF-8: {error}") from error


def seal(members: Mapping[str, Any]) -> bytes:
    """Return the document's bytes: canonical JSON of ``members``, which are plain JSON, with their seal."""
    return seal_texts(canonical_texts({key: value for key, value in members.items() if key != "sha256"}))


def seal_texts(texts: Mapping[str, str]) -> bytes:
    """Return the document's bytes, made of the canonical texts of its members."""
    return joined({**texts, "sha256": f'"{seal_of(texts)}"'})


def seal_of(texts: Mapping[str, str]) -> str:
    """Return the sha256 (hex) of a document, made of the canonical texts of its other members."""
    return hashlib.sha256(joined(texts)).hexdigest()


def is_sealed_as(data: bytes, seal: str) -> bool:
    """Say whether ``data`` are a sealed document's bytes with this very seal, without parsing them."""
    return _content_hash(data, seal) == seal


def unseal(data: bytes, where: str) -> SealedDocument:
    """Check the format version and the seal of a document.

    Args:
        data: the file's bytes.
        where: the file's name, for messages.

    Raises:
        IntegrityError: not a JSON object, another format version, or not the sealed bytes.
    """
    document = SealedDocument(data, where)
    stated: str = document.get("sha256", Sha256)
    if (real := _content_hash(data, stated)) != stated:
        document.fail(
            "sha256",
            f"{real}, the hash of the content",
            f"{stated}; the file was changed after it was written",
        )
    return document


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
            self._members: dict[str, msgspec.Raw] = _decoder(dict[str, msgspec.Raw]).decode(data)
        except msgspec.ValidationError:
            self._fail("the document", f"is {_short(_parse(data, where))}; expected an object. {_DAMAGED}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            _parse(data, where)
            raise IntegrityError(
                f"{where}: not valid JSON. The file is cut or damaged.", file=where
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
        raw = self._members[key]
        try:
            return _decoder(kind).decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._explain(key, kind, bytes(raw), str(error))

    def fail(self, key: str, expected: str, got: object) -> NoReturn:
        """Raise the IntegrityError about a member, or what is inside one."""
        self._fail(key, f"is {_short(got)}; expected {expected}. {_DAMAGED}")

    def end(self, texts: Mapping[str, str]) -> None:
        """Check that the document is what would be written for what was read of it.

        Args:
            texts: the canonical texts of all members but the seal.
        """
        written = dict(texts)
        if "sha256" in self._members:
            written["sha256"] = bytes(self._members["sha256"]).decode()
        if joined(written) == self._data:
            return
        found = _differences("", json.loads(joined(written)), _parse(self._data, self._where))
        # What is missing, or too much, may be why other members differ.
        for path, expected, got in sorted(found, key=lambda each: _NOTHING not in each):
            if expected is _NOTHING:
                self.fail(path, "no such key", got)
            if got is _NOTHING:
                self._fail(path, f"is missing. {_DAMAGED}")
            self.fail(path, f"{_short(expected)}, as the other members make it", got)
        raise IntegrityError(
            f"{self._where}: the bytes are not the canonical form of their content; the file was edited. "
            "Restore it, or rebuild the version.",
            file=self._where,
        )

    def _explain(self, key: str, kind: Any, raw: bytes, message: str) -> NoReturn:
        """Raise the IntegrityError for a member that is not of its type."""
        value = _parse(raw, self._where)
        expected, _, path = message.partition(" - at `$")
        steps = [name or index for name, index in _STEP.findall(path)]
        name, got = _located(key, value, steps, lambda: _wanted(_message(value, kind)) == _wanted(message))
        if missing := re.fullmatch(r"Object missing required field `(.+)`", expected):
            self._fail(f"{name}.{missing[1]}", f"is missing. {_DAMAGED}")
        expected = _wanted(expected).removeprefix("Expected ")
        self.fail(name, "another value" if expected.startswith("Invalid") else expected, got)

    def _fail(self, key: str, what: str) -> NoReturn:
        raise IntegrityError(f"{self._where}: {key} {what}", file=self._where, key=key)


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


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


def _parse(data: bytes, where: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(
            f"{where}: not valid JSON ({error}); {len(data)} bytes. The file is cut or damaged.", file=where
        ) from error


def _wanted(message: str) -> str:
    return _GOT.sub("", message)


def _message(value: Any, kind: Any) -> str:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _located(key: str, value: Any, steps: list[str], fails: Callable[[], bool]) -> tuple[str, Any]:
    """Return the name of what is at a path inside a member, and its value."""
    for step in steps:
        if isinstance(value, list):
            key, value = f"{key}[{step}]", value[int(step)]
        else:
            name = _failing(value, fails) if step == _ANY_NAME else step
            key, value = f"{key}.{name}", value[name]
    return key, value


def _failing(holder: dict[str, Any], fails: Callable[[], bool]) -> str:
    """Return the name in an object whose value is wrong, which messages leave out: it is wrong alone, too."""
    for name, value in list(holder.items()):
        holder.clear()
        holder[name] = value
        if fails():
            return name
    raise AssertionError(f"none of {list(holder)} is wrong")


def _differences(key: str, expected: Any, got: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the places where two JSON values differ: key, expected, got."""
    if isinstance(expected, dict) and isinstance(got, dict):
        ours, theirs = cast("dict[str, Any]", expected), cast("dict[str, Any]", got)
        for name in sorted(ours.keys() | theirs.keys()):
            path = f"{key}.{name}" if key else name
            yield from _differences(path, ours.get(name, _NOTHING), theirs.get(name, _NOTHING))
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for index, (one, other) in enumerate(zip(expected, got, strict=True)):
            yield from _differences(f"{key}[{index}]", one, other)
    elif expected is _NOTHING or got is _NOTHING or canonical_text(expected) != canonical_text(got):
        yield key, expected, got


def _short(value: object) -> str:
    try:
        text = value if isinstance(value, str) and " " in value else repr(value)
    except ValueError:  # an integer of thousands of digits
        text = f"a {type(value).__name__} too long to print"
    return text if len(text) <= 200 else text[:200] + "..."
