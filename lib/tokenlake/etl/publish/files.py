"""What of a version is published: an allow-list, and of that exactly what the manifest names with its hash.

Published are the manifest, the card, the configuration, the tokenizer, the shards and the ledger (hashes and counts
of each unit, which verifying a copy needs). Not published, ever: ``quarantine/`` (records that somebody should look
at, not everybody), ``runs/`` (hosts and clocks), ``claim.json``, and whatever lies there without being listed.

All of it is searched for secrets: known shapes of credentials, values behind telling names, and this process's own. A
finding says where and of which kind, never what. Texts (card, configuration, manifest, tokenizer, ledger) and Parquet
footers are ours to repair, and one finding in them refuses the push. Rows are training data, in which people's secrets
are not rare and made-up ones are common: of them a sample is decoded, and what is found is told.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self, cast, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.base.secrets import CREDENTIAL
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.etl.publish.detector import LONG_ENOUGH, Detector, is_random
from tokenlake.etl.tokenizers.manager import Decoder
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.reading.file_hashes import verified_bytes
from tokenlake.runtime.reading.version import DAMAGE
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import (
    CARD,
    CONFIG,
    DATA,
    LEDGER,
    MANIFEST,
    TOKENIZER,
    Layout,
    ledger_unit,
)
from tokenlake.runtime.store.ledger import ShardEntry
from tokenlake.runtime.store.manifest import Manifest

OURS: Final = (MANIFEST, CARD, CONFIG, f"{DATA}/", f"{TOKENIZER}/", f"{LEDGER}/")
"""Names of a repository that belong to the version that is published there; all others are left alone."""


def is_published(path: str) -> bool:
    """Return whether a file of a version may leave its store.

    ::

        >>> is_published("tokenizer/tokenizer.json"), is_published("quarantine/00001.parquet")
        (True, False)
    """
    if path.startswith(f"{DATA}/"):
        return path.endswith(".parquet")
    if path.startswith(f"{LEDGER}/"):
        return ledger_unit(path) is not None
    return path in (MANIFEST, CARD, CONFIG) or path.startswith(f"{TOKENIZER}/")


def is_ours(path: str) -> bool:
    """Return whether a path of a repository is one that only a published version may have."""
    return any(path == name or (name.endswith("/") and path.startswith(name)) for name in OURS)


@final
@dataclass(frozen=True)
class PublishedFile:
    """A file to publish.

    Attributes:
        path: relative to the version, and to the repository.
        data: its verified bytes; None for a shard, which is read when it is sent.
    """

    path: str
    bytes: int
    sha256: str
    data: bytes | None = None

    @cached_property
    def blob(self) -> str | None:
        """Git's id of the bytes, by which the Hub lists small files; None where they are not held."""
        if self.data is None:
            return None
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data, usedforsecurity=False).hexdigest()

    def is_same(self, found: Any) -> bool:
        """Return whether a file of a repository (``RepoFile``) is this one, by size and by hash."""
        if found.size != self.bytes:
            return False
        return found.lfs.sha256 == self.sha256 if found.lfs else found.blob_id == self.blob


def differing(
    files: Iterable[PublishedFile], found: Mapping[str, Any], ours: Callable[[str], bool]
) -> list[str]:
    """Return what of a repository is not as in these files: paths missing, others of ours, or of other bytes."""
    wanted = {file.path: file for file in files}
    wrong = {path for path, file in wanted.items() if path not in found or not file.is_same(found[path])}
    return sorted(wrong | {path for path in found if ours(path) and path not in wanted})


@final
@dataclass(frozen=True)
class Published:
    """A version as it is published: its manifest, and all files by path.

    Attributes:
        left_out: files that the manifest lists and that stay in the store.
    """

    layout: Layout
    manifest: Manifest
    files: tuple[PublishedFile, ...]
    left_out: tuple[str, ...]

    @property
    def name(self) -> str:
        """``small v3``, for people."""
        return f"{self.layout.dataset} v{self.layout.version}"

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def texts(self) -> list[PublishedFile]:
        """The files whose bytes are held: all but the shards."""
        return [file for file in self.files if file.data is not None]

    @property
    def shards(self) -> list[PublishedFile]:
        return [file for file in self.files if file.data is None]

    def differing(self, found: Mapping[str, Any]) -> list[str]:
        """Return what of a repository is not as in this version: paths missing, others, or of other bytes."""
        return differing(self.files, found, is_ours)

    @classmethod
    def read(cls, store: ReadStore, dataset: str, version: int) -> Self:
        """Read everything of a version but its shards, verified.

        Raises:
            NotFoundError: there is no such version, or a file of it is missing.
            IntegrityError: a file is not what the manifest says.
        """
        layout = Layout(dataset, version)
        manifest = Catalog(store).manifest(dataset, version)
        raw = store.read(layout.manifest)
        if Manifest.from_bytes(raw, layout.manifest).sha256 != manifest.sha256:
            raise IntegrityError(f"{layout.manifest}: it changed while it was read; nothing may change it")
        listed = {path: entry for path, entry in manifest.other_files.items() if is_published(path)}
        texts = [
            PublishedFile(path, entry.bytes, entry.sha256, verified_bytes(store, layout, path, entry.sha256))
            for path, entry in listed.items()
        ]
        head = PublishedFile(MANIFEST, len(raw), hashlib.sha256(raw).hexdigest(), raw)
        shards = [PublishedFile(entry.path, entry.bytes, entry.sha256) for entry in manifest.files]
        left_out = tuple(path for path in manifest.other_files if path not in listed)
        ordered = sorted((head, *texts, *shards), key=lambda file: file.path)
        return cls(layout, manifest, tuple(ordered), left_out)


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
