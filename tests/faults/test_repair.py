"""Repair under random damage, and killed at every moment: it leaves the committed
bytes; and repair in buckets.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.etl.remote_builds_support import bucket
from tests.faults.conftest import Cases
from tests.integrity.support import (
    KINDS,
    build,
    damage,
    files_of,
    repaired_until_killed,
    tree,
)
from tests.store.support import linked_copy, settings, write_inputs
from tokenlake import Catalog, repair, verify
from tokenlake.etl import WorkerPool
from tokenlake.runtime.store import open_store

_RANDOM, _KILLED = 120, 24  # cases in all mode
# A version without a manifest is none, and one without a claim was copied from
# elsewhere.
_KINDS = {"manifest.json": KINDS[:4], "claim.json": KINDS[:4]}


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path, pool: WorkerPool
) -> Path:
    """``small`` v1 and v2, which share a unit, and a packed copy of v1's rows as
    ``again``.
    """
    root = tmp_path_factory.mktemp("repair-faults")
    write_inputs(root)
    chosen = settings(root, tokenizer_dir)
    build(chosen, pool)
    (root / "notes" / "sea.txt").write_text("The tide went out.\nThe tide came in.\n")
    build(chosen, pool)
    tokens = {**chosen, "name": "tokens", "pack": {}}
    build(tokens, pool)
    again = {"name": "again", "datasets": [{"name": "t", "dataset": "tokens"}]}
    build({**again, "pack": chosen["pack"], "save": chosen["save"]}, pool)
    return root


def _some(lake: Path, dice: Random) -> list[tuple[Path, str]]:
    """Choose files to damage, and how."""
    files = [path for version in _versions(lake) for path in files_of(version)]
    chosen = dice.sample(files, dice.randrange(1, 9))
    return [(path, dice.choice(_KINDS.get(path.name, KINDS))) for path in chosen]


def _versions(lake: Path) -> list[Path]:
    return [lake / name for name in ("small/v1", "small/v2", "tokens/v1", "again/v1")]


def _repair_all(lake: Path) -> bool:
    """Repair every version, parents first; say whether all is well then, by the
    reports.
    """
    names = ("small@v1", "small@v2", "tokens@v1", "again@v1")
    reports = [repair(lake, name) for name in names]
    return all(report.ok for report in reports)


def test_random_damage_is_repaired_byte_for_byte(
    built: Path, tmp_path: Path, cases: Cases
) -> None:
    expected = tree(built / "store")
    for seed in cases.choose(range(_RANDOM), sample=12):
        lake, dice = linked_copy(built / "store", tmp_path / str(seed)), Random(seed)
        chosen = _some(lake, dice)
        for path, kind in chosen:
            if path.exists() and path.stat().st_size:
                damage(path, kind, dice)
        said = _repair_all(lake)
        same = tree(lake) == expected
        note = f"seed {seed}: {[(str(path.relative_to(lake)), kind) for path, kind in chosen]}"
        cases.add(
            "repair: random damage",
            survived=said and same,
            silent=int(said and not same),
            note=note,
        )


def test_a_repair_may_be_killed_at_any_moment(
    built: Path, tmp_path: Path, cases: Cases
) -> None:
    """Before and after each of its writes; the next one finishes, and until then
    nothing is worse than it was.
    """
    expected = tree(built / "store")
    for moment in cases.choose(range(1, _KILLED + 1), sample=3):
        lake, dice = (
            linked_copy(built / "store", tmp_path / str(moment)),
            Random(moment),
        )
        paths = [
            path
            for path in files_of(lake / "small" / "v2")
            if path.name != "manifest.json"
        ]
        for path in paths:
            damage(path, KINDS[dice.randrange(4)], dice)
        bad = tree(lake)
        code = repaired_until_killed(lake, "small@v2", moment)
        half = tree(lake)
        torn = [
            n
            for n in half
            if ".tmp-" not in n and half[n] not in (bad.get(n), expected[n])
        ]
        left = len(verify(open_store(lake), "small", 2).problems)
        said = repair(lake, "small@v2").ok and repair(lake, "small@v1").ok
        survived = (
            code in (-signal.SIGKILL, 0)
            and not torn
            and said
            and tree(lake) == expected
        )
        note = f"moment {moment}: exit {code}, torn {torn}, {left} of {len(paths)} left"
        cases.add("repair: kill -9", survived=survived, note=note)
    assert Catalog(open_store(built / "store")).latest("small") == 2


@pytest.fixture(scope="module")
def keyed_pool() -> Iterator[WorkerPool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKE_KEY", "testing")
        patch.setenv("LAKE_SECRET", "testing")
        with WorkerPool(1) as workers:
            yield workers


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_version_in_a_bucket_comes_back(
    tmp_path: Path, tokenizer_dir: Path, keyed_pool: WorkerPool, scheme: str
) -> None:
    write_inputs(tmp_path)
    with bucket(scheme) as place:
        address = place.address("store")
        config = settings(tmp_path, tokenizer_dir)
        build(
            {
                **config,
                "save": {
                    "output_dir": address.url,
                    "storage_options": dict(address.options),
                },
            },
            keyed_pool,
        )
        before = {
            key: data
            for key, data in place.everything("store").items()
            if "/runs/" not in key
        }
        place.put(
            "store",
            {
                f"small/v1/{path}": b"damaged"
                for path in ("data/train-00000-00.parquet", "README.md")
            },
        )
        report = repair(address, "small")  # whatever keys opened it, no run kept them
        assert report.ok, report.files
        assert {file.path: file.how for file in report.files} == {
            "data/train-00000-00.parquet": "rebuilt",
            "README.md": "rendered",
        }
        after = {
            key: data
            for key, data in place.everything("store").items()
            if "/runs/" not in key
        }
        assert after == before
        assert verify(open_store(address), "small", 1, deep=True).ok
