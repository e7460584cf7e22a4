"""What one host of a run reads: the plan of all hosts, the rows that this host needs, and how they become batches."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Self, final

from tokenlake.base.threads import available_cpus
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.batch import Assembler
from tokenlake.runtime.loader.columns import check_columns
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.loader.mixture import Mixture
from tokenlake.runtime.loader.options import LoaderOptions
from tokenlake.runtime.loader.per_process import PerProcess
from tokenlake.runtime.loader.plan import BatchPlan
from tokenlake.runtime.loader.ragged_batch import RaggedAssembler, ragged_columns
from tokenlake.runtime.loader.read_ahead import DecodedAhead, DecodedGroup
from tokenlake.runtime.loader.steps import RowsOfBatch, rows_of_host
from tokenlake.runtime.mixing.schedule import WeightScheduler
from tokenlake.runtime.mixing.streams import MixtureStream
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.store.local import LocalStore

_LOCAL_THREADS: Final = 4  # at most, to decode files of this machine
_REMOTE_THREADS: Final = 16  # to decode files that are fetched
_LEAST_REACH: Final = 8  # steps that are decoded ahead


@final
@dataclass(frozen=True, eq=False)
class HostReader:
    """Reader of one host.

    Attributes:
        plan: Plan of the batches of all hosts.
        assembler: Makes a batch of decoded rows.
        wanted: Rows of each batch that this host needs.
    """

    plan: BatchPlan
    assembler: Assembler | RaggedAssembler
    wanted: RowsOfBatch

    @classmethod
    def open(cls, data: Dataset | Mixture, options: LoaderOptions, parts: int | None = None) -> Self:
        """Plan the batches of a run; ConfigError where the options do not fit the data.

        Args:
            data: Dataset or mixture to read.
            options: Options of the run.
            parts: Number of equal parts that every batch is cut into; None: the number of hosts.
        """
        plan = BatchPlan(data, options)
        if parts is None:
            parts = 1 if options.host is None else options.host[1]
        if plan.common_rows % parts and plan.bucket_shapes:
            plan = _plan_in_parts(plan, parts)
            options = plan.options
        wanted = rows_of_host(options.host, plan.common_rows)
        if plan.index is None or plan.padding is None:
            layout = options.batch_layout
            for _, length in plan.batch_shapes or ():
                layout.check_length(length)
            assembler = Assembler(plan.sources, check_columns(options.columns), layout=layout)
            return cls(plan, assembler, wanted)
        if options.layout is not None:
            raise ConfigError(
                f"layout: got {options.layout!r}, but rows of {plan.named} are of many lengths; a layout is of packed "
                "rows: pack them, or leave it out"
            )
        ragged_assembler = RaggedAssembler(
            plan.sources,
            plan.index,
            ragged_columns(plan.sources[0], options.columns),
            padding=plan.padding.side,
            truncate=plan.padding.truncate,
        )
        return cls(plan, ragged_assembler, wanted)

    def cut(self, wanted: RowsOfBatch, parts: int) -> HostReader:
        """Return a reader of the rows of some devices.

        Args:
            wanted: Rows of each batch that the devices need.
            parts: Number of parts of each batch that the devices have.
        """
        assembler = self.assembler
        if isinstance(assembler, Assembler):
            assembler = assembler.of_parts(parts)
        return replace(self, wanted=wanted, assembler=assembler)

    def reweighted(self, weights: Mapping[str, float], step: int) -> HostReader:
        """Return a reader with other weights from a step of the run on; ConfigError where that is impossible."""
        mixture = self.plan.data
        position = self.plan.steps.position(step)
        if not isinstance(mixture, Mixture):
            raise ConfigError(f"weights: {mixture.name} is a single dataset; weights are of a mixture")
        if self.plan.steps.rows is not None and (position.passes or position.rows >= self.plan.steps.rows):
            raise ConfigError(
                f"weights: step {step} is behind the first pass, and what a pass holds does not change any more; "
                "expected a step before its end (a mixture without rows that begins its sources again has no end)"
            )
        stream = self.plan.stream(0)
        assert isinstance(stream, MixtureStream)
        return self._mixed_as(mixture.reweighted(stream.mixture.step_after(position.rows), weights))

    def replaying(self, state: Mapping[str, Any]) -> HostReader:
        """Return a reader with the weights that a trainer had set before a state; itself where it had set none."""
        mixture = self.plan.data
        if not isinstance(mixture, Mixture):
            return self
        is_mapping = isinstance(state, Mapping)  # pyright: ignore[reportUnnecessaryIsInstance]
        stored_mixture = state.get("mixture") if is_mapping else None
        if not isinstance(stored_mixture, Mapping) or "schedule" not in stored_mixture:
            return self
        replayed = mixture.replayed(WeightScheduler.from_json(stored_mixture["schedule"]))
        return self if replayed is mixture else self._mixed_as(replayed)

    def _mixed_as(self, mixture: Mixture) -> HostReader:
        """Return a reader of the same sources by other weights. The lanes stay: other weights would choose others."""
        options = replace(self.plan.options, lanes=self.plan.lanes)
        return replace(self, plan=BatchPlan(mixture, options))

    def read_ahead(self) -> DecodedAhead:
        """Return the threads that decode the row groups of the plan ahead of need."""
        plan = self.plan
        needs_loss_mask = self.assembler.needs_loss_mask
        needs_segments = plan.ranks is not None or self.assembler.needs_segments
        threads = plan.options.workers
        if threads is None:
            is_local = all(isinstance(dataset.store, LocalStore) for dataset in plan.datasets.values())
            threads = max(1, min(_LOCAL_THREADS, available_cpus() // 2)) if is_local else _REMOTE_THREADS

        def decode(rows: StoredRows, group: int) -> DecodedGroup:
            return rows.decoded(
                group, loss_mask=needs_loss_mask and rows.has_loss_mask, segments=needs_segments
            )

        return DecodedAhead(
            plan.sources,
            decode,
            times=plan.epochs if isinstance(plan.data, Dataset) else None,
            max_bytes=plan.options.cache_bytes,
            reach=max(_LEAST_REACH, plan.window_steps // 4),
            threads=threads,
        )


def _plan_in_parts(plan: BatchPlan, parts: int) -> BatchPlan:
    """Return a plan with buckets whose batches all have a multiple of `parts` rows.

    Batches of a bucket have a multiple of the lanes as rows, so that other lanes make them divide.

    Args:
        plan: With batches that do not divide.
        parts: Number of equal parts: devices that rows are cut over, or hosts.

    Raises:
        ConfigError: the batch size has no such lanes, or other lanes were asked for.
    """
    options = plan.options
    common = options.sizes.common
    sizes = ", ".join(str(size) for _, size in options.sizes.points)
    if common % parts:
        raise ConfigError(
            f"batch_size: got {sizes}, and batches are cut into {parts} equal parts (devices, or hosts); expected a "
            f"multiple of {parts}"
        )
    if options.lanes is None:
        lanes = math.lcm(plan.lanes, parts)
        if common % lanes:
            lanes = parts
        plan = BatchPlan(plan.data, replace(options, lanes=lanes))
        if plan.common_rows % parts == 0:
            return plan
    working = [lanes for lanes in range(parts, common + 1, parts) if common % lanes == 0]
    rows = ", ".join(map(str, plan.batch_sizes))
    raise ConfigError(
        f"padding.buckets: batches of the buckets have {rows} rows, which are multiples of lanes={plan.lanes}, and are "
        f"cut into {parts} equal parts (devices, or hosts); expected lanes={' or '.join(map(str, working))}, or "
        "padding with equal_rows=True"
    )


def shared_reader(data: Dataset | Mixture, options: LoaderOptions) -> PerProcess[HostReader]:
    """Return a reader that every process opens for itself; it is safe to pickle and to fork.

    Raises:
        ConfigError: the options do not fit the data.
    """
    reader = PerProcess(partial(_open_own, data, options))
    reader.get()
    return reader


def _open_own(data: Dataset | Mixture, options: LoaderOptions) -> HostReader:
    own = copy.copy(data)  # a copied dataset has files and a cache of its own
    if isinstance(own, Mixture):
        own.datasets = {name: copy.copy(dataset) for name, dataset in own.datasets.items()}
    return HostReader.open(own, options)
