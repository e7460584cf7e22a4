"""The store that is damaged: every kind of dataset, a mixture, other writers' shards, tags."""

from __future__ import annotations

import hashlib
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.faults.readers import rebuild
from tests.reading.shards import OURS
from tests.reading.support import build_lake
from tests.store.support import copy_store
from tokenlake.store.address import open_store
from tokenlake.store.catalog import Catalog
from tokenlake.store.layout import Layout
from tokenlake.store.manifest import Manifest

_OTHERS: tuple[dict[str, Any], ...] = (
    {"compression": "none"},
    {"compression": "snappy", "data_page_version": "2.0"},
    {"use_dictionary": True},
)


def build(root: Path) -> Path:
    """Build it below a folder, and return where it is."""
    store = copy_store(Path(build_lake(root / "lake").url), root / "store")
    rebuild(store, "mixed", mixed=True)
    _rewritten(store)
    catalog = Catalog(open_store(store))
    for name in ("plain", "texts"):
        catalog.set_tag(name, "prod", 1)
    catalog.set_tag("plain", "next", 1)
    for path in store.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return store


def _rewritten(store: Path) -> None:
    """``foreign``: the rows of ``learned``, each shard as another writer lays it out."""
    source, target = Layout("learned", 1), Layout("foreign", 1)
    manifest = Catalog(open_store(store)).manifest("learned", 1)
    shards = []
    for number, shard in enumerate(manifest.files):
        table = pq.read_table(store / source.key(shard.path))
        sink = io.BytesIO()
        group = max(1, table.num_rows // 2)
        pq.write_table(table, sink, row_group_size=group, **{**OURS, **_OTHERS[number % len(_OTHERS)]})
        path = store / target.key(shard.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sink.getvalue())
        sha256 = hashlib.sha256(sink.getvalue()).hexdigest()
        starts = tuple(range(0, table.num_rows, group))
        shards.append(replace(shard, bytes=len(sink.getvalue()), sha256=sha256, row_groups=starts))
    made: Manifest = replace(manifest, dataset="foreign", files=tuple(shards), other_files={})
    (store / target.manifest).write_bytes(made.to_bytes())
