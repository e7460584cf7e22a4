"""Publish and read the plan of a build.

Jobs of :data:`_UNITS_PER_PIECE` units are one object, a piece. ``plan.json`` names the
pieces and their hashes and is replaced by compare-and-swap: of two runs that publish at
the same time, one sees the other's plan and numbers its own after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self, cast, final

import msgspec

from tokenlake import errors
from tokenlake.base.threads import in_order
from tokenlake.etl.job.messages import (
    NO_ENGINE,
    EngineJob,
    PreflightJob,
    UnitJob,
    WorkJob,
)
from tokenlake.etl.job.versions import produced_by
from tokenlake.etl.shared_plan.notes import PLAN, WORK
from tokenlake.etl.shared_plan.open_jobs import check_open, fields_of, job_from
from tokenlake.runtime.store.address import StoreAddress
from tokenlake.runtime.store.base import Store, read_files
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.sealed import DatasetName, Positive, Sealed, Sha256

_UNITS_PER_PIECE: Final = 256
"""Number of units whose jobs are one object: about 200 kB."""

_ATTEMPTS: Final = 10
"""Number of times that a plan is published anew because another run published one
meanwhile.
"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceProbe:
    """The choice of a source's tokenizer backend; a worker that joins must choose the
    same.

    Attributes:
        job: Fields of the job that chose it, as
            :func:`~tokenlake.etl.shared_plan.open_jobs.fields_of` returns them.
        engine: Name of the backend.
    """

    job: dict[str, str]
    engine: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPiece(Sealed):
    """Jobs of some units.

    Attributes:
        common: Fields that are the same in all jobs, each as JSON text.
        jobs: The other fields of each job.
    """

    common: dict[str, str]
    jobs: tuple[dict[str, str], ...]

    @classmethod
    def of(cls, jobs: Iterable[WorkJob]) -> Self:
        """Return a piece of these jobs, in which common fields are stored once."""
        fields_of_jobs = [fields_of(job) for job in jobs]
        common_items = set(fields_of_jobs[0].items())
        for fields in fields_of_jobs[1:]:
            common_items &= set(fields.items())
        common = dict(common_items)

        def without_common(fields: dict[str, str]) -> dict[str, str]:
            return {name: text for name, text in fields.items() if name not in common}

        return cls(common=common, jobs=tuple(map(without_common, fields_of_jobs)))

    def each(self, store: StoreAddress) -> Iterator[WorkJob]:
        """Yield the jobs, with a store at this address."""
        for own_fields in self.jobs:
            yield cast("WorkJob", job_from(self.common | own_fields, store))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPlan(Sealed):
    """Content of ``plan.json``.

    Attributes:
        dataset: Name of the dataset.
        version: Number of the version.
        number: Number of the plan; each run that waits for the build publishes the next
            one.
        claimed: Fingerprint of the version.
        pieces: The sha256 (hex) of each piece, by its path below the version.
        versions: Name and version of each package that decides bytes: the writer,
            Arrow, the tokenizer backends.
        probes: Backend choices, one for each source of texts.
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
        """The layout of the version."""
        return Layout(self.dataset, self.version)

    def preflights(self, store: StoreAddress) -> Iterator[PreflightJob]:
        """Yield the checks that a machine must pass before its first unit: one for each
        source of texts, or just one.

        Args:
            store: Address of the store, as the machine reaches it.
        """
        if not self.probes:
            yield self._preflight(store, None, NO_ENGINE)
        for probe in self.probes:
            engine_job = cast("EngineJob", job_from(probe.job, store))
            yield self._preflight(store, engine_job, probe.engine)

    def _preflight(
        self, store: StoreAddress, probe: EngineJob | None, engine: str
    ) -> PreflightJob:
        return PreflightJob(
            store=store,
            dataset=self.dataset,
            version=self.version,
            versions=self.versions,
            probe=probe,
            engine=engine,
        )

    def jobs(self, store: Store, address: StoreAddress) -> dict[int, WorkJob]:
        """Return the job of each unit.

        Args:
            store: Store of the build.
            address: Address of the store, which the jobs get.

        Raises:
            NotFoundError: Another plan replaced this one.
            IntegrityError: A piece is damaged.
        """
        jobs: dict[int, WorkJob] = {}
        for path, data in read_files(store, self.layout.prefix, self.pieces).items():
            for job in PlanPiece.from_bytes(data, path).each(address):
                jobs[job.unit] = job
        return jobs


def read_plan(store: Store, layout: Layout) -> SharedPlan | None:
    """Return the newest plan of a build; None where it has none."""
    key = layout.key(PLAN)
    try:
        return SharedPlan.from_bytes(store.read(key), key)
    except errors.NotFoundError:
        return None


def publish_plan(
    store: Store,
    layout: Layout,
    claimed: str,
    jobs: Iterable[WorkJob],
    engines: Iterable[tuple[EngineJob, str]],
) -> SharedPlan:
    """Write jobs into the store and make them the newest plan.

    Args:
        store: Store of the build.
        layout: Layout of the version.
        claimed: Fingerprint of the version.
        jobs: Jobs of all units.
        engines: Backend choices: the job that chose the backend of a source, and the
            name of the backend.

    Raises:
        ConfigError: The jobs hold secrets.
        VersionConflictError: Another run kept publishing plans of the same build.
    """
    jobs = list(jobs)
    probes = tuple(
        SourceProbe(job=fields_of(job), engine=engine) for job, engine in engines
    )
    starts = range(0, len(jobs), _UNITS_PER_PIECE)
    pieces = [
        PlanPiece.of(jobs[start : start + _UNITS_PER_PIECE]).to_bytes()
        for start in starts
    ]
    for data in (*pieces, msgspec.json.encode(probes)):
        check_open(data.decode())

    digests = [hashlib.sha256(data).hexdigest() for data in pieces]
    versions = _versions_of(jobs)
    for _ in range(_ATTEMPTS):
        previous = read_plan(store, layout)
        previous_number = 0
        previous_bytes = None
        if previous is not None:
            previous_number = previous.number
            previous_bytes = previous.to_bytes()

        # The pieces come first: a plan that can be read names pieces that can be read.
        number = previous_number + 1
        paths = [
            f"{WORK}/{number:05d}-{index:05d}-{digest[:16]}.json"
            for index, digest in enumerate(digests)
        ]
        plan = SharedPlan(
            dataset=layout.dataset,
            version=layout.version,
            number=number,
            claimed=claimed,
            pieces=dict(zip(paths, digests, strict=True)),
            versions=versions,
            probes=probes,
        )
        store.put_all(
            {layout.key(path): data for path, data in zip(paths, pieces, strict=True)}
        )
        try:
            store.swap(layout.key(PLAN), plan.to_bytes(), previous_bytes)
        except errors.VersionConflictError:
            continue
        return plan
    raise errors.VersionConflictError(
        f"{layout.key(PLAN)}: other runs publish plans of this build at the same time; stop all runs but one",
        key=layout.key(PLAN),
    )


def remove_plan(store: Store, layout: Layout) -> None:
    """Remove the plan of a build and the notes of its workers; nobody needs them once
    the version is committed.

    Every run that commits does this, with any engine: the run that published the plan
    may be dead.
    """

    def remove(key: str) -> None:
        with suppress(errors.NotFoundError):
            store.delete(key)

    keys = [info.key for info in store.list(layout.key(WORK))]
    for _ in in_order(remove, keys, store.at_once):
        pass


def _versions_of(jobs: Iterable[WorkJob]) -> dict[str, str]:
    """Return the name and version of each package that decides the bytes of some
    jobs.
    """
    versions = dict(produced_by(None))
    for job in jobs:
        if isinstance(job, UnitJob):
            versions |= produced_by(job.engine)
    return versions
