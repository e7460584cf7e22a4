"""Committed version of 10,000 shards: those of a small build, a hundred times each.

The shards are real files (hard links) under other unit numbers. The manifest is the
library's own, and its audit balances. The ledger has no records of the copies, but no
reader uses it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from benchmarks.inputs import InputMaker, documents
from benchmarks.loader_input import build
from benchmarks.vocabularies import Vocabulary
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.layout import DATA, MANIFEST, shard_path
from tokenlake.runtime.store.ledger import ShardEntry
from tokenlake.runtime.store.manifest import Manifest

MANY: Final = "many"
"""Name of the dataset with many shards."""

SHARDS: Final = 10_000
"""Number of its shards."""

_FEW: Final = "few"  # name of the dataset that is built
_FEW_SHARDS: Final = 100
_LENGTH: Final = 64  # ids of a row
_DOCUMENTS: Final = 2_400  # documents of the build: about 16 rows a shard
_LEAST_CHARACTERS: Final = 100
_MOST_CHARACTERS: Final = 300


def make_many(work: Path, maker: InputMaker, vocabulary: Vocabulary) -> Path:
    """Return the store of the version. Make it if it does not exist yet.

    Args:
        work: Folder for all files of the benchmark.
        maker: Maker of inputs.
        vocabulary: Tokenizer of the dataset.
    """
    folder = work / "inputs" / f"loader-many-{vocabulary.name}"
    version = folder / "store" / MANY / "v1"
    if (version / MANIFEST).exists():
        return folder / "store"

    # 1. Build a small dataset of short documents.
    folder.mkdir(parents=True, exist_ok=True)
    text_path = folder / "short.jsonl"
    with text_path.open("w") as file:
        for text in islice(_short_texts(maker), _DOCUMENTS):
            file.write(json.dumps({"text": text}) + "\n")
    few = build(
        work,
        folder,
        _FEW,
        [text_path],
        vocabulary,
        seq_length=_LENGTH,
        num_shards=_FEW_SHARDS,
    )

    # 2. Commit its shards many times.
    multiply(few, version, SHARDS // _FEW_SHARDS)
    return folder / "store"


def _short_texts(maker: InputMaker) -> Iterator[str]:
    """Yield beginnings of paragraphs, without end."""
    for _, text in documents(maker.files()):
        for paragraph in text.split("\n\n"):
            if len(paragraph) > _LEAST_CHARACTERS:
                yield paragraph[:_MOST_CHARACTERS]


def multiply(version: Path, target: Path, times: int) -> None:
    """Commit a version that has each shard of another one several times.

    Nothing is done if the target is committed already.

    Args:
        version: Folder of the version to copy.
        target: Folder of the new version.
        times: Number of copies of each shard.
    """
    if (target / MANIFEST).exists():
        return
    # 1. Copy everything but the shards and the manifest.
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(
        version, target, ignore=shutil.ignore_patterns(DATA, MANIFEST, "runs")
    )

    # 2. Link the shards of each copy under unit numbers of its own.
    manifest = Manifest.from_bytes((version / MANIFEST).read_bytes())
    units = 1 + max(shard.unit for shard in manifest.files)
    files: list[ShardEntry] = []
    (target / DATA).mkdir()
    for copy_number in range(times):
        for shard in manifest.files:
            new_unit = copy_number * units + shard.unit
            new_path = shard_path(shard.split, new_unit, shard.part)
            os.link(version / shard.path, target / new_path)
            files.append(replace(shard, path=new_path, unit=new_unit))

    # 3. Commit.
    accounts: dict[str, Account] = {}
    for source_name, account in manifest.accounts.items():
        accounts[source_name] = Account.total([account] * times)
    new_manifest = replace(
        manifest,
        dataset=target.parent.name,
        files=tuple(files),
        accounts=accounts,
    )
    new_manifest.check()
    (target / MANIFEST).write_bytes(new_manifest.to_bytes())
