"""Sealing and unsealing a document.

One JSON object, read key by key: whatever no writer of ours would write is an error with file and key.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn, cast, final

from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.fingerprint import canonical_json, canonical_text, canonical_texts, joined
from tokenlake.store.canonical import parse_canonical

MAX_COUNT: Final = 1 << 60  # more rows, tokens or bytes than any store will hold: a hostile or damaged number
_WHOLE: Final = 1 + 1e-6
SHA256: Final = re.compile(r"[0-9a-f]{64}")


@final
class Fields:
    """One JSON object read key by key; :meth:`end` complains about what nobody asked for."""

    def __init__(self, value: Any, where: str, path: str = "") -> None:
        self._where, self._path, self._seen = where, path, set[str]()
        if not isinstance(value, dict):
            name = path or "the document"
            raise IntegrityError(
                f"{where}: {name} is {_short(value)}; expected an object. "
                "The file is damaged or was not written by tokenlake: restore it, or rebuild the version.",
                file=where,
                key=name,
            )
        self.value = cast("dict[str, Any]", value)

    def fail(self, key: str, expected: str, got: object) -> NoReturn:
        """Raise the IntegrityError about ``key``."""
        name = self._name(key)
        raise IntegrityError(
            f"{self._where}: {name} is {_short(got)}; expected {expected}. "
            "The file is damaged or was not written by tokenlake: restore it, or rebuild the version.",
            file=self._where,
            key=name,
        )

    def end(self) -> None:
        """Check that every key was read."""
        unknown = sorted(set(self.value) - self._seen)
        if unknown:
            self.fail(unknown[0], "no such key", self.value[unknown[0]])

    def count(self, key: str, *, low: int = 0, high: int = MAX_COUNT) -> int:
        return self._integer(key, self._take(key), low, high)

    def signed(self, key: str) -> int:
        return self._integer(key, self._take(key), -(1 << 63), (1 << 63) - 1)

    def optional_count(self, key: str, *, low: int = 0) -> int | None:
        value = self._take(key)
        return None if value is None else self._integer(key, value, low, MAX_COUNT)

    def text(self, key: str, pattern: re.Pattern[str] | None = None) -> str:
        return self._text(key, self._take(key), pattern)

    def json_object(self, key: str) -> dict[str, Any]:
        """Return a free-form object as it is."""
        return Fields(self._take(key), self._where, self._name(key)).value

    def counts(self, key: str) -> dict[str, int]:
        return {k: self._integer(f"{key}.{k}", v, 0, MAX_COUNT) for k, v in self.json_object(key).items()}

    def texts(self, key: str, pattern: re.Pattern[str] | None = None) -> dict[str, str]:
        return {k: self._text(f"{key}.{k}", v, pattern) for k, v in self.json_object(key).items()}

    def count_list(self, key: str) -> tuple[int, ...]:
        values = enumerate(self._list(key))
        return tuple(self._integer(f"{key}[{index}]", value, 0, MAX_COUNT) for index, value in values)

    def text_list(self, key: str) -> tuple[str, ...]:
        values = enumerate(self._list(key))
        return tuple(self._text(f"{key}[{index}]", value, None) for index, value in values)

    def share(self, key: str) -> float:
        """Return a share of a whole; shares are written as floats, and sum to 1 within 1e-6."""
        return self._share(key, self._take(key))

    def optional_share(self, key: str) -> float | None:
        value = self._take(key)
        return None if value is None else self._share(key, value)

    def shares(self, key: str) -> dict[str, float]:
        return {k: self._share(f"{key}.{k}", v) for k, v in self.json_object(key).items()}

    def plain_list(self, key: str) -> list[Any]:
        """Return a list as it is, for who checks its values by other means."""
        return self._list(key)

    def follows(self, key: str, value: Any) -> None:
        """Check a value that follows from others: the document must say exactly this."""
        self._seen.add(key)
        stated = self.value.get(key)
        if canonical_text(stated) != canonical_text(value):
            self.fail(key, f"{value}, as the other fields make it", stated)

    def child(self, key: str) -> Fields:
        return Fields(self._take(key), self._where, self._name(key))

    def optional_child(self, key: str) -> Fields | None:
        return None if self._take(key) is None else self.child(key)

    def children(self, key: str) -> list[Fields]:
        values = enumerate(self._list(key))
        return [Fields(value, self._where, self._name(f"{key}[{index}]")) for index, value in values]

    def named_children(self, key: str) -> dict[str, Fields]:
        found = self.json_object(key)
        return {
            name: Fields(value, self._where, self._name(f"{key}.{name}")) for name, value in found.items()
        }

    def _take(self, key: str) -> Any:
        self._seen.add(key)
        if key not in self.value:
            raise IntegrityError(
                f"{self._where}: {self._name(key)} is missing. "
                "The file is damaged or was not written by tokenlake: restore it, or rebuild the version.",
                file=self._where,
                key=self._name(key),
            )
        return self.value[key]

    def _name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _list(self, key: str) -> list[Any]:
        value = self._take(key)
        if not isinstance(value, list):
            self.fail(key, "a list", value)
        return cast("list[Any]", value)

    def _integer(self, key: str, value: Any, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.fail(key, f"an integer in {low}..{high}", value)
        return value

    def _share(self, key: str, value: Any) -> float:
        if not isinstance(value, float) or not 0.0 <= value <= _WHOLE:
            self.fail(key, "a float in 0..1", value)
        return value

    def _text(self, key: str, value: Any, pattern: re.Pattern[str] | None) -> str:
        if not isinstance(value, str):
            self.fail(key, "a string", value)
        if pattern is not None and not pattern.fullmatch(value):
            self.fail(key, f"a string that matches {pattern.pattern}", value)
        return value


def _short(value: object) -> str:
    try:
        text = value if isinstance(value, str) and " " in value else repr(value)
    except ValueError:  # an integer of thousands of digits
        text = f"a {type(value).__name__} too long to print"
    return text if len(text) <= 200 else text[:200] + "..."


FORMAT_VERSION: Final = 1


def seal_of(fields: Mapping[str, Any]) -> str:
    """Return the sha256 (hex) that belongs into ``fields["sha256"]``."""
    return hashlib.sha256(canonical_json({k: v for k, v in fields.items() if k != "sha256"})).hexdigest()


def seal(fields: Mapping[str, Any]) -> bytes:
    """Return the document's bytes: canonical JSON of ``fields`` with their seal."""
    texts = canonical_texts({key: value for key, value in fields.items() if key != "sha256"})
    return joined({**texts, "sha256": f'"{hashlib.sha256(joined(texts)).hexdigest()}"'})


def unseal(data: bytes, where: str) -> Fields:
    """Parse a sealed document, check its format version and its seal.

    Args:
        data: the file's bytes.
        where: the file's name, for messages.

    Raises:
        IntegrityError: not JSON, not canonical, another format version, or not the sealed bytes.
    """
    return _well_sealed(data, where) or _unseal_step_by_step(data, where)


def _well_sealed(data: bytes, where: str) -> Fields | None:
    """Return the content of a document that is all right; None for any that is not, without saying why."""
    try:
        fields = Fields(parse_canonical(data.decode("utf-8")), where)
        well = fields.count("format_version") == FORMAT_VERSION and is_sealed_as(
            data, fields.text("sha256", SHA256)
        )
    except (ValueError, RecursionError, IntegrityError):
        return None
    return fields if well else None


def _unseal_step_by_step(data: bytes, where: str) -> Fields:
    fields = Fields(parse(data, where), where)
    got = fields.count("format_version", low=1)
    if got != FORMAT_VERSION:
        fields.fail(
            "format_version", f"{FORMAT_VERSION} (this release reads no other; upgrade tokenlake)", got
        )
    stated = fields.text("sha256", SHA256)
    try:
        real = seal_of(fields.value)
        whole = canonical_json({**fields.value, "sha256": stated})
    except ConfigError as error:  # a lone surrogate written as an escape
        raise IntegrityError(f"{where}: not canonical JSON: {error}", file=where) from error
    if real != stated:
        fields.fail(
            "sha256",
            f"{real}, the hash of the content",
            f"{stated}; the file was changed after it was written",
        )
    if whole != data:
        raise IntegrityError(
            f"{where}: the bytes are not the canonical form of their content; the file was edited. "
            "Restore it, or rebuild the version.",
            file=where,
        )
    return fields


def is_sealed_as(data: bytes, seal: str) -> bool:
    """Say whether ``data`` are a sealed document's bytes with this very seal, without parsing them."""
    field = f'"sha256":"{seal}"'.encode()
    start = data.find(field)
    stop = start + len(field)
    if start < 0:
        return False
    # With the field goes the comma that parts it from the next one, or from the one before if it is the last.
    before, after = start, stop
    if data[stop : stop + 1] == b",":
        after = stop + 1
    elif data[start - 1 : start] == b",":
        before = start - 1
    real = hashlib.sha256(data[:before])
    real.update(memoryview(data)[after:])
    return real.hexdigest() == seal


def parse(data: bytes, where: str) -> Any:
    """Parse JSON without its ambiguities: no duplicate keys, NaN, bad UTF-8 or bottomless nesting."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(
            f"{where}: not valid JSON ({error}); {len(data)} bytes. The file is cut or damaged.", file=where
        ) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
