"""What a session builds, whatever it is made from: text, or versions that were built before.

A session knows claims, ledgers, retries and the commit. A project knows what its units are, what a worker is told
about each, and what the manifest says of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tokenlake.errors import TokenlakeError
from tokenlake.etl.events import Watcher
from tokenlake.etl.pool import WorkerPool
from tokenlake.etl.run_log import RunLog
from tokenlake.store.account import Account
from tokenlake.store.address import StoreAddress
from tokenlake.store.entries import FileEntry
from tokenlake.store.layout import Layout
from tokenlake.store.ledger import UnitRecord
from tokenlake.store.manifest import Manifest


class PlannedUnit(Protocol):
    """One unit of a plan."""

    @property
    def index(self) -> int:
        """Place in the plan, from 0; names the output files."""
        ...

    @property
    def source(self) -> str:
        """What progress is told by; :data:`tokenlake.store.ledger.MIXED` for a unit of several sources."""
        ...

    @property
    def bytes(self) -> int:
        """Input bytes, for progress and scheduling."""
        ...

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints give equal bytes (sha256 hex)."""
        ...


class AnyPlan(Protocol):
    """What every plan says of itself."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def units(self) -> Sequence[PlannedUnit]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def input_bytes(self) -> int: ...
    @property
    def source_bytes(self) -> Mapping[str, int]: ...
    def missed(self, accounts: Mapping[str, Account]) -> tuple[str, ...]:
        """Return what the finished build did not find of what it was to leave out."""
        ...


class Work(Protocol):
    """What a session asks while units are being built; thread-safe where it says so."""

    def job(self, unit: int, pool: WorkerPool) -> dict[str, Any]:
        """Return the self-contained description of a unit's work, as JSON. Called from several threads."""
        ...

    def stands(self, record: UnitRecord) -> bool:
        """Return False for a record that came from an engine found wrong meanwhile."""
        ...

    def redo(
        self, error: TokenlakeError, job: Mapping[str, Any], records: Mapping[int, UnitRecord]
    ) -> list[int] | None:
        """Return the finished units that the error of a job makes undone; None: it is an error like any other."""
        ...

    def add(self, record: UnitRecord) -> None:
        """Count a finished unit."""
        ...

    def remove(self, record: UnitRecord) -> None:
        """Count it no more."""
        ...

    def require_hope(self) -> None:
        """Raise what makes the whole impossible, whatever the other units bring."""
        ...

    def judge(self) -> None:
        """Raise what forbids the commit, all units being done."""
        ...


class Project(Protocol):
    """What a session builds."""

    @property
    def plan(self) -> AnyPlan: ...
    @property
    def dataset(self) -> str:
        """Name in the store."""
        ...

    @property
    def store(self) -> StoreAddress:
        """Where the store is."""
        ...

    def preamble(self) -> dict[str, bytes]:
        """Return the files that workers and readers need besides the data: path below the version -> content."""
        ...

    def manifest(
        self, version: int, records: Sequence[UnitRecord], other_files: Mapping[str, FileEntry]
    ) -> Manifest:
        """Return the manifest of all units, in plan order."""
        ...

    def begin(self, store: StoreAddress, layout: Layout, log: RunLog, watcher: Watcher) -> Work:
        """Return what answers while units are built, whose parts go to `store`."""
        ...

    def commits(self) -> Mapping[str, Mapping[str, str]]:
        """Return the Hub's commits that were read: source -> dataset -> commit. They go to ``runs/``."""
        ...
