"""The plan of a build, in its store: all that a worker needs that no scheduler tells what to do.

::

    runs/units/plan.json                   the newest plan: its pieces, and what a worker must have
    runs/units/00002-00000-1f2e....json    jobs of some hundred units; another plan has other names
    runs/units/lease-00017.json            somebody builds this unit, see :mod:`tokenlake.etl.leases`
    runs/units/failed-00017.json           why it could not be built

Jobs say everything by value but where the store is: each worker opens it by its own address. Nothing here is proof of
anything, and nothing of it is part of a version: what is finished has a ledger record, and without a plan the run that
publishes it makes the same one again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self, cast, final

import msgspec

from tokenlake.config.references import hide, provided_blocks, scrub
from tokenlake.errors import (
    ConfigError,
    NotFoundError,
    TokenlakeError,
    VersionConflictError,
    WorkerError,
    from_json,
    to_json,
)
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
from tokenlake.store.address import StoreAddress
from tokenlake.store.base import ObjectInfo, Store, read_files
from tokenlake.store.layout import RUNS, Layout
from tokenlake.store.sealed import DatasetName, Positive, Sealed, Sha256
from tokenlake.threads import in_order

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
    except NotFoundError:
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
        pieces = {_piece_path(number, at, data): data for at, data in enumerate(made)}
        plan = SharedPlan(
            dataset=layout.dataset,
            version=layout.version,
            number=number,
            claimed=claimed,
            pieces={path: hashlib.sha256(data).hexdigest() for path, data in pieces.items()},
            versions=versions,
            probes=probes,
        )
        store.put_all({layout.key(path): data for path, data in pieces.items()})
        try:
            store.swap(layout.key(PLAN), plan.to_bytes(), before.to_bytes() if before else None)
        except VersionConflictError:
            continue
        return plan
    raise VersionConflictError(
        f"{layout.key(PLAN)}: other runs publish plans of this build all the time; end all but one",
        key=layout.key(PLAN),
    )


def remove_plan(store: Store, layout: Layout) -> None:
    """Remove what the workers of a build were told, and what they said: nobody needs it once the version is committed.

    Whoever commits does so, with whatever engine: the run that published the plan may be dead.
    """

    def remove(key: str) -> None:
        with suppress(NotFoundError):
            store.delete(key)

    keys = [info.key for info in store.list(layout.key(WORK))]
    list(in_order(remove, keys, store.at_once))


def _piece_path(number: int, at: int, data: bytes) -> str:
    return f"{WORK}/{number:05d}-{at:05d}-{hashlib.sha256(data).hexdigest()[:16]}.json"


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
        raise ConfigError(
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
        raise ConfigError(
            "this engine hands jobs to other machines, and this build needs secrets: values, URLs with passwords or "
            "signatures, or Prefect blocks. Give them by {env: NAME}, which each worker looks up in its own "
            "environment, or build with the local engine"
        )


# Why a unit could not be built. Whoever waits for the unit takes the note away, and the unit may be tried again.

_FAILED: Final = re.compile(rf".*/{WORK}/failed-(\d+)\.json")


def _failed_key(layout: Layout, unit: int) -> str:
    return layout.key(f"{WORK}/failed-{unit:05d}.json")


def publish_failure(store: Store, layout: Layout, unit: int, error: TokenlakeError) -> None:
    """Note why a unit could not be built; without secrets, and in the place of an older note."""
    found = to_json(error)
    data = json.dumps({**found, "message": hide(found["message"])}, default=str).encode()
    with suppress(VersionConflictError):
        store.put_new(_failed_key(layout, unit), data)


def failed_units(infos: Iterable[ObjectInfo]) -> set[int]:
    """Return the units among listed objects that have such a note."""
    return {int(name[1]) for info in infos if (name := _FAILED.fullmatch(info.key))}


def take_failure(store: Store, layout: Layout, unit: int, *, keep: bool = False) -> TokenlakeError | None:
    """Take a note away and return the error in it; None where somebody else took it."""
    try:
        data = store.read(_failed_key(layout, unit))
        if not keep:
            store.delete(_failed_key(layout, unit))
    except NotFoundError:
        return None
    try:
        return from_json(json.loads(data))
    except (ValueError, KeyError, TypeError):
        return WorkerError(f"unit {unit} failed, and the note of it is damaged", unit=unit)
