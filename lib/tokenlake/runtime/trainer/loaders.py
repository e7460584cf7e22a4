"""Which loaders a training run takes, checked before the first step.

Rows of a batch are cut over the devices of a mesh and into the parts of an accumulation, so their number must be a
multiple of both. A loader with a sharding fills up its last batch. Another one may end with a smaller batch, which
would end the run at its last step.
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

_WANTED: Final = "a tl.DataLoader, or of rows tl.AsyncDataLoader(source, batch_size)"


def check_loader(
    where: str, loader: object, parts: int, *, accumulate: int = 1, batches: int | None = None
) -> None:
    """Raise ConfigError unless a loader gives batches that a run can take.

    Args:
        where: name of the argument, for messages.
        loader: what was given.
        parts: devices that the rows of a batch are cut over.
        accumulate: parts of a batch, one after the other.
        batches: how many will be taken; None: all.
    """
    if not isinstance(loader, BatchLoader):
        raise ConfigError(f"{where}: got a {type(loader).__name__}, expected {_WANTED}")
    if parts == 1 and accumulate == 1:
        return
    shape = _shape_of(loader)
    for size in shape.sizes:
        if size % accumulate:
            raise ConfigError(
                f"accumulate: got {accumulate}, and a batch of {where} has {size} rows; expected a divisor of {size}"
            )
        if size % parts:
            raise ConfigError(
                f"{where}: got batches of {size} rows, which cannot be cut over {parts} devices; "
                f"expected a multiple of {parts}"
            )
    multiple = math.lcm(parts, accumulate)
    ends_before = batches is not None and shape.full_batches is not None and batches <= shape.full_batches
    if ends_before or (shape.last_rows is not None and shape.last_rows % multiple == 0):
        return
    if shape.last_rows is None:
        what = "its last batch may be smaller than the others"
    else:
        what = f"its last batch has {shape.last_rows} rows"
    cuts: list[str] = []
    if parts > 1:
        cuts.append(f"over {parts} devices")
    if accumulate > 1:
        cuts.append(f"into {accumulate} parts (accumulate)")
    raise ConfigError(
        f"{where}: {what}, and rows are cut {' and '.join(cuts)}; expected a multiple of {multiple} rows: give the "
        "loader drop_last=True, or a tl.DataLoader sharding=batch_sharding(make_mesh(config.mesh)) of "
        "tokenlake.runtime.trainer, which fills the batch up"
    )


def check_held_out(
    evaluation: object, loader: BatchLoader, parts: int, batches: int | None
) -> dict[str, BatchLoader]:
    """Return the loaders of held-out sets by their tags.

    Args:
        evaluation: what was given.
        loader: of the training data.
        parts: devices that the rows of a batch are cut over.
        batches: most batches of a set; None: all.

    Raises:
        ConfigError: something is no loader, never ends, or is the loader of the training data.
    """
    if not isinstance(evaluation, Mapping):
        kind = type(evaluation).__name__
        raise ConfigError(
            f"evaluation: got a {kind}, expected a mapping of tags to loaders: {{'held-out': loader}}"
        )
    held_out: dict[str, BatchLoader] = {}
    for tag, each in evaluation.items():
        where = f"evaluation.{tag}"
        check_loader(where, each, parts, batches=batches)
        if each is loader:
            raise ConfigError(
                f"{where}: got the loader of the training data, which an evaluation would move; expected another one"
            )
        if batches is None and _is_endless(each):
            raise ConfigError(
                f"{where}: the loader never ends, and evaluation.batches is not set; expected a loader of one pass "
                "(epochs=1), or evaluation.batches"
            )
        held_out[str(tag)] = each
    return held_out


def from_beginning(loader: BatchLoader, beginning: Mapping[str, Any]) -> Iterator[Any]:
    """Return the batches of a held-out set, the same ones each time.

    Args:
        loader: of the set.
        beginning: state of the loader before its first batch.
    """
    if isinstance(loader, DataLoader):
        return loader.iter_from_step(0)
    loader.set_state(beginning)
    return iter(loader)


def _is_endless(loader: BatchLoader) -> bool:
    """Whether a loader is known to have no end; rows of unknown number may end."""
    plan: BatchPlan | None = getattr(loader, "plan", None)
    if plan is None:
        return bool(getattr(loader, "endless", False))
    return plan.batches_in(0) is None


@final
@dataclass(frozen=True, slots=True)
class _LoaderShape:
    """How many rows the batches of a loader have.

    Attributes:
        sizes: of full batches.
        last_rows: of a smaller last batch; 0: there is none; None: any number.
        full_batches: before that one; None: any number.
    """

    sizes: tuple[int, ...]
    last_rows: int | None = 0
    full_batches: int | None = None


def _shape_of(loader: BatchLoader) -> _LoaderShape:
    """Return the shape of a loader; one that does not say is checked batch by batch."""
    plan: BatchPlan | None = getattr(loader, "plan", None)
    if plan is not None:
        return _shape_of_plan(plan)
    size: int | None = getattr(loader, "batch_size", None)
    if size is None:
        return _LoaderShape(())
    if getattr(loader, "drop_last", True) or _is_endless(loader):
        return _LoaderShape((size,))
    return _with_last_batch(size, getattr(loader, "rows", None))


def _shape_of_plan(plan: BatchPlan) -> _LoaderShape:
    options = plan.options
    hosts = 1 if options.host is None else options.host[1]
    sizes = tuple(size // hosts for size in plan.batch_sizes)
    if options.pad_last or options.drop_last or plan.batches_in(0) is None:
        return _LoaderShape(sizes)
    if len(sizes) != 1 or hosts > 1:
        return _LoaderShape(sizes, last_rows=None)
    return _with_last_batch(sizes[0], plan.steps.rows)


def _with_last_batch(size: int, rows: int | None) -> _LoaderShape:
    if rows is None:
        return _LoaderShape((size,), last_rows=None)
    return _LoaderShape((size,), last_rows=rows % size, full_batches=rows // size)
