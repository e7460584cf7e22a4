"""A pool on a cluster, with slots in this process: what goes to a machine, what it
refuses, and the bytes that come.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tokenlake
from tests.etl.remote_builds_support import bucket, settings, stored, write_inputs
from tests.rowwise.mixed_store import settings as mixture
from tests.servers.s3 import KEY, SECRET
from tokenlake import repair
from tokenlake.errors import ConfigError
from tokenlake.etl import InProcessPool, Workbench, WorkerPool, build_dataset, runner
from tokenlake.etl.cluster_pool import ClusterPool, Slot, SlotLostError
from tokenlake.runtime.store import open_store


class _Nodes:
    """A cluster of two slots; keeps what it was asked, and loses the slot of the
    third job, and the room for it.
    """

    workers = 2

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.slots: list[Slot] = []
        self.space = 2

    def room(self) -> int:
        return self.space

    def start(self) -> Slot:
        assert len(self.slots) < self.space, "a slot without room would never answer"
        self.slots.append(Slot())
        return self.slots[-1]

    def ask(self, slot: Slot, preflight: bytes, line: bytes) -> bytes:
        self.asked += [preflight, line]
        if len(self.asked) == 6:
            self.space = 1
            raise SlotLostError("its node died")
        return slot.run(preflight, line)

    def end(self, slot: Slot) -> None:
        self.slots.remove(slot)

    def close(self) -> None: ...


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, bench: Workbench) -> Iterator[_Nodes]:
    cluster = _Nodes()
    monkeypatch.setattr(
        "tokenlake.etl.cluster_pool.slots.WorkerPool",
        lambda workers: InProcessPool(bench),
    )
    real = runner.open_pool

    def opened(engine: str | None, *more: Any) -> Any:
        return ClusterPool(lambda: cluster) if engine == "dask" else real(None, *more)

    for module in ("tokenlake.etl.runner", "tokenlake.etl.integrity.repair"):
        monkeypatch.setattr(f"{module}.open_pool", opened)
    yield cluster
    assert not cluster.slots


def test_a_mixture_and_its_repair_are_made_on_a_cluster(
    nodes: _Nodes, tokenizer_dir: Path, pool: WorkerPool, tmp_path: Path
):
    config = mixture(tmp_path, tokenizer_dir)
    build_dataset(config, pool=pool)
    build_dataset(
        config | {"save": {"output_dir": str(tmp_path / "cluster")}}, executor="dask"
    )
    whole = stored(tmp_path / "store")
    assert stored(tmp_path / "cluster") == whole
    assert {"unit", "mix", "engine"} == {
        json.loads(line)["op"] for line in nodes.asked[1::2]
    }
    for path in (tmp_path / "cluster/pile").rglob("*.parquet"):
        path.unlink()
    assert repair(tmp_path / "cluster", "pile", executor="dask").ok
    assert stored(tmp_path / "cluster") == whole
    assert f"{tmp_path}/cluster/pile/v1/runs/repair" in nodes.asked[-1].decode()


def test_what_goes_to_a_machine_holds_no_secret(
    nodes: _Nodes, tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LAKE_KEY", KEY)
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    monkeypatch.setenv("TOKENLAKE_SCRATCH", str(tmp_path / "scratch"))
    write_inputs(tmp_path)
    with bucket("s3") as lake:
        build_dataset(
            settings(tmp_path, tokenizer_dir, lake.address("open")), executor="dask"
        )
    said = b"".join(nodes.asked)
    assert b'{"env":"LAKE_SECRET"}' in said
    assert SECRET.encode() not in said and KEY.encode() not in said


def _other_versions(engine: str | None = None) -> dict[str, str]:
    return {"tokenlake": tokenlake.__version__, "pyarrow": "3.0", "gigatoken": "3.0"}


def _other_engine(self: Workbench, job: Any) -> dict[str, str]:
    return {"engine": "tokenizers", "reason": "gigatoken is not installed"}


@pytest.mark.parametrize("what", ["versions", "engine", "store", "inputs"])
def test_a_machine_that_would_make_other_bytes_ends_the_build_by_name(
    what: str,
    nodes: _Nodes,
    tokenizer_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    write_inputs(tmp_path)
    expected, act = _difference(what, tmp_path, monkeypatch)
    whole, seen = nodes.ask, list[bytes]()

    def ask(slot: Slot, preflight: bytes, line: bytes) -> bytes:
        if preflight and not seen:
            seen.append(preflight)
            act()
        return whole(slot, preflight, line)

    monkeypatch.setattr(nodes, "ask", ask)
    with pytest.raises(ConfigError, match=expected):
        build_dataset(
            settings(tmp_path, tokenizer_dir, tmp_path / "store"), executor="dask"
        )
    assert not (tmp_path / "store/small/v1/manifest.json").exists()


def _difference(
    what: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Callable[[], object]]:
    """What a machine says of itself, and how it comes to be so."""
    if what == "versions":
        return (
            r"this machine \(.+\) cannot build small@v1.*It has gigatoken 3\.0 \(the plan has 0\..*; pyarrow 3\.0 \(",
            lambda: monkeypatch.setattr(
                "tokenlake.etl.job.versions.produced_by", _other_versions
            ),
        )
    if what == "engine":
        return (
            r"its tokenizer backend is tokenizers \(gigatoken is not installed\), expected gigatoken",
            (lambda: monkeypatch.setattr(Workbench, "_choose_backend", _other_engine)),
        )
    if what == "store":
        return r"store has no small/v1/claim\.json here", (
            lambda: monkeypatch.setattr(
                Workbench, "_store", lambda *ignored: open_store(root / "own disk")
            )
        )
    return r"source 'notes': .*notes\.jsonl", (root / "notes/notes.jsonl").unlink
