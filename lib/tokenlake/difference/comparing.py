"""Comparing two manifests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from tokenlake.difference.model import Change, Count, Difference, InputPair
from tokenlake.difference.shards import match_shards, unit_kinships
from tokenlake.fingerprint import canonical_text
from tokenlake.manifest import Manifest
from tokenlake.storage.layout import CARD, CONFIG, LEDGER

_NOTHING: Final = object()
#: Files that hold the name, the number or the time of a build: they differ between any two versions.
_OWN: Final = (CARD, CONFIG, LEDGER)


def compare(a: Manifest, b: Manifest) -> Difference:
    """Compare two versions by what their manifests say; no data is read."""
    inputs = list(_inputs(a, b))
    pairs = match_shards(a.files, b.files)
    return Difference(
        a=f"{a.dataset}@v{a.version}",
        b=f"{b.dataset}@v{b.version}",
        identity=changes(_identity(a), _identity(b)),
        config=changes(a.config, b.config),
        tokenizer=changes(a.tokenizer, b.tokenizer),
        inputs=tuple(inputs),
        inputs_same=len(b.inputs) - sum(pair.b is not None for pair in inputs),
        files=pairs,
        units=unit_kinships(pairs),
        others=changes(_others(a), _others(b)),
        totals=_counts(a.totals.to_json(), b.totals.to_json()),
        account=tuple(count for count in _account(a, b) if count.a or count.b),
        mixture=changes(_mixture(a), _mixture(b)),
        parents=changes(_parents(a), _parents(b)),
        produced_by=changes(a.produced_by, b.produced_by),
    )


def changes(a: object, b: object) -> tuple[Change, ...]:
    """Return what differs between two JSON values, by dotted keys in the order of their names."""
    return tuple(_walk("", a, b))


def _walk(key: str, a: object, b: object) -> Iterator[Change]:
    left, right = _children(a), _children(b)
    # Lists of unequal lengths have no places to compare; a list and an object neither.
    alike = isinstance(a, Mapping) if isinstance(b, Mapping) else not isinstance(a, Mapping)
    if (
        left is not None
        and right is not None
        and alike
        and (isinstance(a, Mapping) or len(left) == len(right))
    ):
        for name in sorted(left.keys() | right.keys()):
            below = f"{key}.{name}" if key and isinstance(a, Mapping) else f"{key}{name}"
            yield from _walk(below, left.get(name, _NOTHING), right.get(name, _NOTHING))
    elif a is _NOTHING:
        yield Change(key, None, b, "b")
    elif b is _NOTHING:
        yield Change(key, a, None, "a")
    elif canonical_text(a) != canonical_text(b):  # as JSON: 1 is not true
        yield Change(key, a, b)


def _children(value: object) -> Mapping[str, object] | None:
    """Return what is below an object, or below a list of objects; None for any other value."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, object]", value)
    if isinstance(value, list) and any(isinstance(each, dict) for each in cast("list[Any]", value)):
        return {f"[{index}]": each for index, each in enumerate(cast("list[Any]", value))}
    return None


def _identity(manifest: Manifest) -> dict[str, Any]:
    return {
        "kind": manifest.kind,
        "seq_length": manifest.seq_length,
        "build": manifest.fingerprint,
        "format_version": manifest.format_version,
    }


def _inputs(a: Manifest, b: Manifest) -> Iterator[InputPair]:
    """Yield the inputs that are not the same, by source and path."""
    left = {(entry.source, entry.path): entry for entry in a.inputs}
    right = {(entry.source, entry.path): entry for entry in b.inputs}
    for key in sorted(left.keys() | right.keys()):
        before, after = left.get(key), right.get(key)
        if before is None or after is None or (before.size, before.token) != (after.size, after.token):
            yield InputPair(before, after)


def _others(manifest: Manifest) -> dict[str, Any]:
    found = manifest.other_files.items()
    return {path: entry.sha256 for path, entry in found if path.partition("/")[0] not in _OWN}


def _account(a: Manifest, b: Manifest) -> tuple[Count, ...]:
    """Return the figures of both accounts in their order, reasons spelled out: ``filtered.empty``."""
    found: list[Count] = []
    left, right = a.account.to_json(), b.account.to_json()
    for name, value in left.items():
        if isinstance(value, int):
            found.append(Count(name, value, right[name]))
        else:
            reasons = sorted(value.keys() | right[name].keys())
            found += [
                Count(f"{name}.{each}", value.get(each, 0), right[name].get(each, 0)) for each in reasons
            ]
    return tuple(found)


def _counts(a: Mapping[str, int], b: Mapping[str, int]) -> tuple[Count, ...]:
    return tuple(Count(name, value, b[name]) for name, value in a.items())


def _mixture(manifest: Manifest) -> dict[str, Any]:
    return {} if manifest.mixture is None else manifest.mixture.to_json()


def _parents(manifest: Manifest) -> dict[str, Any]:
    return {f"{parent.dataset}@v{parent.version}": parent.sha256 for parent in manifest.parents}
