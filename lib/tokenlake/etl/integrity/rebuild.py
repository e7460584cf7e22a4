"""Rebuilding of damaged units, beside the version, and the comparison of the result.

Units are built in a store of their own, with the layout of the version; the parents of
a mixture are read where they are. That store is a folder of this machine or, if other
machines build, lies in the version's ``runs/``. The result has the very same bytes, or
the same rows in other bytes, or neither: another release of a writer may write rows
otherwise, or cut them into other files. If bytes differ, rows are read in order and
hashed anew in the pieces that the manifest knows.

Example: the manifest lists parts of 5 and 3 rows of a unit, and the rebuilt unit has
parts of 4 and 4. The first manifest part is hashed over the four rows of the first new
part and one row of the second one.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final, Self, TypeAlias, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.base.threads import in_order
from tokenlake.errors import (
    EngineMismatchError,
    NotFoundError,
    TokenlakeError,
    WorkerDiedError,
)
from tokenlake.etl.commit import publish_preamble
from tokenlake.etl.integrity.ledger_records import exact
from tokenlake.etl.integrity.repair_sources import DamagedFile, Good, PlannedUnit
from tokenlake.etl.job import NO_BACKEND, REFERENCE, WorkJob
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.pool import Pool
from tokenlake.runtime.logical_hash import LogicalHasher
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.base import ReadStore, Store
from tokenlake.runtime.store.claims import Claim
from tokenlake.runtime.store.layout import RUNS, Layout, ledger_path, quarantine_path
from tokenlake.runtime.store.ledger import QuarantineEntry, ShardEntry, UnitRecord
from tokenlake.runtime.store.manifest import Manifest

WORKSHOP: Final = f"{RUNS}/repair"
"""Path below a version of the store in which other machines build its units again."""

_TRIES: Final = 3
"""Times that a unit is built before it is given up: once with the recorded backend,
then with the reference.
"""

_FROM_INPUTS: Final = "from its inputs"

OnBytes: TypeAlias = Callable[[int], None]
"""Function that receives the number of input bytes worked through."""


@final
@dataclass(frozen=True, slots=True)
class Workshop:
    """Place where units of a version are built again.

    Attributes:
        plan: Plan that has the units.
        layout: Keys of the version.
        address: Address of a store; rebuilt files lie there, under the version's own
            keys.
        store: Store at that address.
    """

    plan: Plan
    layout: Layout
    address: StoreAddress
    store: Store

    @classmethod
    @contextmanager
    def opened(
        cls, plan: Plan, layout: Layout, version_store: StoreAddress | None
    ) -> Generator[Self]:
        """Provide an empty workshop for as long as the context lasts.

        Args:
            plan: Plan that has the units.
            layout: Keys of the version.
            version_store: Store of the version, if other machines build; None: this
                machine builds.
        """
        with tempfile.TemporaryDirectory(prefix="tokenlake-repair-") as folder:
            address = StoreAddress(folder)
            if version_store is not None:
                url = f"{version_store.url}/{layout.key(WORKSHOP)}"
                address = StoreAddress(url, version_store.options)
            store = open_store(address)
            # A repair that was killed may have left files. They are removed before, and
            # not only after, so that no old result is taken for a new one.
            _clear(store)
            try:
                yield cls(plan, layout, address, store)
            finally:
                _clear(store)

    def build(
        self, units: Mapping[int, PlannedUnit], pool: Pool, on_bytes: OnBytes
    ) -> dict[int, UnitRecord | TokenlakeError]:
        """Build units.

        Args:
            units: Unit of the version -> its place in the plan.
            pool: Pool of workers.
            on_bytes: Function that receives the number of input bytes worked through,
                from several threads.

        Returns:
            Unit -> its record as it is now, or the error that kept it from being built.
        """
        # Workers find a build by its claim and its preamble, in this store as in any
        # other.
        publish_preamble(self.store, self.plan, self.layout)
        claim = Claim(
            dataset=self.layout.dataset,
            version=self.layout.version,
            fingerprint=self.plan.fingerprint,
            meta={},
        )
        self.store.put_new(self.layout.claim, claim.to_bytes())

        def make_jobs() -> list[WorkJob]:
            jobs: list[WorkJob] = []
            for unit, planned in units.items():
                jobs.append(self._job(unit, planned, planned.engine))
            return jobs

        def build_unit(unit: int) -> UnitRecord | TokenlakeError:
            return self._build_unit(unit, units[unit], pool, on_bytes)

        # One thread waits for each worker. An interrupt ends the workers, too.
        pool.expect(len(units), make_jobs)
        threads = max(1, min(pool.workers, len(units)))
        try:
            results = in_order(build_unit, list(units), threads)
            return dict(zip(units, results, strict=True))
        except BaseException:
            pool.cancel()
            raise

    def _build_unit(
        self, unit: int, planned: PlannedUnit, pool: Pool, on_bytes: OnBytes
    ) -> UnitRecord | TokenlakeError:
        """Build a unit; if its backend fails, with the reference."""
        # A worker that died and a backend that gives other ids are reasons to try
        # again. Any other error would come again.
        engines: list[str | None] = [planned.engine]
        engines += [REFERENCE] * (_TRIES - 1)
        last_error: TokenlakeError | None = None
        for engine in engines:
            job = self._job(unit, planned, engine)
            try:
                answer = pool.run(job, lambda fields: on_bytes(fields.get("bytes", 0)))
                return UnitRecord.from_bytes(answer.encode())
            except (WorkerDiedError, EngineMismatchError) as error:
                last_error = error
            except TokenlakeError as error:
                return error
        assert last_error is not None
        return last_error

    def _job(self, unit: int, planned: PlannedUnit, engine: str | None) -> WorkJob:
        """Return the job of a unit.

        The reference replaces a backend that is not installed; the ids are the same.
        """
        used_backend = REFERENCE
        if engine == NO_BACKEND:
            used_backend = NO_BACKEND
        elif engine is not None and importlib.util.find_spec(engine) is not None:
            used_backend = engine
        planned_unit = self.plan.units[planned.index]
        job = self.plan.job(planned_unit, self.address, self.layout, used_backend)
        # Files are named by the unit's number in the version, which may be another one
        # in the plan.
        return replace(job, unit=unit)


def _clear(store: Store) -> None:
    """Delete all files of a store."""
    for info in list(store.list("")):
        with suppress(NotFoundError):
            store.delete(info.key)


def other_rows(
    store: ReadStore,
    layout: Layout,
    listed_parts: Sequence[ShardEntry],
    built: Sequence[ShardEntry],
) -> list[str]:
    """Return a clause for each file of a unit whose rows came out otherwise.

    There are none if all rows are the same.

    Args:
        store: Store of the rebuilt parts.
        layout: Keys of the version.
        listed_parts: Parts of the unit, as the manifest lists them.
        built: Parts of the unit, as they were rebuilt.
    """
    clauses: list[str] = []
    # Each split has files of its own. A split of only one of the two lists differs,
    # too.
    for split in dict.fromkeys(part.split for part in (*listed_parts, *built)):
        built_parts = _parts_of(built, split)
        wanted_parts = _parts_of(listed_parts, split)
        built_rows = sum(part.rows for part in built_parts)
        wanted_rows = sum(part.rows for part in wanted_parts)
        if built_rows != wanted_rows:
            clauses.append(
                f"split {split} came out with {built_rows} rows; expected {wanted_rows}"
            )
            continue
        # The rebuilt rows, hashed in pieces of the sizes that the manifest lists.
        piece_rows = [part.rows for part in wanted_parts]
        row_groups = _row_groups(store, layout, built_parts)
        hashes = _hashes_of_pieces(row_groups, piece_rows)
        for part, logical in zip(wanted_parts, hashes, strict=True):
            if part.rows:
                clauses += _differing_hashes(part, logical)
    return clauses


def _parts_of(parts: Sequence[ShardEntry], split: str) -> list[ShardEntry]:
    """Return the parts of a split in order."""
    parts_of_split = [part for part in parts if part.split == split]
    return sorted(parts_of_split, key=lambda part: part.part)


def _differing_hashes(part: ShardEntry, logical: Mapping[str, str]) -> list[str]:
    """Return a clause for each column of a part whose logical hash is another one."""
    clauses: list[str] = []
    for column, expected in sorted(part.logical.items()):
        got = logical.get(column)
        if got != expected:
            clauses.append(
                f"the rows of {part.path} came out with the logical hash {got} of {column}; expected {expected}"
            )
    return clauses


def _row_groups(
    store: ReadStore, layout: Layout, parts: Sequence[ShardEntry]
) -> Iterator[pa.Table]:
    """Yield the row groups of parts in order, one at a time: parts may be large."""
    for part in parts:
        with store.open(layout.key(part.path)) as stream:
            file = pq.ParquetFile(stream, page_checksum_verification=True)
            for index in range(file.metadata.num_row_groups):
                yield file.read_row_group(index, use_threads=False)


def _hashes_of_pieces(
    tables: Iterator[pa.Table], piece_rows: Sequence[int]
) -> Iterator[dict[str, str]]:
    """Yield the logical hashes of pieces of rows.

    Args:
        tables: Rows, in tables of any sizes.
        piece_rows: Rows of each piece.
    """
    table: pa.Table | None = None  # its rows that belong to no piece yet
    for rows in piece_rows:
        hasher = LogicalHasher()
        missing_rows = rows
        while missing_rows:
            if table is None or not table.num_rows:
                table = next(tables)
            piece = table.slice(0, missing_rows)
            hasher.update(piece.combine_chunks())
            table = table.slice(piece.num_rows)
            missing_rows -= piece.num_rows
        yield hasher.digest()


def judge(
    workshop: ReadStore,
    layout: Layout,
    manifest: Manifest,
    built: UnitRecord | TokenlakeError,
    intact_records: Mapping[int, UnitRecord],
    files: Sequence[DamagedFile],
) -> None:
    """Note for each damaged file of one unit the place of its good bytes.

    A file without good bytes gets the reason. A file that came out in other bytes, with
    the same rows, gets neither: it is for a new version.

    Args:
        workshop: Store in which the unit was built.
        layout: Keys of the version, in that store too.
        manifest: Manifest of the version.
        built: Record of the rebuilt unit, or the error that kept it from being built.
        intact_records: Unit -> ledger record, of those that are intact.
        files: Damaged files of the unit.
    """
    # 1. The unit must have been built, with the rows that were recorded.
    if isinstance(built, TokenlakeError):
        _give_up(files, f"it could not be built again: {built}")
        return
    differences = _differences(
        workshop, layout, manifest, built, intact_records.get(built.unit)
    )
    if differences:
        clauses = "; ".join(differences[:3])
        _give_up(
            files,
            f"its rows differ from the recorded ones, so nothing was changed: {clauses}",
        )
        return
    # 2. Files with the very same bytes are good. A record is good with the backend and
    # the writer of its time.
    built_hashes = {part.path: part.sha256 for part in built.parts}
    if built.quarantine is not None:
        built_hashes[built.quarantine.path] = built.quarantine.sha256
    for file in files:
        sha256 = file.damage.sha256
        if built_hashes.get(file.path) == sha256:
            file.good = Good(
                "rebuilt", _FROM_INPUTS, key=file.damage.key, workshop=workshop
            )
        elif file.path == ledger_path(built.unit):
            record = exact(_as_listed(built, manifest), intact_records.values(), sha256)
            if record is not None:
                file.good = Good("rebuilt", _FROM_INPUTS, data=record.to_bytes())


def _give_up(files: Sequence[DamagedFile], reason: str) -> None:
    """Note a reason for which files have no good bytes."""
    for file in files:
        file.lost = reason


def _differences(
    workshop: ReadStore,
    layout: Layout,
    manifest: Manifest,
    built: UnitRecord,
    before: UnitRecord | None,
) -> list[str]:
    """Return a clause for everything that came out otherwise, except for bytes.

    Args:
        workshop: Store in which the unit was built.
        layout: Keys of the version.
        manifest: Manifest of the version.
        built: Record of the rebuilt unit.
        before: Record of the unit in the version, if it is intact.
    """
    clauses: list[str] = []
    # Rows are compared only if bytes differ: equal bytes have equal rows.
    listed_parts = [shard for shard in manifest.files if shard.unit == built.unit]
    wanted_bytes = {(part.path, part.sha256) for part in listed_parts}
    built_bytes = {(part.path, part.sha256) for part in built.parts}
    if wanted_bytes != built_bytes:
        clauses += other_rows(workshop, layout, listed_parts, built.parts)
    # The bytes of bad records are not compared: another release may word the reasons
    # otherwise.
    had_bad_records = quarantine_path(built.unit) in manifest.other_files
    has_bad_records = built.quarantine is not None
    if had_bad_records and not has_bad_records:
        clauses.append("got no bad records, expected some")
    elif has_bad_records and not had_bad_records:
        clauses.append("got bad records, expected none")
    if before is not None and before.account != built.account:
        clauses.append(f"its audit is {built.account}; expected {before.account}")
    return clauses


def _as_listed(built: UnitRecord, manifest: Manifest) -> UnitRecord:
    """Return a record with the files as the manifest lists them.

    They hold the same rows.
    """
    parts = tuple(shard for shard in manifest.files if shard.unit == built.unit)
    quarantine = built.quarantine
    entry = manifest.other_files.get(quarantine_path(built.unit))
    if quarantine is not None and entry is not None:
        quarantine = QuarantineEntry(
            path=quarantine.path,
            bytes=entry.bytes,
            sha256=entry.sha256,
            rows=quarantine.rows,
        )
    return replace(built, parts=parts, quarantine=quarantine)
