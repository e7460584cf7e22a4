"""Where things lie in a dataset's and in a version's folder; the only place that spells these names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, final

from tokenlake.errors import StoreError
from tokenlake.storage.keys import (
    SPLIT_NAME,
    TAG_NAME,
    check_dataset_name,
    check_key,
    check_tag_name,
)

MANIFEST: Final = "manifest.json"
CLAIM: Final = "claim.json"
CONFIG: Final = "config.yaml"
CARD: Final = "README.md"
DATA: Final = "data"
LEDGER: Final = "ledger"
QUARANTINE: Final = "quarantine"
TAGS: Final = "tags"
RUNS: Final = "runs"
TOKENIZER: Final = "tokenizer"
MAX_UNIT: Final = 9_999_999
MAX_PART: Final = 99_999

_LEDGER_NAME: Final = re.compile(r"ledger/(\d{5,7})\.json")
_VERSION_NAME: Final = re.compile(r"v([1-9]\d{0,8})")


def shard_path(split: str, unit: int, part: int) -> str:
    """Return ``data/train-00017-00.parquet``: split, unit, part; relative to the version."""
    if not SPLIT_NAME.fullmatch(split):
        raise StoreError(
            f"the split name {split!r} is refused; expected letters, digits, '_', '.', '-' (at most 64)"
        )
    return f"{DATA}/{split}-{unit:05d}-{part:02d}.parquet"


def ledger_path(unit: int) -> str:
    """Return ``ledger/00017.json``."""
    return f"{LEDGER}/{unit:05d}.json"


def quarantine_path(unit: int) -> str:
    """Return ``quarantine/00017.parquet``."""
    return f"{QUARANTINE}/{unit:05d}.parquet"


def ledger_unit(path: str) -> int | None:
    """Return the unit of a ledger record's path; None if it is no such path."""
    match = _LEDGER_NAME.fullmatch(path)
    return int(match[1]) if match and ledger_path(int(match[1])) == path else None


def version_number(name: str) -> int | None:
    """Return 3 for ``v3``; None for anything that is not a version's folder."""
    match = _VERSION_NAME.fullmatch(name)
    return int(match[1]) if match else None


def tags_prefix(dataset: str) -> str:
    """Return ``llama2-2048/tags``, the folder of a dataset's tags."""
    return f"{check_dataset_name(dataset)}/{TAGS}"


def tag_key(dataset: str, tag: str) -> str:
    """Return ``llama2-2048/tags/prod.json``."""
    return f"{tags_prefix(dataset)}/{check_tag_name(tag)}.json"


def tag_of(key: str) -> str | None:
    """Return the tag of a tag's key; None for what is no such key."""
    name = key.rpartition("/")[2]
    tag = name.removesuffix(".json")
    return tag if tag != name and key.count("/") == 2 and TAG_NAME.fullmatch(tag) else None


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """The keys of one version: ``Layout("llama2-2048", 1).ledger(17)``."""

    dataset: str
    version: int

    def __post_init__(self) -> None:
        check_dataset_name(self.dataset)
        if version_number(f"v{self.version}") is None:
            raise StoreError(f"{self.dataset}: version {self.version} is refused; versions are 1, 2, 3, ...")

    @property
    def prefix(self) -> str:
        return f"{self.dataset}/v{self.version}"

    @property
    def manifest(self) -> str:
        return self.key(MANIFEST)

    @property
    def claim(self) -> str:
        return self.key(CLAIM)

    @property
    def config(self) -> str:
        return self.key(CONFIG)

    @property
    def card(self) -> str:
        return self.key(CARD)

    def key(self, path: str) -> str:
        """Return the key of a path relative to the version (as manifests hold it)."""
        return check_key(f"{self.prefix}/{check_key(path)}")

    def path(self, key: str) -> str:
        """Return the path of a key of this version; the inverse of :meth:`key`."""
        return key.removeprefix(self.prefix + "/")

    def shard(self, split: str, unit: int, part: int) -> str:
        return self.key(shard_path(split, unit, part))

    def ledger(self, unit: int) -> str:
        return self.key(ledger_path(unit))

    def quarantine(self, unit: int) -> str:
        return self.key(quarantine_path(unit))

    def run(self, run_id: str) -> str:
        return self.key(f"{RUNS}/{run_id}.json")

    def tokenizer(self, name: str) -> str:
        """Return the key of a tokenizer file; ``name`` may hold a folder (``code/tokenizer.json``)."""
        return self.key(f"{TOKENIZER}/{name}")
