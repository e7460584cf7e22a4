"""Making again what is damaged: units are built beside the version, and compared with what was there.

Units are built in a store of their own, with the layout of the version, and the parents of a mixture are read where
they are. That store is a folder of this machine or, where other machines build, lies in the version's ``runs/``. What
comes out are the very bytes, or the same rows in other bytes, or neither: another release of a writer may write the
rows otherwise, or cut them into other files. So where bytes differ, rows are read in order and hashed anew in the
pieces that the manifest knows.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final, Self, final

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
from tokenlake.etl.integrity import repair_sources
from tokenlake.etl.job import NO_ENGINE, REFERENCE, WorkJob
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.pool import Pool
from tokenlake.runtime.logical_hash import LogicalHasher
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.base import ReadStore, Store
from tokenlake.runtime.store.claims import Claim
from tokenlake.runtime.store.layout import (
    RUNS,
    Layout,
    ledger_path,
    quarantine_path,
)
from tokenlake.runtime.store.ledger import QuarantineEntry, ShardEntry, UnitRecord
from tokenlake.runtime.store.manifest import Manifest

WORKSHOP: Final = f"{RUNS}/repair"
"""Path below a version of the store in which other machines build its units again."""
_TRIES: Final = 3
_FROM_INPUTS: Final = "from its inputs"
OnBytes = Callable[[int], None]


@final
@dataclass(frozen=True, slots=True)
class Workshop:
    """Where units of a version are built again.

    Attributes:
        plan: that has them.
        layout: of the version.
        address: of a store; what was built lies there, under the version's own keys.
        store: at that address.
    """

    plan: Plan
    layout: Layout
    address: StoreAddress
    store: Store

    @classmethod
    @contextmanager
    def opened(cls, plan: Plan, layout: Layout, beside: StoreAddress | None) -> Generator[Self]:
        """Have an empty workshop for as long as the context lasts.

        Args:
            beside: the store of the version, where other machines build; None: they do not.
        """
        with tempfile.TemporaryDirectory(prefix="tokenlake-repair-") as folder:
            address = StoreAddress(folder)
            if beside is not None:
                address = StoreAddress(f"{beside.url}/{layout.key(WORKSHOP)}", beside.options)
            store = open_store(address)
            _clear(store)  # of a repair that was killed
            try:
                yield cls(plan, layout, address, store)
            finally:
                _clear(store)

    def build(
        self, units: Mapping[int, tuple[int, str | None]], pool: Pool, on_bytes: OnBytes
    ) -> dict[int, UnitRecord | TokenlakeError]:
        """Build units.

        Args:
            units: unit of the version -> (index in the plan, engine that encoded it; None: not known).
            pool: whose workers build.
            on_bytes: told of input bytes worked through, from several threads.

        Returns:
            Unit -> its record as it is now, or why it could not be built.
        """
        publish_preamble(self.store, self.plan, self.layout)
        dataset, version = self.layout.dataset, self.layout.version
        claim = Claim(dataset=dataset, version=version, fingerprint=self.plan.fingerprint, meta={})
        self.store.put_new(self.layout.claim, claim.to_bytes())
        count = max(1, min(pool.workers, len(units)))
        pool.expect(len(units), lambda: [self._job(unit, *units[unit]) for unit in units])

        def one(unit: int) -> UnitRecord | TokenlakeError:
            index, engine = units[unit]
            failed = list[TokenlakeError]()
            for chosen in (engine, *[REFERENCE] * (_TRIES - 1)):
                job = self._job(unit, index, chosen)
                try:
                    done = pool.run(job, lambda fields: on_bytes(fields.get("bytes", 0)))
                    return UnitRecord.from_bytes(done.encode())
                except (WorkerDiedError, EngineMismatchError) as error:
                    failed.append(error)
                except TokenlakeError as error:
                    return error
            return failed[-1]

        try:
            return dict(zip(units, in_order(one, list(units), count), strict=True))
        except BaseException:
            pool.cancel()
            raise

    def _job(self, unit: int, index: int, engine: str | None) -> WorkJob:
        # The engine of then, if it is there, and else the reference: which one it is changes no id.
        known = engine is not None and (engine == NO_ENGINE or importlib.util.find_spec(engine) is not None)
        chosen = engine if engine and known else REFERENCE
        job = self.plan.job(self.plan.units[index], self.address, self.layout, chosen)
        # Files are named by the unit's place in the version, which may be another one in the plan.
        return replace(job, unit=unit)


def _clear(store: Store) -> None:
    for info in list(store.list("")):
        with suppress(NotFoundError):
            store.delete(info.key)


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
            found += (
                f"the rows of {part.path} came out with the logical hash {logical.get(name)} of {name}; "
                f"expected {wanted_hash}"
                for name, wanted_hash in sorted(part.logical.items())
                if part.rows and logical.get(name) != wanted_hash
            )
    return found


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


def judge(
    workshop: ReadStore,
    layout: Layout,
    manifest: Manifest,
    built: UnitRecord | TokenlakeError,
    others: Mapping[int, UnitRecord],
    files: Sequence[repair_sources.DamagedFile],
) -> None:
    """Note of each damaged file of one unit where its good bytes are, or why there are none.

    A file that came out in other bytes, with the same rows, has neither: it is for a new version.

    Args:
        workshop: where the unit was built.
        layout: of the version, there as well.
        built: what came out.
        others: unit -> ledger record, of those that are intact.
    """
    if isinstance(built, TokenlakeError):
        lost = f"it could not be built again: {built}"
    elif unlike := _unlike(workshop, layout, manifest, built, others.get(built.unit)):
        lost = "it came out with other rows, so that nothing was changed: " + "; ".join(unlike[:3])
    else:
        held = () if built.quarantine is None else (built.quarantine,)
        came = {part.path: part.sha256 for part in (*built.parts, *held)}
        for file in files:
            sha256 = file.damage.sha256
            if came.get(file.path) == sha256:
                file.good = repair_sources.Good(
                    "rebuilt", _FROM_INPUTS, key=file.damage.key, workshop=workshop
                )
            elif file.path == ledger_path(built.unit):
                record = repair_sources.exact(_as_listed(built, manifest), others.values(), sha256)
                file.good = record and repair_sources.Good("rebuilt", _FROM_INPUTS, data=record.to_bytes())
        return
    for file in files:
        file.lost = lost


def _unlike(
    workshop: ReadStore, layout: Layout, manifest: Manifest, built: UnitRecord, before: UnitRecord | None
) -> list[str]:
    """Return a clause for everything that came out otherwise, bytes aside."""
    wanted = [shard for shard in manifest.files if shard.unit == built.unit]
    same = {(part.path, part.sha256) for part in wanted} == {(part.path, part.sha256) for part in built.parts}
    found = [] if same else other_rows(workshop, layout, wanted, built.parts)
    listed = quarantine_path(built.unit) in manifest.other_files
    if listed != (built.quarantine is not None):
        came, expected = ("no", "some") if listed else ("some", "none")
        found.append(f"{came} bad records came out; expected {expected}")
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
