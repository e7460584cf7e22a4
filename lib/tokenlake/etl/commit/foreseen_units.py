"""Units that a run of a plan would not build, found without changing anything.

A session takes the same steps when it begins (:mod:`tokenlake.etl.session`):

1. A committed version of the plan's fingerprint leaves nothing to do.
2. An unfinished version of it is resumed, with the units that it has.
3. Equal units of other versions of the dataset are taken over.

Here the names and sizes of files are compared, and not their bytes: a damaged file is
found by the run, which then builds its unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, final

from tokenlake.base import numbers
from tokenlake.base.threads import in_order
from tokenlake.errors import NotFoundError
from tokenlake.etl.commit.finished_units import MOST_VERSIONS, ListedVersion
from tokenlake.etl.plan.plan import Plan
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import UnitRecord
from tokenlake.runtime.store.schemes import is_local

_LOCAL_RECORDS: Final = 1 << 15
"""Number of ledger records that are read at most, of a store on this machine: some
seconds.
"""

_REMOTE_RECORDS: Final = 1 << 9
"""The same of a store in a bucket, where each record takes a request."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ForeseenUnits:
    """Units of a plan by their probable origin.

    Attributes:
        dataset: Name of the dataset.
        version: Version that the run finds: a committed or an unfinished one of the
            same build; None if it makes a new one.
        status: ``new``, ``resumed`` or ``committed``, as a session has it.
        built: Number of units that the run builds.
        resumed: Number of units that an interrupted run of `version` finished.
        reused: Number of units that are taken over, by the version that has them.
    """

    dataset: str
    version: int | None
    status: Literal["new", "resumed", "committed"]
    built: int
    resumed: int
    reused: dict[int, int]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form, with the keys of a run's ``units``."""
        return {
            "built": self.built,
            "resumed": self.resumed,
            "reused": sum(self.reused.values()),
            "reused_from": {
                f"{self.dataset}@v{version}": units
                for version, units in self.reused.items()
            },
        }

    def in_words(self) -> str:
        """Return the origins in words; an empty text if every unit is built.

        An example: ``reuses 5 of 6 units from code@v1, builds 1``.
        """
        if self.status == "committed" or not (self.resumed or self.reused):
            return ""
        reused_count = sum(self.reused.values())
        all_units = numbers.plural(self.built + self.resumed + reused_count, "unit")
        phrases: list[str] = []
        if self.resumed:
            resumed = numbers.count(self.resumed)
            phrases.append(
                f"resumes {self.dataset}@v{self.version} with {resumed} of {all_units}"
            )
        if self.reused:
            # The units of each version are counted only if there are several versions.
            versions: list[str] = []
            for version, units in self.reused.items():
                name = f"{self.dataset}@v{version}"
                if len(self.reused) > 1:
                    name += f" ({numbers.count(units)})"
                versions.append(name)
            reused = numbers.count(reused_count)
            phrases.append(f"reuses {reused} of {all_units} from {', '.join(versions)}")
        phrases.append(f"builds {numbers.count(self.built)}")
        return ", ".join(phrases)


def foresee_units(plan: Plan) -> ForeseenUnits | None:
    """Return the units that a run of a plan would resume, reuse and build.

    The result is None where too many records would have to be read.
    """
    # 1. The version that the run finds.
    catalog = Catalog(open_store(plan.store))
    search = _UnitSearch(catalog, plan)
    equal_build = catalog.equal_build(plan.dataset, plan.fingerprint)
    version: int | None = None
    status: Literal["new", "resumed", "committed"] = "new"
    resumed = 0
    if equal_build is not None:
        version = equal_build.version
        status = equal_build.status
    if status == "committed":
        search.wanted.clear()

    # 2. Its finished units, even of sources that reuse nothing of other versions.
    elif version is not None:
        found_count = search.take(version)
        if found_count is None:
            return None
        resumed = found_count

    # 3. Equal units of other versions, newest first.
    built_anyway = search.leave_out_uncached()
    reused: dict[int, int] = {}
    for other_version in search.other_versions(version):
        if not search.wanted:
            break
        found_count = search.take(other_version)
        if found_count is None:
            return None
        if found_count:
            reused[other_version] = found_count
    return ForeseenUnits(
        dataset=plan.dataset,
        version=version,
        status=status,
        built=len(search.wanted) + built_anyway,
        resumed=resumed,
        reused=reused,
    )


@final
class _UnitSearch:
    """Search for finished units of a plan in versions of its dataset.

    Attributes:
        wanted: Fingerprint of each unit that is not found yet.
    """

    def __init__(self, catalog: Catalog, plan: Plan) -> None:
        self._catalog = catalog
        self._plan = plan
        self._records_left = _REMOTE_RECORDS
        if is_local(plan.store.url):
            self._records_left = _LOCAL_RECORDS
        self.wanted = {unit.fingerprint for unit in plan.units}

    def other_versions(self, version: int | None) -> list[int]:
        """Return the versions that a run searches, newest first, except one."""
        try:
            infos = self._catalog.versions(self._plan.dataset)
        except NotFoundError:
            # The dataset has no versions yet.
            return []
        versions = {info.version for info in infos} - {version}
        return sorted(versions, reverse=True)[:MOST_VERSIONS]

    def leave_out_uncached(self) -> int:
        """Leave out wanted units of sources that reuse nothing; return their number."""
        uncached_sources: set[str] = set()
        for source in self._plan.build.sources:
            if not source.cache_enabled:
                uncached_sources.add(source.name)
        uncached_count = 0
        for unit in self._plan.units:
            if unit.source in uncached_sources and unit.fingerprint in self.wanted:
                self.wanted.remove(unit.fingerprint)
                uncached_count += 1
        return uncached_count

    def take(self, version: int) -> int | None:
        """Take the wanted units that a version has, and return their number.

        The result is None if too many records would have to be read.
        """
        listed_version = ListedVersion(
            self._catalog.writable, Layout(self._plan.dataset, version)
        )
        self._records_left -= len(listed_version.units)
        if self._records_left < 0:
            return None
        found_count = 0
        at_once = listed_version.store.at_once
        for record in in_order(listed_version.read, listed_version.units, at_once):
            # A damaged record is passed over, and its unit is built.
            if not isinstance(record, UnitRecord):
                continue
            is_wanted = record.fingerprint in self.wanted
            if is_wanted and listed_version.has_files(record):
                self.wanted.remove(record.fingerprint)
                found_count += 1
        return found_count
