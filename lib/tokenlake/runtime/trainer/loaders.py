"""Checks of the loaders of a training run, made before its first step.

The rows of a batch are cut over the devices of a mesh and into the parts of an
accumulation, so their number must be a multiple of both. A loader with a sharding pads
its last batch. Another loader may end with a smaller batch, and the run would fail at
its last step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.loader import DataLoader
from tokenlake.runtime.loader.plan import BatchPlan
from tokenlake.runtime.loader.state import BatchLoader

_EXPECTED: Final = "a tl.DataLoader, or of rows tl.AsyncDataLoader(source, batch_size)"


def check_loader(
    argument: str,
    loader: object,
    parts: int,
    *,
    accumulate: int = 1,
    batches: int | None = None,
) -> None:
    """Raise ConfigError unless the batches of a loader can be cut as the run needs.

    Args:
        argument: Name of the argument, for messages.
        loader: Value of the argument.
        parts: Number of devices over which the rows of a batch are cut.
        accumulate: Number of parts of a batch that are computed one after the other.
        batches: Number of batches that the run takes; None: all.
    """
    if not isinstance(loader, BatchLoader):
        raise ConfigError(
            f"{argument}: got a {type(loader).__name__}, expected {_EXPECTED}"
        )
    # Batches that are not cut may have any number of rows.
    if parts == 1 and accumulate == 1:
        return
    plan: BatchPlan | None = getattr(loader, "plan", None)
    if plan is not None and plan.options.batch_layout.flat and accumulate > 1:
        raise ConfigError(
            f"accumulate: got {accumulate}, and batches of {argument} are flat, so that their rows cannot be cut into "
            "parts; expected 1, or a loader without layout"
        )

    # Full batches.
    shape = _shape_of(loader)
    for batch_rows in shape.sizes:
        if batch_rows % accumulate:
            raise ConfigError(
                f"accumulate: got {accumulate}, and a batch of {argument} has {batch_rows} rows; expected a divisor "
                f"of {batch_rows}"
            )
        if batch_rows % parts:
            raise ConfigError(
                f"{argument}: got batches of {batch_rows} rows, which cannot be cut over {parts} devices; "
                f"expected a multiple of {parts}"
            )

    # The last batch, unless the run ends before it.
    multiple = math.lcm(parts, accumulate)
    full_batches = shape.full_batches
    if batches is not None and full_batches is not None and batches <= full_batches:
        return
    if shape.last_rows is None:
        problem = "its last batch may be smaller than the others"
    elif shape.last_rows % multiple:
        problem = f"its last batch has {shape.last_rows} rows"
    else:
        return
    cuts: list[str] = []
    if parts > 1:
        cuts.append(f"over {parts} devices")
    if accumulate > 1:
        cuts.append(f"into {accumulate} parts (accumulate)")
    raise ConfigError(
        f"{argument}: {problem}, and rows are cut {' and '.join(cuts)}; expected a multiple of {multiple} rows: give "
        "the loader drop_last=True, or a tl.DataLoader sharding=batch_sharding(make_mesh(config.mesh)) of "
        "tokenlake.trainer, which fills the batch up"
    )


def check_held_out(
    evaluation: object, loader: BatchLoader, parts: int, batches: int | None
) -> dict[str, BatchLoader]:
    """Return the loaders of held-out sets by their tags.

    Args:
        evaluation: Value of the argument, which must be a mapping of tags to loaders.
        loader: Loader of the training data.
        parts: Number of devices over which the rows of a batch are cut.
        batches: Largest number of batches of a set; None: all.

    Raises:
        ConfigError: A value is not a loader, never ends, or is the loader of the
            training data.
    """
    if not isinstance(evaluation, Mapping):
        type_name = type(evaluation).__name__
        raise ConfigError(
            f"evaluation: got a {type_name}, expected a mapping of tags to loaders: {{'held-out': loader}}"
        )
    held_out: dict[str, BatchLoader] = {}
    for tag, held_out_loader in evaluation.items():
        argument = f"evaluation.{tag}"
        check_loader(argument, held_out_loader, parts, batches=batches)
        if held_out_loader is loader:
            raise ConfigError(
                f"{argument}: got the loader of the training data, whose position an evaluation would change; "
                "expected another one"
            )
        if batches is None and _is_endless(held_out_loader):
            raise ConfigError(
                f"{argument}: the loader never ends, and evaluation.batches is not set; expected a loader of one pass "
                "(epochs=1), or evaluation.batches"
            )
        held_out[str(tag)] = held_out_loader
    return held_out


def from_beginning(loader: BatchLoader, beginning: Mapping[str, Any]) -> Iterator[Any]:
    """Return the batches of a held-out set, the same ones each time.

    Args:
        loader: Loader of the set.
        beginning: State of the loader before its first batch.
    """
    # A DataLoader begins at any step; other loaders return to a state.
    if isinstance(loader, DataLoader):
        return loader.iter_from_step(0)
    loader.set_state(beginning)
    return iter(loader)


def _is_endless(loader: BatchLoader) -> bool:
    """Return whether a loader is known to be endless.

    One with an unknown number of rows may end.
    """
    plan: BatchPlan | None = getattr(loader, "plan", None)
    if plan is None:
        return bool(getattr(loader, "endless", False))
    return plan.batches_in(0) is None


@final
@dataclass(frozen=True, slots=True)
class _LoaderShape:
    """Number of rows of the batches of a loader.

    Attributes:
        sizes: Numbers of rows of full batches; none if they are unknown.
        last_rows: Number of rows of a smaller last batch; 0: there is none; None:
            unknown.
        full_batches: Number of full batches before the smaller one; None: unknown.
    """

    sizes: tuple[int, ...]
    last_rows: int | None = 0
    full_batches: int | None = None


def _shape_of(loader: BatchLoader) -> _LoaderShape:
    """Return the shape of a loader.

    One with unknown sizes is checked batch by batch during training.
    """
    plan: BatchPlan | None = getattr(loader, "plan", None)
    if plan is not None:
        return _shape_of_plan(plan)
    batch_size: int | None = getattr(loader, "batch_size", None)
    if batch_size is None:
        return _LoaderShape(())
    # A loader that does not say otherwise is trusted to deliver full batches only.
    if getattr(loader, "drop_last", True) or _is_endless(loader):
        return _LoaderShape((batch_size,))
    return _with_last_batch(batch_size, getattr(loader, "rows", None))


def _shape_of_plan(plan: BatchPlan) -> _LoaderShape:
    """Return the shape of a loader with a plan.

    Each host has its share of the rows of a batch.
    """
    options = plan.options
    hosts = 1
    if options.host is not None:
        _host, hosts = options.host
    sizes = tuple(batch_size // hosts for batch_size in plan.batch_sizes)
    # A last batch that is padded, left out or never reached is no smaller one.
    if options.pad_last or options.drop_last or plan.batches_in(0) is None:
        return _LoaderShape(sizes)
    # With several sizes or hosts, the rows of the last batch are not worked out here.
    if len(sizes) != 1 or hosts > 1:
        return _LoaderShape(sizes, last_rows=None)
    return _with_last_batch(sizes[0], plan.steps.rows)


def _with_last_batch(size: int, rows: int | None) -> _LoaderShape:
    """Return the shape of batches of one size.

    The number of the loader's rows is None if it is unknown.
    """
    if rows is None:
        return _LoaderShape((size,), last_rows=None)
    return _LoaderShape((size,), last_rows=rows % size, full_batches=rows // size)
