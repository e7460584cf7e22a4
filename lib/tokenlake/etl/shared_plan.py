"""The plan of a build, in its store: all that a worker needs that no scheduler tells what to do.

::

    runs/units/plan.json                   the newest plan: its pieces, and what a worker must have
    runs/units/00002-00000-1f2e....json    jobs of some hundred units; another plan has other names
    runs/units/lease-00017.json            somebody builds this unit, see :class:`Leases`
    runs/units/worker-node7-....json       this worker is there
    runs/units/failed-00017.json           why it could not be built

Jobs say everything by value but where the store is: each worker opens it by its own address. Nothing here is proof of
anything, and nothing of it is part of a version: what is finished has a ledger record, and without a plan the run that
publishes it makes the same one again.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self, TypeAlias, cast, final

import msgspec

from tokenlake import errors
from tokenlake.base.secrets import hide, provided_blocks, scrub
from tokenlake.base.threads import in_order
from tokenlake.etl.job import (
    EngineJob,
    Job,
    MixJob,
    PreflightJob,
    RepackJob,
    UnitJob,
    WorkJob,
    job_of,
    produced_by,
)
from tokenlake.etl.pool import seconds_from
from tokenlake.runtime.store.address import StoreAddress
from tokenlake.runtime.store.base import ObjectInfo, Store, read_files
from tokenlake.runtime.store.layout import RUNS, Layout
from tokenlake.runtime.store.sealed import DatasetName, Positive, Sealed, Sha256

WORK: Final = f"{RUNS}/units"
PLAN: Final = f"{WORK}/plan.json"

#: Units whose jobs are one object: some 200 kB.
_TOGETHER: Final = 256

_STORES: Final = ("store", "parents_store")

#: In the place of the stores of a job of parents: the path from theirs to the unit's, as of a repair.
_BELOW: Final = "below"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceProbe:
    """The job that chose the engine of a source, and what it chose: a worker that joins must choose the same."""

    job: dict[str, str]
    engine: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPiece(Sealed):
    """Jobs of some units.

    Attributes:
        common: fields that are the same in all of them, each as JSON text.
        jobs: the other fields of each.
    """

    common: dict[str, str]
    jobs: tuple[dict[str, str], ...]

    @classmethod
    def of(cls, jobs: Iterable[WorkJob]) -> Self:
        """Return the jobs, what they have in common once."""
        fields = [_fields(job) for job in jobs]
        common = dict(set[tuple[str, str]].intersection(*(set(each.items()) for each in fields)))
        own = ({name: text for name, text in each.items() if name not in common} for each in fields)
        return cls(common=common, jobs=tuple(own))

    def each(self, store: StoreAddress) -> Iterator[WorkJob]:
        """Yield the jobs, of a store at this address."""
        return (cast("WorkJob", _job(self.common | own, store)) for own in self.jobs)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPlan(Sealed):
    """What ``plan.json`` says.

    Attributes:
        number: of the plan: each run that waits for the build publishes the next.
        claimed: fingerprint of the version.
        pieces: path below the version to sha256 (hex).
        versions: name to version, of what decides bytes: the writer, Arrow, the engines of tokenizers.
        probes: of the sources of texts.
    """

    dataset: DatasetName
    version: Positive
    number: Positive
    claimed: Sha256
    pieces: dict[str, str]
    versions: dict[str, str]
    probes: tuple[SourceProbe, ...]

    @property
    def layout(self) -> Layout:
        """Where the version is."""
        return Layout(self.dataset, self.version)

    def preflights(self, store: StoreAddress) -> Iterator[PreflightJob]:
        """Yield what a machine must pass before its first unit: a job for each source of texts, or a single one."""
        of = partial(
            PreflightJob, store=store, dataset=self.dataset, version=self.version, versions=self.versions
        )
        if not self.probes:
            yield of()
        for probe in self.probes:
            yield of(probe=cast("EngineJob", _job(probe.job, store)), engine=probe.engine)

    def jobs(self, store: Store, address: StoreAddress) -> dict[int, WorkJob]:
        """Return unit to job.

        Raises:
            NotFoundError: another plan took the place of this one.
            IntegrityError: a piece is damaged.
        """
        found = read_files(store, self.layout.prefix, self.pieces)
        pieces = (PlanPiece.from_bytes(data, path) for path, data in found.items())
        return {job.unit: job for piece in pieces for job in piece.each(address)}


def read_plan(store: Store, layout: Layout) -> SharedPlan | None:
    """Return the newest plan of a build; None where there is none."""
    try:
        return SharedPlan.from_bytes(store.read(layout.key(PLAN)), layout.key(PLAN))
    except errors.NotFoundError:
        return None


def publish_plan(
    store: Store,
    layout: Layout,
    claimed: str,
    jobs: Iterable[WorkJob],
    engines: Iterable[tuple[EngineJob, str]],
) -> SharedPlan:
    """Put jobs into the store, and have them be the newest plan.

    Args:
        claimed: fingerprint of the version.
        engines: the job that chose the engine of each source, and what it chose.

    Raises:
        ConfigError: the jobs hold secrets.
        VersionConflictError: two runs publish a plan of one build, again and again.
    """
    jobs, probes = list(jobs), tuple(SourceProbe(job=_fields(job), engine=engine) for job, engine in engines)
    made = [PlanPiece.of(jobs[at : at + _TOGETHER]).to_bytes() for at in range(0, len(jobs), _TOGETHER)]
    for data in (*made, msgspec.json.encode(probes)):
        check_open(data.decode())
    used = [job.engine for job in jobs if isinstance(job, UnitJob)]
    versions = {name: text for engine in (None, *used) for name, text in produced_by(engine).items()}
    for _ in range(10):
        before = read_plan(store, layout)
        number = before.number + 1 if before else 1
        digests = [hashlib.sha256(data).hexdigest() for data in made]
        paths = [f"{WORK}/{number:05d}-{at:05d}-{sha[:16]}.json" for at, sha in enumerate(digests)]
        plan = SharedPlan(
            dataset=layout.dataset,
            version=layout.version,
            number=number,
            claimed=claimed,
            pieces=dict(zip(paths, digests, strict=True)),
            versions=versions,
            probes=probes,
        )
        store.put_all({layout.key(path): data for path, data in zip(paths, made, strict=True)})
        try:
            store.swap(layout.key(PLAN), plan.to_bytes(), before.to_bytes() if before else None)
        except errors.VersionConflictError:
            continue
        return plan
    raise errors.VersionConflictError(
        f"{layout.key(PLAN)}: other runs publish plans of this build all the time; end all but one",
        key=layout.key(PLAN),
    )


def remove_plan(store: Store, layout: Layout) -> None:
    """Remove what the workers of a build were told, and what they said: nobody needs it once the version is committed.

    Whoever commits does so, with whatever engine: the run that published the plan may be dead.
    """

    def remove(key: str) -> None:
        with suppress(errors.NotFoundError):
            store.delete(key)

    keys = [info.key for info in store.list(layout.key(WORK))]
    list(in_order(remove, keys, store.at_once))


def _fields(job: Job) -> dict[str, str]:
    """Return the fields of a job but its stores, each as JSON of plain letters: names of files may be no UTF-8."""
    fields: dict[str, Any] = msgspec.to_builtins(job, str_keys=True)
    return {
        name: json.dumps(value, sort_keys=True, separators=(",", ":"))
        for name, value in fields.items()
        if name not in _STORES
    } | ({_BELOW: json.dumps(_below(job))} if isinstance(job, MixJob | RepackJob) else {})


def _below(job: MixJob | RepackJob) -> str:
    path = job.store.url.removeprefix(job.parents_store.url)
    if path and (path == job.store.url or path[0] != "/"):
        raise errors.ConfigError(
            f"{job.dataset}@v{job.version}: its parents are in {job.parents_store}, and it goes to {job.store}; "
            "workers that join know one store"
        )
    return path


def _job(fields: Mapping[str, str], store: StoreAddress) -> Job:
    whole = {name: json.loads(text) for name, text in fields.items()}
    options, below = dict(store.options), whole.pop(_BELOW, None)
    places = {"store": {"url": store.url, "options": options}}
    if below is not None:
        places["parents_store"] = {"url": store.url.removesuffix(below), "options": options}
    return cast("Job", job_of(json.dumps(whole | places).encode()))


def check_open(text: str) -> None:
    """Raise ConfigError for a job that must not leave this machine."""
    if provided_blocks() or hide(text) != text or scrub(text) != text:
        raise errors.ConfigError(
            "this engine hands jobs to other machines, and this build needs secrets: values, URLs with passwords or "
            "signatures, or Prefect blocks. Give them by {env: NAME}, which each worker looks up in its own "
            "environment, or build with the local engine"
        )


# Why a unit could not be built. Whoever waits for the unit takes the note away, and the unit may be tried again.

_NOTE: Final = re.compile(rf".*/{WORK}/(?:(lease|failed)-(\d+)|(worker)-(.+))\.json")


def _noted(infos: Iterable[ObjectInfo], kind: str) -> dict[str, Mark]:
    """Return the unit or worker of each note of a kind among listed objects, with its mark."""
    found = ((_NOTE.fullmatch(info.key), info) for info in infos)
    named = ((name[2] or name[4], info) for name, info in found if name and kind in name.group(1, 3))
    return {name: (info.modified, info.token, info.size) for name, info in named}


def _failed_key(layout: Layout, unit: int) -> str:
    return layout.key(f"{WORK}/failed-{unit:05d}.json")


def publish_failure(store: Store, layout: Layout, unit: int, error: errors.TokenlakeError) -> None:
    """Note why a unit could not be built; without secrets, and in the place of an older note."""
    found = errors.to_json(error)
    data = json.dumps({**found, "message": hide(found["message"])}, default=str).encode()
    with suppress(errors.VersionConflictError):
        store.put_new(_failed_key(layout, unit), data)


def failed_units(infos: Iterable[ObjectInfo]) -> set[int]:
    """Return the units among listed objects that have such a note."""
    return set(map(int, _noted(infos, "failed")))


def take_failure(
    store: Store, layout: Layout, unit: int, *, keep: bool = False
) -> errors.TokenlakeError | None:
    """Take a note away and return the error in it; None where somebody else took it."""
    try:
        data = store.read(_failed_key(layout, unit))
        if not keep:
            store.delete(_failed_key(layout, unit))
    except errors.NotFoundError:
        return None
    try:
        return errors.from_json(json.loads(data))
    except (ValueError, KeyError, TypeError):
        return errors.WorkerError(f"unit {unit} failed, and the note of it is damaged", unit=unit)


# Leases: who builds which unit now, so that two workers rarely build one; and who is there at all.

LEASE_VARIABLE: Final = "TOKENLAKE_LEASE_SECONDS"
"""Environment variable: after how many seconds without a change a lease is taken over."""
_LEASE_SECONDS: Final = 60.0
_BEATS: Final = 6  # changes in that time

Mark: TypeAlias = tuple[float | None, str, int]
"""What a listing says of a lease; another one where it was changed."""


def lease_seconds() -> float:
    """Return after how many seconds a lease is over; ConfigError where the environment says no number."""
    return seconds_from(LEASE_VARIABLE, _LEASE_SECONDS)


def leased_units(infos: Iterable[ObjectInfo]) -> dict[int, Mark]:
    """Return unit to mark of the leases among listed objects."""
    return {int(unit): mark for unit, mark in _noted(infos, "lease").items()}


def present_workers(infos: Iterable[ObjectInfo]) -> dict[str, Mark]:
    """Return worker to mark of those who say that they are there, among listed objects."""
    return _noted(infos, "worker")


def last_changes(
    marks: Mapping[Any, Mark], before: Mapping[Any, tuple[Mark, float]], now: float
) -> dict[Any, tuple[Mark, float]]:
    """Return name to its mark and when that was first seen, after an earlier answer and a new listing."""
    return {
        name: known if (known := before.get(name)) and known[0] == mark else (mark, now)
        for name, mark in marks.items()
    }


@final
class Leases:
    """The leases of one worker; thread-safe.

    A lease is a small object that is created before a unit is begun, changed every few seconds while it is built, and
    removed afterwards. One that did not change for a while is of a worker that died, and is taken over by
    compare-and-swap. That while is measured by the clock of whoever waits: no two clocks are compared. A worker keeps
    one object more, which it changes as often: whoever waits learns from it that the worker is alive.

    A lease proves nothing. A worker that slept through its own builds a unit that another builds, too; both make the
    same parts, which are create-only, and the same record.

    Args:
        worker: its name, which no other has, and which a key may hold.
        seconds: after which a lease that does not change is over.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        worker: str,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._layout, self._worker = store, layout, worker
        self._seconds, self._clock = seconds, clock
        self._lock = threading.Lock()
        self._held: dict[int, bytes] = {}  # what is in the store
        self._progress: dict[int, Counter[str]] = {}
        self._presence: bytes | None = None
        self._others: dict[int, tuple[Mark, float]] = {}

    def look(self, marks: Mapping[int, Mark]) -> None:
        """Learn from a listing which leases there are, and which of them changed."""
        now = self._clock()
        with self._lock:
            others = {unit: mark for unit, mark in marks.items() if unit not in self._held}
            self._others = last_changes(others, self._others, now)

    def is_free(self, unit: int) -> bool:
        """Say whether nobody builds a unit, as far as is known here."""
        with self._lock:
            found = self._others.get(unit)
            return unit not in self._held and (found is None or self._clock() - found[1] >= self._seconds)

    def take(self, unit: int) -> bool:
        """Begin a lease, or take over one that is over; False where somebody else has it."""
        if not self.is_free(unit):
            return False
        data, key = self._content(0, {}), lease_key(self._layout, unit)
        try:
            with self._lock:
                known = unit in self._others
            self._store.swap(key, data, self._store.read(key) if known else None)
        except (errors.VersionConflictError, errors.NotFoundError):
            return False
        with self._lock:
            self._others.pop(unit, None)
            self._held[unit], self._progress[unit] = data, Counter()
        return True

    def tell(self, unit: int, progress: Mapping[str, int]) -> None:
        """Count what more is done of a unit; the next beat says it."""
        with self._lock:
            if unit in self._held:
                self._progress[unit].update(progress)

    def beat(self) -> None:
        """Say that this worker is there, and change all leases that are held; a lost one is held no longer."""
        # What was taken away, as with the plan, is made again.
        data, before = self._content(self._clock(), {}), self._presence
        self._presence = None
        with suppress(errors.StoreError, errors.VersionConflictError):
            self._store.swap(self._presence_key, data, before)
            self._presence = data
        with self._lock:
            held = list(self._held.items())
        for number, (unit, before) in enumerate(held):
            data = self._content(self._clock() + number, self._progress[unit])
            try:
                self._store.swap(lease_key(self._layout, unit), data, before)
                with self._lock:
                    if self._held.get(unit) is before:  # not released meanwhile
                        self._held[unit] = data
            except errors.VersionConflictError:
                with self._lock:
                    self._held.pop(unit, None)
            except errors.StoreError:
                continue  # the next beat comes before the lease is over

    def release(self, unit: int) -> None:
        """End a lease of ours; where that fails, it ends by itself."""
        with self._lock:
            held = self._held.pop(unit, None)
        if held is not None:
            with suppress(errors.StoreError):
                self._store.delete(lease_key(self._layout, unit))

    @property
    def _presence_key(self) -> str:
        return self._layout.key(f"{WORK}/worker-{self._worker}.json")

    @contextmanager
    def kept(self) -> Generator[None]:
        """Keep leases alive, and end them at the end, however that comes."""

        def beat() -> None:
            self.beat()
            while not stopped.wait(self._seconds / _BEATS):
                self.beat()

        stopped = threading.Event()
        thread = threading.Thread(target=beat, name="tokenlake-leases", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
            with suppress(errors.StoreError):
                self._store.delete(self._presence_key)
            for unit in list(self._held):
                self.release(unit)

    def _content(self, beat: float, progress: Mapping[str, int]) -> bytes:
        facts = {"worker": self._worker, "beat": round(beat, 3), "progress": dict(progress)}
        return json.dumps(facts, sort_keys=True).encode()


def lease_key(layout: Layout, unit: int) -> str:
    """Return the key of a unit's lease."""
    return layout.key(f"{WORK}/lease-{unit:05d}.json")


def progress_of(store: Store, layout: Layout, unit: int) -> dict[str, int]:
    """Return what a lease says is done of a unit; nothing where it is gone or is no lease."""
    with suppress(errors.StoreError, ValueError, KeyError, TypeError):
        facts: Any = json.loads(store.read(lease_key(layout, unit)))
        return {str(name): int(count) for name, count in facts["progress"].items()}
    return {}
