"""Search of a version for secrets, before it is published.

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
_SHOWN_FINDINGS: Final = 10  # in the text of an error

# Keys of manifests and ledger records whose values are hashes: no secrets, though they
# look random.
_UNSEARCHED_KEYS: Final = ("inputs", "sha256")


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
    """Return the possible secrets in files whose bytes are in memory.

    Each place and kind comes once.
    """
    findings: dict[SecretFinding, None] = {}
    for file in files:
        file_text = (file.data or b"").decode("utf-8", errors="replace")
        is_json = file.path.endswith(".json")

        # Every file is searched as text. Names in JSON are searched below, with the
        # values that belong to them.
        search = detector.everywhere
        if is_json:
            search = detector.shapes
        for kind, start in search(file_text):
            line_number = file_text.count("\n", 0, start) + 1
            place = f"line {line_number}"
            findings[SecretFinding(file.path, place, kind)] = None

        # JSON is searched by keys and values, too. A letter in it may be escaped as
        # \\u0041.
        if is_json:
            has_escapes = "\\u" in file_text
            searched_value = _searched_json(file.path, file_text)
            for kind, place in _in_json(
                searched_value, detector, has_escapes=has_escapes
            ):
                findings[SecretFinding(file.path, place, kind)] = None
    return list(findings)


def _searched_json(path: str, text: str) -> Any:
    """Return a JSON file's value without its hashes.

    It is the text itself if the file is no JSON.
    """
    try:
        value: Any = json.loads(text)
    # The tokenizer's loader would refuse the file; it is searched all the same.
    except ValueError:
        return text
    has_hashes = path == MANIFEST or path.startswith(f"{LEDGER}/")
    if not isinstance(value, dict) or not has_hashes:
        return value
    entries = dict(cast("dict[str, Any]", value))
    for unsearched_key in _UNSEARCHED_KEYS:
        entries.pop(unsearched_key, None)
    return entries


def scan_footers(
    store: ReadStore, version: Published, detector: Detector
) -> list[SecretFinding]:
    """Return the possible secrets in metadata and column names of the shards.

    Raises:
        IntegrityError: A footer cannot be read.
    """
    findings: dict[SecretFinding, None] = {}
    for shard in version.manifest.files:
        shard_key = version.layout.key(shard.path)
        with store.open(shard_key, size=shard.bytes, sha256=shard.sha256) as stream:
            try:
                schema = pq.ParquetFile(stream).schema_arrow
            except DAMAGE as error:
                raise damaged_file(
                    version.layout,
                    shard.path,
                    f"cannot be read: {error}",
                    place="the footer",
                    file=shard_key,
                ) from error
        for place, footer_text in _footer_texts(schema):
            for kind, _ in detector.everywhere(footer_text):
                findings[SecretFinding(shard.path, place, kind)] = None
    return list(findings)


def _footer_texts(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """Yield pairs (place, text) of a Parquet schema.

    These are the column names, and each entry of the metadata.
    """
    yield "column names", "\n".join(schema.names)
    # Metadata of the file, and of each column. A writer may have put anything there,
    # such as the settings of a program.
    tables: list[tuple[str, Any]] = [("metadata", schema.metadata)]
    for field in cast("Any", schema):
        tables.append((f"metadata of {field.name!r}", field.metadata))
    for place, table in tables:
        for key, value in (table or {}).items():
            entry_name = key.decode("utf-8", errors="replace")
            entry_text = value.decode("utf-8", errors="replace")
            yield f"{place} {entry_name!r}", f"{entry_name}={entry_text}"


def scan_rows(
    store: ReadStore, manifest: Manifest, number: int, detector: Detector
) -> tuple[int, list[SecretFinding]]:
    """Decode some rows of each shard and search them for secrets.

    Returns their number and the possible secrets.

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
    # Each source has a tokenizer of its own.
    decoders = Decoder.all_of(store, manifest)
    scanned_rows = 0
    for split in manifest.splits:
        with Dataset(store, manifest, split) as rows:
            first_row = 0
            split_shards = [shard for shard in manifest.files if shard.split == split]
            for shard_index, shard in enumerate(split_shards):
                start_row, end_row = _sampled_range(shard, shard_index, number)
                table = rows.read(first_row + start_row, first_row + end_row)
                for row, row_text in _texts(table, decoders):
                    for kind, _ in detector.shapes(row_text):
                        place = f"row {start_row + row}"
                        findings[SecretFinding(shard.path, place, kind)] = None
                first_row += shard.rows
                scanned_rows += end_row - start_row
    return scanned_rows, list(findings)


def require_none(findings: list[SecretFinding], subject: str) -> None:
    """Raise ConfigError if there are findings; the message has their places.

    Args:
        findings: Possible secrets.
        subject: Subject and verb of the sentence, such as ``its rows hold``.
    """
    if not findings:
        return
    listed_findings = "".join(
        f"\n  {finding}" for finding in findings[:_SHOWN_FINDINGS]
    )
    if len(findings) > _SHOWN_FINDINGS:
        listed_findings += f"\n  and {len(findings) - _SHOWN_FINDINGS} more"
    raise ConfigError(
        f"nothing was pushed: {subject} what looks like a secret, in these places:{listed_findings}\n"
        "Revoke it if it is one, remove it from the inputs of the version (input names, kept columns, special tokens, "
        "chat template, name of the tokenizer), and build a new version; a committed one never changes.",
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
        for entry_key, item in cast("dict[str, Any]", value).items():
            key_path = f"{place}.{entry_key}".lstrip(".")
            yield from _in_json(
                item, detector, key_path, entry_key, has_escapes=has_escapes
            )
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            if isinstance(item, dict | list | str):
                yield from _in_json(
                    item, detector, f"{place}[{index}]", has_escapes=has_escapes
                )
    # A value is searched by the name of its key, or by names inside of it.
    elif isinstance(value, str) and len(value) >= LONG_ENOUGH:
        if CREDENTIAL.search(key) and is_random(value):
            yield f"value of {key!r}", place
        else:
            for kind, _ in detector.named(value):
                yield kind, place
        # With escapes the search of the file as a text may have missed a shape.
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
    # Another row group and another place in each shard, evenly spread over all shards.
    row_group = int((index + 1) * _GOLDEN_RATIO % 1 * len(shard.row_groups))
    bounds = (*shard.row_groups, shard.rows)
    first_row = bounds[row_group]
    end_row = bounds[row_group + 1]
    possible_starts = max(end_row - first_row - number + 1, 1)
    start_row = first_row + int((index + 1) * _GOLDEN_RATIO * 7 % 1 * possible_starts)
    return start_row, min(start_row + number, end_row)


def _texts(table: pa.Table, decoders: list[Decoder]) -> Iterator[tuple[int, str]]:
    """Yield pairs (row, text) of a table.

    Ids are decoded with the tokenizer of each source, because a row may be of any of
    them; columns of text are unchanged.
    """
    for name in table.schema.names:
        column: Any = table.column(name)
        is_text = _is_text(column.type)
        is_ids_column = name.endswith("_ids") or name.startswith("input_ids")
        has_ids = is_ids_column and name != "segment_ids"
        if is_text:
            for row, row_text in enumerate(column.to_pylist()):
                if row_text:
                    yield row, row_text
        elif has_ids:
            for row, token_ids in enumerate(column.to_pylist()):
                for decoder in decoders:
                    yield row, decoder.text(token_ids or ())


def _is_text(column_type: Any) -> bool:
    """Return True for an Arrow type of strings."""
    types: Any = pa.types
    return types.is_string(column_type) or types.is_large_string(column_type)
