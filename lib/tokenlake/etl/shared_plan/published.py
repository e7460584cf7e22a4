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
    NO_BACKEND,
    BackendJob,
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
"""Number of attempts to publish a plan. An attempt fails if another run published one
meanwhile.
"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceProbe:
    """Choice of a source's tokenizer backend. A worker that joins must choose the same.

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
        # 1. A field is common if its name and its text are the same in all jobs.
        fields_of_jobs = [fields_of(job) for job in jobs]
        common_items = set(fields_of_jobs[0].items())
        for fields in fields_of_jobs[1:]:
            common_items &= set(fields.items())
        common = dict(common_items)

        # 2. The other fields of each job.
        own_fields: list[dict[str, str]] = []
        for fields in fields_of_jobs:
            own_fields.append(
                {name: text for name, text in fields.items() if name not in common}
            )
        return cls(common=common, jobs=tuple(own_fields))

    def each(self, store: StoreAddress) -> Iterator[WorkJob]:
        """Yield the jobs, with a store at this address."""
        # The address of the store is the only field that a piece lacks.
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
        """Layout of the version."""
        return Layout(self.dataset, self.version)

    def preflights(self, store: StoreAddress) -> Iterator[PreflightJob]:
        """Yield the checks that a machine must pass before its first unit.

        It is one check for each source of texts, or one if there are no texts.

        Args:
            store: Address of the store, as the machine reaches it.
        """
        if not self.probes:
            yield self._preflight(store, None, NO_BACKEND)
        for probe in self.probes:
            backend_job = cast("BackendJob", job_from(probe.job, store))
            yield self._preflight(store, backend_job, probe.engine)

    def _preflight(
        self, store: StoreAddress, probe: BackendJob | None, engine: str
    ) -> PreflightJob:
        """Return a check of a machine, with the choice of a backend if there is one."""
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
        # The hashes of the pieces are checked as they are read.
        jobs: dict[int, WorkJob] = {}
        for path, data in read_files(store, self.layout.prefix, self.pieces).items():
            for job in PlanPiece.from_bytes(data, path).each(address):
                jobs[job.unit] = job
        return jobs


def read_plan(store: Store, layout: Layout) -> SharedPlan | None:
    """Return the newest plan of a build, None if it has none."""
    plan_key = layout.key(PLAN)
    try:
        return SharedPlan.from_bytes(store.read(plan_key), plan_key)
    except errors.NotFoundError:
        return None


def publish_plan(
    store: Store,
    layout: Layout,
    claimed: str,
    jobs: Iterable[WorkJob],
    engines: Iterable[tuple[BackendJob, str]],
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
    # 1. The pieces, which must hold no secrets.
    jobs = list(jobs)
    probes: list[SourceProbe] = []
    for backend_job, engine in engines:
        probes.append(SourceProbe(job=fields_of(backend_job), engine=engine))
    pieces: list[bytes] = []
    for start in range(0, len(jobs), _UNITS_PER_PIECE):
        piece_jobs = jobs[start : start + _UNITS_PER_PIECE]
        pieces.append(PlanPiece.of(piece_jobs).to_bytes())
    for content in (*pieces, msgspec.json.encode(probes)):
        check_open(content.decode())
    digests = [hashlib.sha256(piece).hexdigest() for piece in pieces]
    versions = _versions_of(jobs)

    for _ in range(_ATTEMPTS):
        # 2. The number after that of the newest plan.
        previous = read_plan(store, layout)
        previous_number = 0
        previous_bytes = None
        if previous is not None:
            previous_number = previous.number
            previous_bytes = previous.to_bytes()
        number = previous_number + 1

        # 3. The pieces come first: a plan that can be read names pieces that can be
        #    read.
        paths: list[str] = []
        objects: dict[str, bytes] = {}
        for index, (digest, piece) in enumerate(zip(digests, pieces, strict=True)):
            path = f"{WORK}/{number:05d}-{index:05d}-{digest[:16]}.json"
            paths.append(path)
            objects[layout.key(path)] = piece
        store.put_all(objects)

        # 4. The plan, unless another run has published one since.
        plan = SharedPlan(
            dataset=layout.dataset,
            version=layout.version,
            number=number,
            claimed=claimed,
            pieces=dict(zip(paths, digests, strict=True)),
            versions=versions,
            probes=tuple(probes),
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
    """Remove the plan of a build and the notes of its workers.

    Nobody needs them once the version is committed. Every run that commits does this,
    with any executor: the run that published the plan may be dead.
    """

    def remove(key: str) -> None:
        with suppress(errors.NotFoundError):
            store.delete(key)

    # In parallel, because a large plan has thousands of objects.
    keys = [info.key for info in store.list(layout.key(WORK))]
    for _ in in_order(remove, keys, store.at_once):
        pass


def _versions_of(jobs: Iterable[WorkJob]) -> dict[str, str]:
    """Return the name and version of each package that decides the bytes of jobs."""
    versions = dict(produced_by(None))
    # Units of one build may have different backends.
    for job in jobs:
        if isinstance(job, UnitJob):
            versions |= produced_by(job.engine)
    return versions
