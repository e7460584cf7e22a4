"""Every call on the store of a build is hit once: by SIGKILL, by an error of the disk,
by a full disk.

Enumerated, not sampled (``--faults all``): an undisturbed run under strace says which
calls there are, in which thread; then each of them is hit in a run of its own. See
:mod:`tests.faults.crash_support` for the laws.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Cases
from tests.faults.crash_support import (
    FAMILIES,
    Bench,
    Fault,
    Role,
    Scenario,
    bench_in,
    configuration,
    require_strace,
    write_jsonl,
)
from tokenlake import Catalog
from tokenlake.etl import build_dataset
from tokenlake.runtime.store import new_temp_name, open_store

DEAD = 2**22 + 5  # larger than any process id


def scenarios(folder: Path, tokenizer: Path) -> list[Scenario]:
    """A new version with one worker and with two, one over leftovers, one that
    reuses, and a tag that moves.
    """
    inputs, more = folder / "in", folder / "more"
    write_jsonl(inputs, 0, 3)
    write_jsonl(more, 0, 4)
    config, next_one = configuration(inputs, tokenizer), configuration(more, tokenizer)
    committed = folder / "committed"
    built(config, committed)
    roles: tuple[Role, ...] = ("main", "unit", "worker")
    return [
        Scenario("new", roles, build(config), None, config, first=True),
        Scenario(
            "leftovers",
            ("main", "worker"),
            build(config),
            leftovers(folder, committed),
            config,
        ),
        Scenario("reuse", ("main",), build(next_one), committed, next_one),
        Scenario(
            "two workers", ("unit", "worker"), build(config, workers=2), None, config
        ),
        Scenario("tag", ("main",), tag(), tagged(folder, config, next_one)),
    ]


def build(config: dict[str, Any], workers: int = 1) -> dict[str, Any]:
    return {"op": "build", "config": config, "workers": workers, "retries": 2}


def tag() -> dict[str, Any]:
    return {
        "op": "tag",
        "store": "{store}",
        "dataset": "set",
        "tag": "prod",
        "version": 2,
    }


def built(config: dict[str, Any], store: Path) -> None:
    build_dataset(
        json.loads(json.dumps(config).replace("{store}", str(store))), workers=1
    )


def leftovers(folder: Path, committed: Path) -> Path:
    """What runs that died left: one finished unit, an orphan of other bytes, strays,
    and a dead one's file.
    """
    store = folder / "leftovers"
    shutil.copytree(committed, store)
    version = store / "set" / "v1"
    for name in (
        "manifest.json",
        "ledger/00000.json",
        "ledger/00002.json",
        "data/train-00002-00.parquet",
    ):
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


#: Of 100 chosen calls so many may not be met again: two workers share the units as it happens.
MISSED = 10


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("bench")
    require_strace(folder)
    with bench_in(folder) as bench:
        yield bench


@pytest.fixture(scope="module")
def disturbed(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path
) -> list[Scenario]:
    return scenarios(tmp_path_factory.mktemp("scenarios"), tokenizer_dir)


@pytest.mark.parametrize("fault", ["KILL", "EIO", "ENOSPC"])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_call_that_is_hit_costs_nothing_that_was_finished(
    family: str, fault: Fault, bench: Bench, disturbed: list[Scenario], cases: Cases
) -> None:
    every = [
        case
        for scenario in disturbed
        for case in bench.enumerate(scenario, family, fault)
    ]
    assert every, f"no {family} on the store: is it another call on this machine?"
    chosen, missed = cases.choose(every, sample=2), 0
    for case in chosen:
        verdict = bench.run(case)
        if not verdict.hit:
            missed += 1
            continue
        cases.add(
            f"crash: {family} {fault}",
            survived=not verdict.wrong,
            redone=verdict.redone,
            silent=verdict.silent,
            note=f"{case}: {'; '.join(verdict.wrong)}" if verdict.wrong else "",
        )
    assert missed <= max(2, len(chosen) * MISSED // 100), (
        f"{missed} of {len(chosen)} calls were not met"
    )
