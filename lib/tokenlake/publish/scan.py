"""Looking for secrets in all that is about to be published: texts and metadata whole, rows by sample.

Texts (card, configuration, manifest, tokenizer, ledger) and the Parquet footers are ours to mend, and one finding in
them refuses the push. Rows are training data, in which people's secrets are not rare and made-up ones are common: of
them a sample is decoded, and what is found is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.errors import ConfigError, IntegrityError, MissingExtraError
from tokenlake.loader.dataset import Dataset
from tokenlake.manifest import Manifest, ShardEntry
from tokenlake.publish.files import Content, Published
from tokenlake.publish.secrets import Detector
from tokenlake.reading.verified import verified_bytes
from tokenlake.storage import Layout, ReadStore
from tokenlake.storage.layout import MANIFEST, TOKENIZER

_GOLDEN: Final = 0.6180339887498949  # steps of it spread evenly, however many there are
_SHOWN: Final = 10
_DAMAGE: Final = (pa.ArrowException, OSError, ValueError, OverflowError)


@final
@dataclass(frozen=True, slots=True)
class Finding:
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


def scan_texts(files: Iterable[Content], detector: Detector) -> list[Finding]:
    """Return what looks like a secret in files whose bytes are held, each place and kind once."""
    found: dict[Finding, None] = {}
    for file in files:
        text = (file.data or b"").decode("utf-8", errors="replace")
        for match in detector.shapes(text):
            found[Finding(file.path, _line(text, match.start), match.kind)] = None
        for place, kind in _named(file.path, text, detector):
            found[Finding(file.path, place, kind)] = None
    return list(found)


def scan_footers(store: ReadStore, version: Published, detector: Detector) -> list[Finding]:
    """Return what looks like a secret in the key-value metadata and the column names of the shards.

    Raises:
        IntegrityError: a footer cannot be read.
    """
    found: list[Finding] = []
    for shard in version.manifest.files:
        key = version.layout.key(shard.path)
        with store.open(key, size=shard.bytes, sha256=shard.sha256) as stream:
            try:
                schema = pq.ParquetFile(stream).schema_arrow
            except _DAMAGE as error:
                raise IntegrityError(
                    f"{key}: its Parquet footer cannot be read ({error}); run `tokenlake verify`", file=key
                ) from error
        for place, text in _metadata(schema):
            matches = [*detector.shapes(text), *detector.named(text)]
            found += [Finding(shard.path, place, match.kind) for match in matches]
    return list(dict.fromkeys(found))


def scan_rows(
    store: ReadStore,
    manifest: Manifest,
    number: int,
    detector: Detector,
    on_rows: Callable[[int], None] | None = None,
) -> list[Finding]:
    """Decode `number` rows of each shard and return what looks like a secret in them; 0: look at none.

    Rows of one row group of each shard are read, verified by page; which ones depends on nothing but the manifest.

    Raises:
        IntegrityError: a page is damaged.
        MissingExtraError: ``tokenizers`` is not installed.
    """
    found: dict[Finding, None] = {}
    for split in manifest.splits if number else ():
        with Dataset(store, manifest, split) as rows:
            texts = _Texts(store, manifest)
            first = 0
            for index, shard in enumerate(s for s in manifest.files if s.split == split):
                start, stop = _sample(shard, index, number)
                table = rows.read(first + start, first + stop)
                for row, text in texts.of(table):
                    for match in detector.shapes(text):
                        found[Finding(shard.path, f"row {start + row}", match.kind)] = None
                first += shard.rows
                if on_rows is not None:
                    on_rows(stop - start)
    return list(found)


def require_none(findings: list[Finding], what: str) -> None:
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


def _line(text: str, start: int) -> str:
    return f"line {text.count(chr(10), 0, start) + 1}"


def _named(path: str, text: str, detector: Detector) -> Iterator[tuple[str, str]]:
    if not path.endswith(".json"):
        yield from ((_line(text, match.start), match.kind) for match in detector.named(text))
        return
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = text  # the tokenizer's loader would refuse it; it is searched as a text all the same
    if path == MANIFEST or path.startswith("ledger/"):
        # Their input tables hold version tokens of files, which are hashes: no secrets, though they look random.
        value = {key: item for key, item in value.items() if key not in ("inputs", "sha256")}
    yield from ((place, kind) for kind, place in detector.in_json(value))


def _metadata(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    yield "column names", "\n".join(schema.names)
    tables: list[tuple[str, Any]] = [("metadata", schema.metadata or {})]
    tables += [
        (f"metadata of {name!r}", field.metadata or {})
        for name, field in zip(schema.names, schema, strict=True)
    ]
    for place, table in tables:
        for key, value in table.items():
            name = key.decode("utf-8", errors="replace")
            yield f"{place} {name!r}", f"{name}={value.decode('utf-8', errors='replace')}"


def _sample(shard: ShardEntry, index: int, number: int) -> tuple[int, int]:
    """Return rows ``start .. stop`` of one row group of the shard."""
    if not shard.rows:
        return 0, 0
    group = int((index + 1) * _GOLDEN % 1 * len(shard.row_groups))
    low = shard.row_groups[group]
    high = (*shard.row_groups, shard.rows)[group + 1]
    start = low + int((index + 1) * _GOLDEN * 7 % 1 * max(high - low - number + 1, 1))
    return start, min(start + number, high)


@final
class _Texts:
    """The texts of stored rows: decoded ids, and columns of text as they are."""

    def __init__(self, store: ReadStore, manifest: Manifest) -> None:
        self._store, self._manifest = store, manifest

    def of(self, table: pa.Table) -> Iterator[tuple[int, str]]:
        """Yield (row, text); where sources have different tokenizers, a row is decoded with each of them."""
        for name in table.schema.names:
            column: Any = table.column(name)
            kind = column.type
            if pa.types.is_string(kind) or pa.types.is_large_string(kind):
                yield from ((row, text) for row, text in enumerate(column.to_pylist()) if text)
            elif _holds_ids(name):
                ids = [list(row or ()) for row in column.to_pylist()]
                for tokenizer in self._tokenizers:
                    yield from enumerate(tokenizer.decode_batch(ids, skip_special_tokens=False))

    @cached_property
    def _tokenizers(self) -> list[Any]:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingExtraError("decoding rows needs tokenizers: pip install 'tokenlake[etl]'") from error
        found = {
            entry.sha256: path
            for path, entry in self._manifest.other_files.items()
            if path.startswith(f"{TOKENIZER}/") and path.endswith("/tokenizer.json")
        }
        layout = Layout(self._manifest.dataset, self._manifest.version)
        return [
            Tokenizer.from_buffer(verified_bytes(self._store, layout, path, digest))
            for digest, path in found.items()
        ]


def _holds_ids(name: str) -> bool:
    return name != "segment_ids" and (name.endswith("_ids") or name.startswith("input_ids"))
