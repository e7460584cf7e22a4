"""The store engine: workers that join by the plan in the store make the bytes of a
build on one machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.etl.remote_builds_support import (
    Bucket,
    Files,
    bucket,
    settings,
    stored,
    write_inputs,
)
from tests.rowwise.mixed_store import settings as mixture
from tests.servers.s3 import KEY, SECRET
from tokenlake import BuildResult, RepairReport, repair, verify
from tokenlake.base import remember
from tokenlake.errors import (
    BadRecordError,
    ConfigError,
    EngineMismatchError,
    NotFoundError,
    VersionConflictError,
    WorkerDiedError,
    WorkerError,
)
from tokenlake.etl import (
    BuildSession,
    InProcessPool,
    Job,
    UnitJob,
    Workbench,
    build_dataset,
)
from tokenlake.etl.job import REFERENCE
from tokenlake.etl.shared_plan import (
    PLAN,
    WORK,
    Leases,
    leased_units,
    publish_plan,
    read_plan,
)
from tokenlake.etl.store_executor import WorkDone, join_build
from tokenlake.runtime.store import Layout, Store, StoreAddress, open_store

V1 = Layout("small", 1)

WORK_COMMAND = "import sys; from tokenlake.cli.app import main; sys.exit(main())"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bench: Workbench) -> None:
    monkeypatch.setenv("LAKE_KEY", KEY)
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    monkeypatch.setenv("TOKENLAKE_SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setenv("TOKENLAKE_LEASE_SECONDS", "2")
    monkeypatch.setattr(
        "tokenlake.etl.store_executor.waiting_run._SECONDS_BETWEEN_LOOKS", 0.02
    )
    monkeypatch.setattr(
        "tokenlake.etl.store_executor.joined_worker._SECONDS_BETWEEN_LOOKS", 0.02
    )
    monkeypatch.setattr(
        "tokenlake.etl.store_executor.named_builds._SECONDS_BETWEEN_TRIES", 0.02
    )
    # The run that waits needs a worker for the choice of engines alone.
    monkeypatch.setattr(
        "tokenlake.etl.store_executor.waiting_run.WorkerPool",
        lambda workers: _Workers(bench),
    )


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("inputs")
    write_inputs(root)
    return root


@pytest.fixture(scope="module")
def s3() -> Iterator[Bucket]:
    with bucket("s3") as lake:
        yield lake


@pytest.fixture(scope="module")
def expected(
    inputs: Path,
    tokenizer_dir: Path,
    bench: Workbench,
    tmp_path_factory: pytest.TempPathFactory,
) -> Files:
    """The files of the same build by one process."""
    folder = tmp_path_factory.mktemp("local")
    build_dataset(settings(inputs, tokenizer_dir, folder), pool=_Workers(bench))
    return stored(folder)


class _Workers:
    """Jobs in this process; `first` sees each before it is done."""

    def __init__(
        self, bench: Workbench, first: Callable[[Job], None] = lambda job: None
    ) -> None:
        self.workers, self._pool, self._first = 1, InProcessPool(bench), first

    def run(self, job: Job, on_progress: Any = lambda fields: None) -> Any:
        self._first(job)
        return self._pool.run(job, on_progress)

    def expect(self, *ignored: object) -> None: ...
    def cancel(self) -> None: ...
    def close(self) -> None: ...


@contextmanager
def _run(config: dict[str, Any]) -> Iterator[Callable[[], BuildResult]]:
    """Plan, and wait for workers, in a thread; gives a function that waits for the
    end.
    """
    with _beside(lambda: build_dataset(config, executor="store", retries=0)) as end:
        yield end


@contextmanager
def _beside(act: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Do something in a thread; gives a function that waits for what comes of it."""
    ends: list[Any] = []

    def run() -> None:
        try:
            ends.append(act())
        except Exception as error:
            ends.append(error)

    def end() -> Any:
        thread.join(200)
        assert ends, "it did not end"
        if isinstance(ends[0], Exception):
            raise ends[0]
        return ends[0]

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield end
    thread.join(200)


def _join(where: StoreAddress | str, bench: Workbench, **more: Any) -> WorkDone:
    first, layout = more.pop("first", lambda job: None), more.pop("layout", V1)
    pool: Any = _Workers(bench, first)
    return join_build(StoreAddress.of(where), layout, pool, patience=200, **more)


@pytest.mark.parametrize("scheme", ["folder", "s3", "gs"])
def test_any_store_gives_the_bytes_of_a_local_build(
    scheme: str,
    inputs: Path,
    tokenizer_dir: Path,
    bench: Workbench,
    expected: Files,
    tmp_path: Path,
    request: pytest.FixtureRequest,
):
    with ExitStack() as stack:
        place: Any = tmp_path / "store"
        if scheme == "s3":
            place = request.getfixturevalue("s3")
        elif scheme == "gs":
            place = stack.enter_context(bucket(scheme))
        where = (
            StoreAddress(str(place)) if scheme == "folder" else place.address("lake")
        )
        end = stack.enter_context(_run(settings(inputs, tokenizer_dir, where)))
        done = _join(where, bench)
        result = end()
        assert (done.built, done.found, result.status) == (3, 0, "built")
        assert stored(place, "lake" if scheme != "folder" else "") == expected
        store = open_store(where)
        assert verify(store, "small", 1).ok
        # Nothing that workers were told stays, and who comes late has nothing to do.
        assert not list(store.list(V1.key(WORK)))
        assert _join(where, bench) == WorkDone(0, 0)


@pytest.mark.integration
def test_killed_workers_cost_nothing_but_their_unit(
    inputs: Path, tokenizer_dir: Path, expected: Files, bench: Workbench, s3: Bucket
):
    """One worker on a bucket dies with a unit in its hands, and so does the run that
    waits.
    """
    with ExitStack() as stack:
        where = s3.address("killed")
        config, store = settings(inputs, tokenizer_dir, where), open_store(where)
        environment = os.environ | {
            "TOKENLAKE_STORE_OPTIONS": json.dumps(where.options)
        }
        code = "import json, sys, tokenlake as tl; tl.build_dataset(json.loads(sys.argv[1]), executor='store')"
        run = subprocess.Popen(
            [sys.executable, "-c", code, json.dumps(config)], env=environment
        )
        stack.callback(run.wait)
        stack.callback(run.kill)
        _within(200, lambda: read_plan(store, V1) is not None)
        run.kill()
        dying = Leases(store, V1, "dying", 2)
        assert dying.take(1)  # and never a word again
        command = [
            sys.executable,
            "-c",
            WORK_COMMAND,
            "work",
            where.url,
            "small",
            "--workers",
            "1",
        ]
        done = subprocess.run(
            [*command, "--share", "0/2", "--json"],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"built": 3, "found": 0}
        result = build_dataset(config, pool=_Workers(bench))
        assert (result.status, result.units_resumed) == ("resumed", 3)
        assert stored(s3, "killed") == expected
        # Whoever commits removes the plan, though the run that published it is dead.
        assert not list(store.list(V1.key(WORK)))


def test_a_mixture_and_its_repair_are_built_by_whoever_joins(
    tokenizer_dir: Path, bench: Workbench, tmp_path: Path
):
    """The tokens of two sources and the rows of both; then what was damaged of each,
    beside the version.
    """
    config = mixture(tmp_path, tokenizer_dir)
    build_dataset(config, pool=_Workers(bench))
    place = str(tmp_path / "shared")
    with _run(config | {"save": {"output_dir": place}}) as end:
        for name in ("pile.code.tokens", "pile.web.tokens", "pile"):
            assert _join(place, bench, layout=Layout(name, 1)).built >= 1
        end()
    whole = stored(tmp_path / "store")
    assert stored(Path(place)) == whole
    lost = [
        *(tmp_path / "shared/pile").rglob("*.parquet"),
        *(tmp_path / "shared").rglob("*.web.tokens/v1/ledger/*"),
    ]
    for path in lost:
        path.unlink()
    for name in ("pile.web.tokens", "pile"):
        told: list[str] = []
        with _beside(partial(_repaired, place, name, told)) as end:
            _join(f"{place}/{name}/v1/runs/repair", bench, layout=Layout(name, 1))
            report = end()
        assert report.ok, report.files
        assert {file.how for file in report.files} == {"rebuilt"}
        assert (
            f"waiting for workers: tokenlake work {name}@v1 --store {place}/{name}/v1/runs/repair"
            in told
        )
        assert not list((tmp_path / f"shared/{name}/v1/runs/repair").rglob("*.json"))
    assert stored(Path(place)) == whole


def _repaired(place: str, name: str, told: list[str]) -> RepairReport:
    return repair(
        place,
        name,
        executor="store",
        on_progress=lambda progress: told.append(progress.doing),
    )


def _within(seconds: float, met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_unit_that_cannot_be_built_ends_the_run_with_its_error(
    inputs: Path, tokenizer_dir: Path, bench: Workbench, tmp_path: Path
):
    def first(job: Job) -> None:
        if isinstance(job, UnitJob) and job.unit == 1:
            raise BadRecordError("pages.jsonl:6: no text", file="pages.jsonl")

    place = str(tmp_path / "store")
    with _run(settings(inputs, tokenizer_dir, place)) as end:
        # The worker stays for a while, as another plan may come.
        with pytest.raises(BadRecordError, match=r"pages\.jsonl:6"):
            _join(place, bench, first=first)
        with pytest.raises(BadRecordError, match=r"pages\.jsonl:6"):
            end()
    assert len(list((tmp_path / "store/small/v1/ledger").iterdir())) == 2
    # The next run has it tried again.
    with _run(settings(inputs, tokenizer_dir, place)) as end:
        _within(
            200, lambda: getattr(read_plan(open_store(place), V1), "number", 0) == 2
        )
        _join(place, bench)
        assert end().status == "resumed"


def test_a_worker_that_dies_is_tried_again_and_a_condemned_engine_gives_way(
    inputs: Path,
    tokenizer_dir: Path,
    bench: Workbench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    # A worker with nothing to do stays for so long: a machine that stands still must
    # not make it miss the next plan.
    monkeypatch.setenv("TOKENLAKE_LEASE_SECONDS", "120")
    seen: list[tuple[int, str]] = []

    def first(job: Job) -> None:
        if isinstance(job, UnitJob):
            seen.append((job.unit, job.engine))
            if len(seen) == 1:
                raise WorkerDiedError("killed", pid=1)
            if job.unit == 1 and job.engine != REFERENCE:
                raise EngineMismatchError("it gave other ids", file="x")

    config = settings(inputs, tokenizer_dir, tmp_path / "store")
    with _run(config) as end:
        _join(str(tmp_path / "store"), bench, first=first)
        manifest = end().manifest
    assert seen[0] == (0, "gigatoken")
    assert seen.count(seen[0]) >= 2
    assert {"tokenizers"} == {
        json.loads(path.read_bytes())["engine"]
        for path in (tmp_path / "store/small/v1/ledger").iterdir()
    }
    assert verify(open_store(tmp_path / "store"), "small", manifest.version).ok


@pytest.fixture
def planned(
    inputs: Path, tokenizer_dir: Path, bench: Workbench, tmp_path: Path
) -> Store:
    """A claimed build whose plan is published, and nobody works on."""
    session = BuildSession.open(settings(inputs, tokenizer_dir, tmp_path / "store"))
    store, pool = open_store(tmp_path / "store"), _Planner(bench)
    session.announce(pool)
    publish_plan(store, V1, session.plan.fingerprint, pool.jobs, pool.engines)
    return store


class _Planner(_Workers):
    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self.engines: list[Any] = []

    def expect(self, count: int, jobs: Any) -> None:
        self.jobs = list(jobs())

    def run(self, job: Any, on_progress: Any = lambda fields: None) -> Any:
        verdict = super().run(job)
        self.engines.append((job, verdict["engine"]))
        return verdict


def test_a_machine_that_would_make_other_bytes_is_refused_by_name(
    planned: Store, bench: Workbench
):
    plan = read_plan(planned, V1)
    assert plan is not None
    other = replace(
        plan, versions=plan.versions | {"gigatoken": "0.1.2", "pyarrow": "3.0"}
    )
    planned.swap(V1.key(PLAN), other.to_bytes(), plan.to_bytes())
    with pytest.raises(
        ConfigError,
        match=r"It has gigatoken 0\.\d+\.\d+ \(the plan has 0\.1\.2\); pyarrow",
    ):
        _join(planned.url, bench)


def test_a_machine_that_cannot_read_the_inputs_is_refused(
    planned: Store, bench: Workbench, inputs: Path
):
    (inputs / "talks").rename(inputs / "gone")
    try:
        with pytest.raises(ConfigError, match=r"source 'talks'.*talks\.jsonl"):
            _join(planned.url, bench)
    finally:
        (inputs / "gone").rename(inputs / "talks")
    assert not (Path(planned.url) / "small/v1/ledger").exists()


def test_a_plan_that_would_hold_a_secret_is_not_published(
    inputs: Path, tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = settings(inputs, tokenizer_dir, tmp_path / "store")
    monkeypatch.setenv("TOKENLAKE_ALLOWED_SCHEMES", "memory")
    fsspec.filesystem("memory").pipe_file(
        "/secret/a.jsonl", b'{"text": "some words"}\n'
    )
    where = {
        "data_files": "memory://secret/a.jsonl",
        "storage_options": {"token": "a-secret-of-mine"},
    }
    config["datasets"] = [config["datasets"][0] | where]
    remember(["a-secret-of-mine"])
    with pytest.raises(ConfigError, match=r"contains secrets.*\{env: NAME\}"):
        build_dataset(config, executor="store")
    texts = [
        path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()
    ]
    assert not any(b"a-secret-of-mine" in text for text in texts)


def test_no_plan_and_a_build_that_was_given_up_are_said(
    planned: Store, bench: Workbench
):
    pool: Any = _Workers(bench)
    with pytest.raises(NotFoundError, match="--executor store"):
        join_build(StoreAddress(planned.url), Layout("small", 2), pool)

    def sweep(job: Job) -> None:
        claim = planned.read(V1.claim)
        if b'"state"' not in claim:
            from tokenlake.runtime.store import Claim

            swept = Claim.from_bytes(claim, "claim").turned("swept")
            planned.swap(V1.claim, swept.to_bytes(), claim)

    with pytest.raises(VersionConflictError, match="gc removed it"):
        _join(planned.url, bench, first=sweep)


def test_a_ledger_that_cannot_be_watched_ends_the_run(
    inputs: Path, tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def unknown(infos: object) -> set[int]:
        raise KeyError("a clock")

    monkeypatch.setattr(
        "tokenlake.etl.store_executor.waiting_run.leased_units", unknown
    )
    with pytest.raises(
        WorkerError, match=r"the ledger of small/v1 cannot be watched: KeyError"
    ):
        build_dataset(
            settings(inputs, tokenizer_dir, tmp_path / "store"),
            executor="store",
            retries=0,
        )


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_lease_is_one_workers_until_it_stops_changing(tmp_path: Path):
    clock, store = _Clock(), open_store(tmp_path)
    one, other = (Leases(store, V1, name, 60, clock) for name in ("one", "other"))

    def look() -> None:
        other.look(leased_units(store.list(V1.key(WORK))))

    assert one.take(7) and not other.take(7)
    look()
    for _ in range(3):  # three minutes of a unit that takes long
        clock.now += 59
        one.tell(7, {"bytes": 10})
        one.beat()
        look()
        assert not other.take(7)
    clock.now += 59
    look()
    assert not other.take(7)
    clock.now += 1
    assert other.take(7)
    # Who slept learns of it, and takes nothing away.
    one.beat()
    one.release(7)
    assert leased_units(store.list(V1.key(WORK))).keys() == {7}
    other.release(7)
    assert not leased_units(store.list(V1.key(WORK)))
