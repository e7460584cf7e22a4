"""Search a version for secrets before it is published.

Three kinds of secrets are searched for: the known shapes of credentials, random values under names such as ``api_key``,
and the secrets of this process. A finding names the place and the kind, never the secret. Texts (card, configuration,
manifest, tokenizer, ledger) and Parquet footers can be repaired, so one finding in them refuses the push. Rows are
training data, in which secrets of people are not rare and invented ones are common: a sample of the rows is decoded,
and findings are reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.base.secrets import CREDENTIAL
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.etl.publish.detector import LONG_ENOUGH, Detector, is_random
from tokenlake.etl.publish.files import Published, PublishedFile
from tokenlake.etl.tokenizers.manager import Decoder
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.reading.version import DAMAGE
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.layout import LEDGER, MANIFEST
from tokenlake.runtime.store.ledger import ShardEntry
from tokenlake.runtime.store.manifest import Manifest

_GOLDEN: Final = 0.6180339887498949  # steps of it spread evenly, however many there are
_SHOWN: Final = 10


@final
@dataclass(frozen=True, slots=True)
class SecretFinding:
    """Something that looks like a secret; never the secret.

    Attributes:
        path: the file, relative to the version.
        place: where in it: ``line 3``, a path of keys, ``row 17``.
        kind: of what it looks like.
    """

    path: str
    place: str
    kind: str

    def __str__(self) -> str:
        return f"{self.path}, {self.place}: {self.kind}"


def scan_texts(files: Iterable[PublishedFile], detector: Detector) -> list[SecretFinding]:
    """Return what looks like a secret in files whose bytes are held, each place and kind once."""
    found: dict[SecretFinding, None] = {}
    for file in files:
        text = (file.data or b"").decode("utf-8", errors="replace")
        is_json = file.path.endswith(".json")
        for kind, start in (detector.shapes if is_json else detector.everywhere)(text):
            line = text.count("\n", 0, start) + 1
            found[SecretFinding(file.path, f"line {line}", kind)] = None
        value: Any = text if is_json else None
        with suppress(
            ValueError
        ):  # the tokenizer's loader would refuse it; it is searched as a text all the same
            value = json.loads(text) if is_json else None
        if isinstance(value, dict) and (file.path == MANIFEST or file.path.startswith(f"{LEDGER}/")):
            # Their input tables hold version tokens of files, which are hashes: no secrets, though they look random.
            entries = cast("dict[str, Any]", value)
            value = {key: item for key, item in entries.items() if key not in ("inputs", "sha256")}
        # Letters may be written as \\u0041 there.
        has_escapes = is_json and "\\u" in text
        for kind, place in _in_json(value, detector, has_escapes=has_escapes):
            found[SecretFinding(file.path, place, kind)] = None
    return list(found)


def scan_footers(store: ReadStore, version: Published, detector: Detector) -> list[SecretFinding]:
    """Return what looks like a secret in the key-value metadata and the column names of the shards.

    Raises:
        IntegrityError: a footer cannot be read.
    """
    found: dict[SecretFinding, None] = {}
    for shard in version.manifest.files:
        key = version.layout.key(shard.path)
        with store.open(key, size=shard.bytes, sha256=shard.sha256) as stream:
            try:
                schema = pq.ParquetFile(stream).schema_arrow
            except DAMAGE as error:
                raise IntegrityError(
                    f"{key}: its Parquet footer cannot be read ({error}); run `tokenlake verify`", file=key
                ) from error
        texts = {"column names": "\n".join(schema.names)}
        tables: list[tuple[str, Any]] = [("metadata", schema.metadata)]
        tables += [(f"metadata of {field.name!r}", field.metadata) for field in cast("Any", schema)]
        for place, table in tables:
            for key, value in (table or {}).items():
                name = key.decode("utf-8", errors="replace")
                texts[f"{place} {name!r}"] = f"{name}={value.decode('utf-8', errors='replace')}"
        for place, text in texts.items():
            found |= {SecretFinding(shard.path, place, kind): None for kind, _ in detector.everywhere(text)}
    return list(found)


def scan_rows(
    store: ReadStore, manifest: Manifest, number: int, detector: Detector
) -> tuple[int, list[SecretFinding]]:
    """Decode `number` rows of each shard and return how many they were, and what looks like a secret in them.

    Rows of one row group of each shard are read, verified by page; which ones depends on nothing but the manifest.

    Raises:
        IntegrityError: a page is damaged.
        MissingExtraError: ``tokenizers`` is not installed.
    """
    found: dict[SecretFinding, None] = {}
    decoders = Decoder.all_of(store, manifest) if number else []
    scanned = 0
    for split in manifest.splits if number else ():
        with Dataset(store, manifest, split) as rows:
            first = 0
            for index, shard in enumerate(s for s in manifest.files if s.split == split):
                start, stop = _sample(shard, index, number)
                for row, text in _texts(rows.read(first + start, first + stop), decoders):
                    for kind, _ in detector.shapes(text):
                        found[SecretFinding(shard.path, f"row {start + row}", kind)] = None
                first += shard.rows
                scanned += stop - start
    return scanned, list(found)


def require_none(findings: list[SecretFinding], what: str) -> None:
    """Raise ConfigError if anything was found; the message says where and of which kind."""
    if not findings:
        return
    lines = "".join(f"\n  {finding}" for finding in findings[:_SHOWN])
    more = f"\n  and {len(findings) - _SHOWN} more" if len(findings) > _SHOWN else ""
    raise ConfigError(
        f"nothing was pushed: {what} what looks like a secret, in these places:{lines}{more}\n"
        "Revoke it if it is one, take it out of what the version was built from (input names, kept columns, special "
        "tokens, chat template, the name of the tokenizer), and build a new version; a committed one never changes.",
        findings=[[finding.path, finding.place, finding.kind] for finding in findings],
    )


def _in_json(
    value: object, detector: Detector, place: str = "", key: str = "", *, has_escapes: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield (kind, path of keys) of values behind telling names in parsed JSON.

    Args:
        has_escapes: Letters are escaped in the file, so that shapes must be looked for in the values, too.
    """
    if isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            path = f"{place}.{name}".lstrip(".")
            yield from _in_json(item, detector, path, name, has_escapes=has_escapes)
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            if isinstance(item, dict | list | str):
                yield from _in_json(item, detector, f"{place}[{index}]", has_escapes=has_escapes)
    elif isinstance(value, str) and len(value) >= LONG_ENOUGH:
        if CREDENTIAL.search(key) and is_random(value):
            yield f"value of {key!r}", place
        else:
            yield from ((kind, place) for kind, _ in detector.named(value))
        if has_escapes:
            yield from ((kind, place) for kind, _ in detector.shapes(value))


def _sample(shard: ShardEntry, index: int, number: int) -> tuple[int, int]:
    """Return rows ``start .. stop`` of one row group of the shard."""
    if not shard.rows:
        return 0, 0
    group = int((index + 1) * _GOLDEN % 1 * len(shard.row_groups))
    low = shard.row_groups[group]
    high = (*shard.row_groups, shard.rows)[group + 1]
    start = low + int((index + 1) * _GOLDEN * 7 % 1 * max(high - low - number + 1, 1))
    return start, min(start + number, high)


def _texts(table: pa.Table, decoders: list[Decoder]) -> Iterator[tuple[int, str]]:
    """Yield (row, text): decoded ids, with each tokenizer that the sources have, and columns of text as they are."""
    for name in table.schema.names:
        column: Any = table.column(name)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            yield from ((row, text) for row, text in enumerate(column.to_pylist()) if text)
        elif name != "segment_ids" and (name.endswith("_ids") or name.startswith("input_ids")):
            for row, ids in enumerate(column.to_pylist()):
                yield from ((row, decoder.text(ids or ())) for decoder in decoders)
