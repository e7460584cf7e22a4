"""A committed version of 10,000 shards: what a small build wrote, each shard a hundred
times under other numbers.

The shards are real files (hard links), the manifest is the library's own and its
account closes; only the ledger has no records of the copies, and no reader looks at it.
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
_FEW: Final = "few"
SHARDS: Final = 10_000
_BUILT: Final = 100
_LENGTH: Final = 64  # ids of a row
_DOCUMENTS: Final = 2_400  # of up to 300 characters: about 16 rows a shard


def make_many(work: Path, maker: InputMaker, vocabulary: Vocabulary) -> Path:
    """Return the store that has the version, made if it is not there."""
    folder = work / "inputs" / f"loader-many-{vocabulary.name}"
    version = folder / "store" / MANY / "v1"
    if not (version / MANIFEST).exists():
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "short.jsonl"
        path.write_text(
            "".join(json.dumps({"text": text}) + "\n" for text in _texts(maker))
        )
        built = build(
            work,
            folder,
            _FEW,
            [path],
            vocabulary,
            seq_length=_LENGTH,
            num_shards=_BUILT,
        )
        multiply(built, version, SHARDS // _BUILT)
    return folder / "store"


def _texts(maker: InputMaker) -> Iterator[str]:
    pieces = (
        piece[:300]
        for _, text in documents(maker.files())
        for piece in text.split("\n\n")
    )
    return islice((piece for piece in pieces if len(piece) > 100), _DOCUMENTS)


def multiply(built: Path, version: Path, times: int) -> None:
    """Commit a version that has each shard of another one so many times; it is new,
    or was made before.
    """
    if (version / MANIFEST).exists():
        return
    shutil.rmtree(version, ignore_errors=True)
    shutil.copytree(
        built, version, ignore=shutil.ignore_patterns(DATA, MANIFEST, "runs")
    )
    manifest = Manifest.from_bytes((built / MANIFEST).read_bytes())
    files: list[ShardEntry] = []
    units = 1 + max(shard.unit for shard in manifest.files)
    (version / DATA).mkdir()
    for copy in range(times):
        for shard in manifest.files:
            unit = copy * units + shard.unit
            path = shard_path(shard.split, unit, shard.part)
            os.link(built / shard.path, version / path)
            files.append(replace(shard, path=path, unit=unit))
    accounts = {
        name: Account.total([account] * times)
        for name, account in manifest.accounts.items()
    }
    made = replace(
        manifest, dataset=version.parent.name, files=tuple(files), accounts=accounts
    )
    made.check()
    (version / MANIFEST).write_bytes(made.to_bytes())
