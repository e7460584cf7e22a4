"""Building units again, beside the store: in a folder of its own, with the layout of the version.

What comes out is compared before any of it goes near the store. The parents of a mixture are read where they are.

What came out of units that were built again: the very bytes, the same rows in other bytes, or neither.

Whether a unit that was built again holds the rows it held, where its bytes are others.

Another release of a writer may cut the rows of a unit into other files. So the rows are read in order and hashed anew
in the pieces that the manifest knows.

A damaged ledger record, made again byte for byte.

A record holds what follows from the unit's work, and two things that do not: which engine encoded it, and the versions
of what wrote it. Both are the same in the other records of the version, or there are few to try; the manifest's hash
says which it was.
"""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Final, Self, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.errors import EngineMismatchError, IntegrityError, StoreError, TokenlakeError, WorkerDiedError
from tokenlake.etl.commit import publish_preamble
from tokenlake.etl.events import EngineCondemned, Watcher
from tokenlake.etl.job import NO_ENGINE, REFERENCE
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.pool import WorkerPool
from tokenlake.etl.produced_by import produced_by
from tokenlake.etl.reuse import renamed_record
from tokenlake.etl.session import Engines
from tokenlake.integrity.findings import Damage
from tokenlake.integrity.repair_copies import Good, manifests
from tokenlake.schema import LogicalHasher
from tokenlake.store.address import StoreAddress
from tokenlake.store.base import ReadStore
from tokenlake.store.catalog import read_record
from tokenlake.store.entries import QuarantineEntry, ShardEntry
from tokenlake.store.layout import Layout, ledger_path, ledger_unit, quarantine_path
from tokenlake.store.ledger import UnitRecord
from tokenlake.store.local import LocalStore
from tokenlake.store.manifest import Manifest

_TRIES: Final = 3
_PREFIX: Final = "tokenlake-repair-"

OnBytes = Callable[[int], None]


@final
class Workshop:
    """Where units are built again; a context, whose files are gone after it.

    Attributes:
        store: what was built lies there, under the version's own keys.
    """

    def __init__(self, plan: Plan, layout: Layout, watcher: Watcher) -> None:
        self._plan, self._layout, self._watcher = plan, layout, watcher
        # Only its context may remove it: a report of a failure must not lose what was built.
        self._folder = tempfile.TemporaryDirectory(prefix=_PREFIX)
        self.store = LocalStore(self._folder.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def build(
        self, units: Mapping[int, tuple[int, str | None]], workers: int, on_bytes: OnBytes
    ) -> dict[int, UnitRecord | TokenlakeError]:
        """Build units.

        Args:
            units: unit of the version -> (index in the plan, engine that encoded it; None: not known).
            workers: processes, at most.
            on_bytes: told of input bytes worked through, from several threads.

        Returns:
            Unit -> its record as it is now, or why it could not be built.
        """
        publish_preamble(self.store, self._plan, self._layout)
        engines = Engines(self._plan, StoreAddress(self.store.url), self._layout, self._watcher)
        count = max(1, min(workers, len(units)))
        with WorkerPool(count) as pool, ThreadPoolExecutor(count, "tokenlake-repair") as threads:
            try:
                futures = {
                    unit: threads.submit(self._one, unit, index, engine, engines, pool, on_bytes)
                    for unit, (index, engine) in units.items()
                }
                return {unit: future.result() for unit, future in futures.items()}
            except BaseException:
                pool.cancel()
                raise

    def _one(
        self,
        unit: int,
        index: int,
        engine: str | None,
        engines: Engines,
        pool: WorkerPool,
        on_bytes: OnBytes,
    ) -> UnitRecord | TokenlakeError:
        def progress(fields: Mapping[str, int]) -> None:
            on_bytes(fields["bytes"])

        planned, address = self._plan.units[index], StoreAddress(self.store.url)
        try:
            # The engine of then, if there is one: which one it is changes no id.
            chosen = engines.choose(planned, pool) if engine is None else _installed(engine)
            for attempt in range(_TRIES):
                # Files are named by the unit's place in the version, which may be another one in the plan.
                job = replace(self._plan.job(planned, address, self._layout, chosen), unit=unit)
                try:
                    return UnitRecord.from_json(pool.run(job, progress))
                except WorkerDiedError:
                    if attempt == _TRIES - 1:
                        raise
                except EngineMismatchError as error:
                    if engines.condemn(chosen):
                        self._watcher(EngineCondemned(chosen, str(error)))
                    chosen = REFERENCE
        except TokenlakeError as error:
            return error
        raise AssertionError("unreachable")


def _installed(engine: str) -> str:
    return engine if engine == NO_ENGINE or importlib.util.find_spec(engine) is not None else REFERENCE


def other_rows(
    store: ReadStore, layout: Layout, wanted: Sequence[ShardEntry], built: Sequence[ShardEntry]
) -> list[str]:
    """Return a clause for each file of a unit whose rows came out otherwise; none if all rows are the same.

    Args:
        store: where `built` lies.
        wanted: the parts of the unit, as the manifest has them.
    """
    found: list[str] = []
    for split in dict.fromkeys(part.split for part in [*wanted, *built]):
        ours = sorted((part for part in built if part.split == split), key=lambda part: part.part)
        theirs = sorted((part for part in wanted if part.split == split), key=lambda part: part.part)
        got, expected = sum(part.rows for part in ours), sum(part.rows for part in theirs)
        if got != expected:
            found.append(f"split {split} came out with {got} rows; expected {expected}")
            continue
        pieces = _hashed(_tables(store, layout, ours), [part.rows for part in theirs])
        for part, logical in zip(theirs, pieces, strict=True):
            found += _differences(part, logical)
    return found


def _differences(part: ShardEntry, logical: dict[str, str]) -> list[str]:
    if not part.rows:
        return []
    return [
        f"the rows of {part.path} came out with the logical hash {logical.get(name)} of {name}; expected {expected}"
        for name, expected in sorted(part.logical.items())
        if logical.get(name) != expected
    ]


def _tables(store: ReadStore, layout: Layout, parts: Sequence[ShardEntry]) -> Iterator[pa.Table]:
    for part in parts:
        with store.open(layout.key(part.path)) as stream:
            file = pq.ParquetFile(stream, page_checksum_verification=True)
            for index in range(file.metadata.num_row_groups):
                yield file.read_row_group(index, use_threads=False)


def _hashed(tables: Iterator[pa.Table], sizes: Sequence[int]) -> Iterator[dict[str, str]]:
    """Yield the logical hash of each piece of so many rows."""
    rest: pa.Table | None = None
    for size in sizes:
        hasher, left = LogicalHasher(), size
        while left:
            table = rest if rest is not None and rest.num_rows else next(tables)
            taken = table.slice(0, left)
            hasher.update(taken.combine_chunks())
            rest = table.slice(taken.num_rows)
            left -= taken.num_rows
        yield hasher.digest()


_ENGINES = ("gigatoken", REFERENCE)


def adopted(store: ReadStore, manifest: Manifest, unit: int, sha256: str) -> UnitRecord | None:
    """Return a unit's record made of the record of another version that holds the same files; None if there is none."""
    ours = {shard.sha256 for shard in manifest.files if shard.unit == unit}
    if not ours:
        return None
    for layout, other in manifests(store):
        for index in dict.fromkeys(shard.unit for shard in other.files if shard.sha256 in ours):
            try:
                found = renamed_record(read_record(store, layout, index), unit)
            except (IntegrityError, StoreError):
                continue
            if is_bytes_of(found, sha256):
                return found
    return None


def exact(built: UnitRecord, others: Iterable[UnitRecord], sha256: str) -> UnitRecord | None:
    """Return a record that was built again as it was, with the engine and the writer of then; None if none fits.

    Args:
        built: as the unit came out now.
        others: records of the version that are well.
        sha256: of the record's file, as the manifest has it.
    """
    for engine, writer in _writers(built, list(others)):
        found = replace(built, engine=engine, produced_by=writer)
        if is_bytes_of(found, sha256):
            return found
    return None


def is_bytes_of(record: UnitRecord, sha256: str) -> bool:
    """Say whether a record's file has this hash."""
    return hashlib.sha256(record.to_bytes()).hexdigest() == sha256


def readable_records(store: ReadStore, layout: Layout, manifest: Manifest) -> dict[int, UnitRecord]:
    """Return the records of a version that are the manifest's, by unit."""
    found: dict[int, UnitRecord] = {}
    for unit in units_of(manifest):
        entry = manifest.other_files.get(ledger_path(unit))
        try:
            record = read_record(store, layout, unit)
        except (IntegrityError, StoreError):
            continue
        if entry is None or is_bytes_of(record, entry.sha256):
            found[unit] = record
    return found


def units_of(manifest: Manifest) -> list[int]:
    """Return the units that a manifest knows of, ascending; one that wrote nothing has a record alone."""
    listed = {unit for unit in map(ledger_unit, manifest.other_files) if unit is not None}
    return sorted(listed | {shard.unit for shard in manifest.files})


def _writers(built: UnitRecord, others: Sequence[UnitRecord]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield engines and writers to try: as it came out, as the others have it, and as another engine would be."""
    yield built.engine, built.produced_by
    for record in others:
        yield record.engine, record.produced_by
    for engine in _ENGINES:
        try:
            version(engine)
        except PackageNotFoundError:
            continue
        yield engine, produced_by(engine)


OTHER_BYTES = Good("new version", "the same rows, in the bytes of another release of a writer")


def judged(
    workshop: ReadStore,
    layout: Layout,
    manifest: Manifest,
    built: UnitRecord | TokenlakeError,
    others: Mapping[int, UnitRecord],
    damaged: Iterable[Damage],
) -> dict[str, Good | str]:
    """Return for each damaged file of one unit where its good bytes are, or why there are none.

    Args:
        workshop: where the unit was built.
        layout: of the version, there as well.
        built: what came out.
        others: unit -> ledger record, of those that are well.
    """
    files = list(damaged)
    if isinstance(built, TokenlakeError):
        return {damage.path: f"it could not be built again: {built}" for damage in files}
    unlike = _unlike(workshop, layout, manifest, built, others.get(built.unit))
    if unlike:
        text = "it came out with other rows, so that nothing was changed: " + "; ".join(unlike[:3])
        return {damage.path: text for damage in files}
    came = {part.path: part.sha256 for part in built.parts}
    if built.quarantine is not None:
        came[built.quarantine.path] = built.quarantine.sha256
    found: dict[str, Good | str] = {}
    for damage in files:
        if damage.path == ledger_path(built.unit):
            record = exact(_as_listed(built, manifest), others.values(), damage.sha256)
            found[damage.path] = (
                OTHER_BYTES if record is None else Good("rebuilt", "from its inputs", data=record.to_bytes())
            )
        elif came.get(damage.path) == damage.sha256:
            found[damage.path] = Good("rebuilt", "from its inputs", key=damage.key, workshop=workshop)
        else:
            found[damage.path] = OTHER_BYTES
    return found


def _unlike(
    workshop: ReadStore, layout: Layout, manifest: Manifest, built: UnitRecord, before: UnitRecord | None
) -> list[str]:
    """Return a clause for everything that came out otherwise, bytes aside."""
    wanted = [shard for shard in manifest.files if shard.unit == built.unit]
    if {part.path: part.sha256 for part in wanted} == {part.path: part.sha256 for part in built.parts}:
        found = list[str]()
    else:
        found = other_rows(workshop, layout, wanted, built.parts)
    listed = quarantine_path(built.unit) in manifest.other_files
    if listed != (built.quarantine is not None):
        found.append(
            f"{'no' if listed else 'some'} bad records came out; expected {'some' if listed else 'none'}"
        )
    if before is not None and before.account != built.account:
        found.append(f"its account is {built.account}; expected {before.account}")
    return found


def _as_listed(built: UnitRecord, manifest: Manifest) -> UnitRecord:
    """Return a record with the files as the manifest has them, which hold the same rows."""
    parts = tuple(shard for shard in manifest.files if shard.unit == built.unit)
    held, entry = built.quarantine, manifest.other_files.get(quarantine_path(built.unit))
    if held is not None and entry is not None:
        held = QuarantineEntry(path=held.path, bytes=entry.bytes, sha256=entry.sha256, rows=held.rows)
    return replace(built, parts=parts, quarantine=held)
