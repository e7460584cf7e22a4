"""Search a version for secrets before it is published.

Three kinds of secrets are searched for: the known shapes of credentials, random values
under names such as ``api_key``, and the secrets of this process. A finding names the
place and the kind, never the secret. Texts (card, configuration, manifest, tokenizer,
ledger) and Parquet footers can be repaired, so one finding in them refuses the push.
Rows are training data, in which secrets of people are not rare and invented ones are
common: a sample of the rows is decoded, and findings are reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.base.secrets import CREDENTIAL
from tokenlake.errors import ConfigError
from tokenlake.etl.publish.detector import LONG_ENOUGH, Detector, is_random
from tokenlake.etl.publish.files import Published, PublishedFile
from tokenlake.etl.tokenizers.manager import Decoder
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.reading.version import DAMAGE
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.damage import damaged_file
from tokenlake.runtime.store.layout import LEDGER, MANIFEST
from tokenlake.runtime.store.ledger import ShardEntry
from tokenlake.runtime.store.manifest import Manifest

# Its multiples, modulo 1, are evenly spread for any number of them.
_GOLDEN_RATIO: Final = 0.6180339887498949
_SHOWN_FINDINGS: Final = 10
_UNSEARCHED_KEYS: Final = ("inputs", "sha256")
"""Keys of manifests and ledger records whose values are hashes: no secrets, though
they look random.
"""


@final
@dataclass(frozen=True, slots=True)
class SecretFinding:
    """A possible secret; the finding never holds the secret itself.

    Attributes:
        path: Path of the file, relative to the version.
        place: Place in the file: ``line 3``, a path of keys, ``row 17``.
        kind: Kind of the secret.
    """

    path: str
    place: str
    kind: str

    def __str__(self) -> str:
        return f"{self.path}, {self.place}: {self.kind}"


def scan_texts(
    files: Iterable[PublishedFile], detector: Detector
) -> list[SecretFinding]:
    """Return the possible secrets in files whose bytes are in memory, each place and
    kind once.
    """
    findings: dict[SecretFinding, None] = {}
    for file in files:
        text = (file.data or b"").decode("utf-8", errors="replace")
        is_json = file.path.endswith(".json")

        # Every file is searched as text.
        search = detector.shapes if is_json else detector.everywhere
        for kind, start in search(text):
            line = text.count("\n", 0, start) + 1
            findings[SecretFinding(file.path, f"line {line}", kind)] = None

        # JSON is searched by keys and values, too. A letter in it may be escaped as
        # \\u0041.
        if is_json:
            has_escapes = "\\u" in text
            value = _searched_json(file.path, text)
            for kind, place in _in_json(value, detector, has_escapes=has_escapes):
                findings[SecretFinding(file.path, place, kind)] = None
    return list(findings)


def _searched_json(path: str, text: str) -> Any:
    """Return a JSON file's value without its hashes; the text itself if it is not
    JSON.
    """
    try:
        value: Any = json.loads(text)
    # The tokenizer's loader would refuse the file; it is searched all the same.
    except ValueError:
        return text
    has_hashes = path == MANIFEST or path.startswith(f"{LEDGER}/")
    if isinstance(value, dict) and has_hashes:
        entries = cast("dict[str, Any]", value)
        return {
            key: item for key, item in entries.items() if key not in _UNSEARCHED_KEYS
        }
    return value


def scan_footers(
    store: ReadStore, version: Published, detector: Detector
) -> list[SecretFinding]:
    """Return the possible secrets in the key-value metadata and the column names of the
    shards.

    Raises:
        IntegrityError: A footer cannot be read.
    """
    findings: dict[SecretFinding, None] = {}
    for shard in version.manifest.files:
        key = version.layout.key(shard.path)
        with store.open(key, size=shard.bytes, sha256=shard.sha256) as stream:
            try:
                schema = pq.ParquetFile(stream).schema_arrow
            except DAMAGE as error:
                raise damaged_file(
                    version.layout,
                    shard.path,
                    f"cannot be read: {error}",
                    place="the footer",
                    file=key,
                ) from error
        for place, text in _footer_texts(schema):
            for kind, _ in detector.everywhere(text):
                findings[SecretFinding(shard.path, place, kind)] = None
    return list(findings)


def _footer_texts(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """Yield pairs (place, text) of a Parquet schema: its column names, and each
    entry of its metadata.
    """
    yield "column names", "\n".join(schema.names)
    tables: list[tuple[str, Any]] = [("metadata", schema.metadata)]
    for field in cast("Any", schema):
        tables.append((f"metadata of {field.name!r}", field.metadata))
    for place, table in tables:
        for key, value in (table or {}).items():
            name = key.decode("utf-8", errors="replace")
            yield (
                f"{place} {name!r}",
                f"{name}={value.decode('utf-8', errors='replace')}",
            )


def scan_rows(
    store: ReadStore, manifest: Manifest, number: int, detector: Detector
) -> tuple[int, list[SecretFinding]]:
    """Decode some rows of each shard, and return their number and the possible secrets
    in them.

    The rows are consecutive rows of one row group of each shard, verified by page. They
    depend only on the manifest.

    Args:
        store: Store that holds the version.
        manifest: Manifest of the version.
        number: Number of rows per shard; 0 reads nothing.
        detector: Search for secrets in a text.

    Raises:
        IntegrityError: A page is damaged.
        MissingExtraError: ``tokenizers`` is not installed.
    """
    if not number:
        return 0, []
    findings: dict[SecretFinding, None] = {}
    decoders = Decoder.all_of(store, manifest)
    scanned_rows = 0
    for split in manifest.splits:
        with Dataset(store, manifest, split) as rows:
            first_row = 0
            shards = [shard for shard in manifest.files if shard.split == split]
            for index, shard in enumerate(shards):
                start, stop = _sampled_range(shard, index, number)
                table = rows.read(first_row + start, first_row + stop)
                for row, text in _texts(table, decoders):
                    for kind, _ in detector.shapes(text):
                        findings[
                            SecretFinding(shard.path, f"row {start + row}", kind)
                        ] = None
                first_row += shard.rows
                scanned_rows += stop - start
    return scanned_rows, list(findings)


def require_none(findings: list[SecretFinding], subject: str) -> None:
    """Raise ConfigError if there are findings; the message gives their places and
    kinds.

    Args:
        findings: Possible secrets.
        subject: Subject and verb of the sentence, such as ``its rows hold``.
    """
    if not findings:
        return
    lines = "".join(f"\n  {finding}" for finding in findings[:_SHOWN_FINDINGS])
    if len(findings) > _SHOWN_FINDINGS:
        lines += f"\n  and {len(findings) - _SHOWN_FINDINGS} more"
    raise ConfigError(
        f"nothing was pushed: {subject} what looks like a secret, in these places:{lines}\nRevoke it if it is one, "
        "remove it from the inputs of the version (input names, kept columns, special tokens, chat template, name "
        "of the tokenizer), and build a new version; a committed one never changes.",
        findings=[[finding.path, finding.place, finding.kind] for finding in findings],
    )


def _in_json(
    value: object,
    detector: Detector,
    place: str = "",
    key: str = "",
    *,
    has_escapes: bool = False,
) -> Iterator[tuple[str, str]]:
    """Yield pairs (kind, path of keys) of possible secrets in parsed JSON.

    Args:
        value: Parsed JSON.
        detector: Search for secrets in a text.
        place: Path of keys to the value.
        key: Last key of that path.
        has_escapes: True if letters are escaped in the file, so that values must be
            searched for shapes, too.
    """
    if isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            path = f"{place}.{name}".lstrip(".")
            yield from _in_json(item, detector, path, name, has_escapes=has_escapes)
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            if isinstance(item, dict | list | str):
                yield from _in_json(
                    item, detector, f"{place}[{index}]", has_escapes=has_escapes
                )
    elif isinstance(value, str) and len(value) >= LONG_ENOUGH:
        if CREDENTIAL.search(key) and is_random(value):
            yield f"value of {key!r}", place
        else:
            for kind, _ in detector.named(value):
                yield kind, place
        if has_escapes:
            for kind, _ in detector.shapes(value):
                yield kind, place


def _sampled_range(shard: ShardEntry, index: int, number: int) -> tuple[int, int]:
    """Return rows ``start .. stop`` of one row group of a shard.

    Args:
        shard: Shard.
        index: Index of the shard in its split.
        number: Largest number of rows.
    """
    if not shard.rows:
        return 0, 0
    group = int((index + 1) * _GOLDEN_RATIO % 1 * len(shard.row_groups))
    bounds = (*shard.row_groups, shard.rows)
    first = bounds[group]
    end = bounds[group + 1]
    possible_starts = max(end - first - number + 1, 1)
    start = first + int((index + 1) * _GOLDEN_RATIO * 7 % 1 * possible_starts)
    return start, min(start + number, end)


def _texts(table: pa.Table, decoders: list[Decoder]) -> Iterator[tuple[int, str]]:
    """Yield pairs (row, text): ids decoded with the tokenizer of each source, and
    text columns unchanged.
    """
    for name in table.schema.names:
        column: Any = table.column(name)
        is_text = pa.types.is_string(column.type) or pa.types.is_large_string(
            column.type
        )
        has_ids = name != "segment_ids" and (
            name.endswith("_ids") or name.startswith("input_ids")
        )
        if is_text:
            for row, text in enumerate(column.to_pylist()):
                if text:
                    yield row, text
        elif has_ids:
            for row, ids in enumerate(column.to_pylist()):
                for decoder in decoders:
                    yield row, decoder.text(ids or ())
