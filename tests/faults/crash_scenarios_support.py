"""The runs that are disturbed, and the stores they begin with."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

from tests.faults.crash_support import Role, Scenario, configuration, write_jsonl
from tokenlake.etl.runner import build_dataset
from tokenlake.store.address import open_store
from tokenlake.store.catalog import Catalog
from tokenlake.store.local_files import new_temp_name

DEAD = 2**22 + 5  # larger than any process id


def scenarios(folder: Path, tokenizer: Path) -> list[Scenario]:
    """A new version with one worker and with two, one over leftovers, one that reuses, and a tag that moves."""
    inputs, more = folder / "in", folder / "more"
    write_jsonl(inputs, 0, 3)
    write_jsonl(more, 0, 4)
    config, next_one = configuration(inputs, tokenizer), configuration(more, tokenizer)
    committed = folder / "committed"
    built(config, committed)
    roles: tuple[Role, ...] = ("main", "unit", "worker")
    return [
        Scenario("new", roles, build(config), None, config, first=True),
        Scenario("leftovers", ("main", "worker"), build(config), leftovers(folder, committed), config),
        Scenario("reuse", ("main",), build(next_one), committed, next_one),
        Scenario("two workers", ("unit", "worker"), build(config, workers=2), None, config),
        Scenario("tag", ("main",), tag(), tagged(folder, config, next_one)),
    ]


def build(config: dict[str, Any], workers: int = 1) -> dict[str, Any]:
    return {"op": "build", "config": config, "workers": workers, "retries": 2}


def tag() -> dict[str, Any]:
    return {"op": "tag", "store": "{store}", "dataset": "set", "tag": "prod", "version": 2}


def built(config: dict[str, Any], store: Path) -> None:
    build_dataset(json.loads(json.dumps(config).replace("{store}", str(store))), workers=1)


def leftovers(folder: Path, committed: Path) -> Path:
    """What runs that died left: one finished unit, an orphan of other bytes, strays, and a dead one's file."""
    store = folder / "leftovers"
    shutil.copytree(committed, store)
    version = store / "set" / "v1"
    for name in ("manifest.json", "ledger/00000.json", "ledger/00002.json", "data/train-00002-00.parquet"):
        (version / name).unlink()
    for name in ("README.md", "config.yaml", "data/train-00000-00.parquet"):
        rewrite(version / name, b"what another release wrote")
    rewrite(version / "data" / "train-00001-01.parquet", b"a part that no record names")
    rewrite(version / f".tmp-{machine()}-{DEAD}-00", b"half a file")
    return store


def tagged(folder: Path, config: dict[str, Any], next_one: dict[str, Any]) -> Path:
    """Two versions, and a tag on the first."""
    store = folder / "tagged"
    built(config, store)
    built(copy.deepcopy(next_one), store)
    Catalog(open_store(store)).set_tag("set", "prod", 1)
    return store


def rewrite(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    path.chmod(0o444)


def machine() -> str:
    """The machine's part of a temporary file's name."""
    return new_temp_name().removeprefix(".tmp-").rsplit("-", 2)[0]
