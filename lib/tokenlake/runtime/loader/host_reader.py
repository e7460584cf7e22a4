"""Reader of one host: plan of all hosts, rows of this host, and its assembler."""

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
from tokenlake.runtime.mixing.order_form import OrderForm
from tokenlake.runtime.mixing.schedule import WeightScheduler
from tokenlake.runtime.mixing.streams import MixtureStream
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.store.local import LocalStore

_MOST_LOCAL_THREADS: Final = 4
"""Threads that decode local files, at most."""

_REMOTE_THREADS: Final = 16
"""Threads that decode files of a remote store, where they mostly wait."""

_LEAST_REACH: Final = 8
_MOST_REACH: Final = 32
"""Bounds of the number of steps that are decoded ahead: a quarter of the steps in
which a row group is needed.
"""

Forms = Mapping[str, OrderForm]
"""Name of a dataset -> form of its order."""


@final
@dataclass(frozen=True, eq=False)
class HostReader:
    """Reader of one host.

    Attributes:
        plan: Plan of the batches of all hosts.
        assembler: Assembler of the batches.
        wanted: Function that returns the rows of a batch that this host needs.
    """

    plan: BatchPlan
    assembler: Assembler | RaggedAssembler
    wanted: RowsOfBatch

    @classmethod
    def open(
        cls,
        data: Dataset | Mixture,
        options: LoaderOptions,
        parts: int | None = None,
        forms: Forms | None = None,
    ) -> Self:
        """Plan the batches of a run.

        Args:
            data: Dataset or mixture to read.
            options: Options of the run.
            parts: Number of equal parts into which every batch is divided; None: the
                number of hosts.
            forms: Forms of the orders of a run that is resumed, by the names of its
                datasets; None: those of the options.

        Raises:
            ConfigError: The options do not fit the data.
        """
        # 1. The plan, whose batches must divide into equal parts.
        plan = BatchPlan(data, options, forms)
        if parts is None:
            parts = 1 if options.host is None else options.host[1]
        if plan.common_rows % parts and plan.bucket_shapes:
            plan = _plan_in_parts(plan, parts, forms)
            options = plan.options
        wanted = rows_of_host(options.host, plan.common_rows)
        # 2. The assembler of packed rows.
        if plan.index is None or plan.padding is None:
            layout = options.batch_layout
            for _, length in plan.batch_shapes or ():
                layout.check_length(length)
            assembler = Assembler(
                plan.sources, check_columns(options.columns), layout=layout
            )
            return cls(plan, assembler, wanted)
        # 3. The assembler of rows of many lengths.
        if options.layout is not None:
            raise ConfigError(
                f"layout: got {options.layout!r}, but rows of {plan.named} have many lengths, and a layout needs "
                "packed rows: pack them, or leave it out"
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
            wanted: Function that returns the rows of a batch that the devices need.
            parts: Number of parts of each batch that the devices have.
        """
        assembler = self.assembler
        if isinstance(assembler, Assembler):
            assembler = assembler.of_parts(parts)
        return replace(self, wanted=wanted, assembler=assembler)

    def reweighted(self, weights: Mapping[str, float], step: int) -> HostReader:
        """Return a reader with other weights from a step of the run on.

        Args:
            weights: Weight of every source.
            step: Step of the run.

        Raises:
            ConfigError: The data is not a mixture, the step is after the first pass, or
                the weights are not possible.
        """
        # Rows of the current pass before the step stay where they are; passes after the
        # first are dealt again, and have no such place.
        mixture = self.plan.data
        position = self.plan.steps.position(step)
        if not isinstance(mixture, Mixture):
            raise ConfigError(
                f"weights: {mixture.name} is a single dataset; only a mixture has weights"
            )
        pass_rows = self.plan.steps.rows
        has_end = pass_rows is not None
        if has_end and (position.passes or position.rows >= pass_rows):
            raise ConfigError(
                f"weights: step {step} is after the first pass, whose rows no longer change; expected a step before "
                "its end (a mixture with stop='restart' and without rows has no end)"
            )
        stream = self.plan.stream(0)
        assert isinstance(stream, MixtureStream)
        return self._mixed_as(
            mixture.reweighted(stream.mixture.step_after(position.rows), weights),
            self.plan.forms,
        )

    def replaying(self, state: Mapping[str, Any]) -> HostReader:
        """Return a reader that resumes from a state.

        It is this reader if the plan is already that of the state. A mixture gets the
        weights that a trainer had set before the state. Every dataset gets the order of
        the state, unless the options request one: the default order depends on the
        release and on the memory.
        """
        if not isinstance(state, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            return self
        mixture = self.plan.data
        if not isinstance(mixture, Mixture):
            return self._ordered_as(state)
        stored_mixture = state.get("mixture")
        if not isinstance(stored_mixture, Mapping) or "schedule" not in stored_mixture:
            return self
        schedule = WeightScheduler.from_json(stored_mixture["schedule"])
        replayed = mixture.in_order_of(state).replayed(schedule)
        # Sources that were added since are not in the state, and keep their order.
        forms = self.plan.forms
        if self.plan.options.order_form is None:
            forms = forms | (OrderForm.all_of_state(state) or {})
        if replayed is mixture and forms == self.plan.forms:
            return self
        return self._mixed_as(replayed, forms)

    def _ordered_as(self, state: Mapping[str, Any]) -> HostReader:
        """Return a reader of the same dataset in the order of a state."""
        form = OrderForm.of_state(state)
        is_requested = self.plan.options.order_form is not None
        if form is None or is_requested or not self.plan.forms:
            return self
        forms = dict.fromkeys(self.plan.forms, form)
        if forms == self.plan.forms:
            return self
        return replace(self, plan=BatchPlan(self.plan.data, self.plan.options, forms))

    def _mixed_as(self, mixture: Mixture, forms: Forms) -> HostReader:
        """Return a reader of the same sources with other weights.

        The lanes stay, which the weights would change.

        Args:
            mixture: Mixture of the same sources.
            forms: Form of the order of each source.
        """
        options = replace(self.plan.options, lanes=self.plan.lanes)
        return replace(self, plan=BatchPlan(mixture, options, forms))

    def read_ahead(self) -> DecodedAhead:
        """Return the threads that decode the row groups of the plan ahead of need."""
        plan = self.plan
        needs_loss_mask = self.assembler.needs_loss_mask
        needs_segments = plan.ranks is not None or self.assembler.needs_segments
        # Threads for remote files wait for the network, threads for local files
        # compute.
        threads = plan.options.workers
        if threads is None:
            stores = [dataset.store for dataset in plan.datasets.values()]
            are_local = all(isinstance(store, LocalStore) for store in stores)
            threads = _REMOTE_THREADS
            if are_local:
                threads = max(1, min(_MOST_LOCAL_THREADS, available_cpus() // 2))

        def decode(rows: StoredRows, group: int) -> DecodedGroup:
            return rows.decoded(
                group,
                loss_mask=needs_loss_mask and rows.has_loss_mask,
                segments=needs_segments,
            )

        return DecodedAhead(
            plan.sources,
            decode,
            times=plan.epochs if isinstance(plan.data, Dataset) else None,
            max_bytes=plan.options.cache_bytes,
            reach=min(max(_LEAST_REACH, plan.window_steps // 4), _MOST_REACH),
            threads=threads,
        )


def _plan_in_parts(plan: BatchPlan, parts: int, forms: Forms | None) -> BatchPlan:
    """Return a plan with buckets whose batches all have a multiple of `parts` rows.

    The rows of a bucket's batch are a multiple of the lanes. With lanes that are a
    multiple of the parts, they divide.

    Args:
        plan: Plan whose batches do not divide.
        parts: Number of equal parts: devices among which rows are divided, or hosts.
        forms: Forms of the orders of a run that is resumed, by the names of its
            datasets; None: those of the options.

    Raises:
        ConfigError: The batch size has no such lanes, or other lanes were requested.
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
        plan = BatchPlan(plan.data, replace(options, lanes=lanes), forms)
        if plan.common_rows % parts == 0:
            return plan
    # No choice of lanes helps, or the requested ones do not: list the ones that would.
    possible_lanes = [
        lanes for lanes in range(parts, common + 1, parts) if common % lanes == 0
    ]
    expected = " or ".join(map(str, possible_lanes))
    rows = ", ".join(map(str, plan.batch_sizes))
    raise ConfigError(
        f"padding.buckets: batches of the buckets have {rows} rows, which are multiples of lanes={plan.lanes}, and are "
        f"cut into {parts} equal parts (devices, or hosts); expected lanes={expected}, or "
        "padding with equal_rows=True"
    )


def shared_reader(
    data: Dataset | Mixture, options: LoaderOptions, forms: Forms | None = None
) -> PerProcess[HostReader]:
    """Return a reader that every process opens for itself.

    It can be pickled and forked.

    Args:
        data: Dataset or mixture to read.
        options: Options of the run.
        forms: Forms of the orders of a run that is resumed, by the names of its
            datasets; None: those of the options.

    Raises:
        ConfigError: The options do not fit the data.
    """
    reader = PerProcess(partial(_open_copy, data, options, forms))
    reader.get()
    return reader


def _open_copy(
    data: Dataset | Mixture, options: LoaderOptions, forms: Forms | None
) -> HostReader:
    """Return a reader of a copy of the data.

    A copied dataset has its own files and cache.
    """
    # A process must not share open files and locks with the one that it was forked
    # from.
    data_copy = copy.copy(data)
    if isinstance(data_copy, Mixture):
        copies: dict[str, Dataset] = {}
        for source_name, dataset in data_copy.datasets.items():
            copies[source_name] = copy.copy(dataset)
        data_copy.datasets = copies
    return HostReader.open(data_copy, options, forms=forms)
