"""Where a loader stands, as a few integers: small enough for any checkpoint, strict enough to refuse another's.

The state counts what was delivered, never what was prepared. It holds no buffer and no random state: order is a
function. It is the same on every host, whatever their number, so that a run may go on with more hosts, or fewer. A
state alone says which data was read and in which order (:func:`restored`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Final, Protocol, cast, runtime_checkable

from tokenlake.errors import ConfigError
from tokenlake.loader.dataset import Dataset
from tokenlake.loader.mixture import Mixture
from tokenlake.loader.options import LoaderOptions
from tokenlake.loader.plan import BatchPlan
from tokenlake.loader.steps import BatchSizes, LengthCurriculum, Position
from tokenlake.mixing.order import MixtureStream
from tokenlake.mixing.schedule import WeightScheduler

FORMAT: Final = 1
_COUNTS: Final = ("step", "epoch", "rows")
_FREE: Final = (*_COUNTS, "batch_size", "mixture", "balance", "lengths")
"""What may differ, or is compared by itself. Which rows come does not depend on the ranks that they are dealt to."""


@runtime_checkable
class BatchLoader(Protocol):
    """Batches of one epoch after another, with a state: :class:`tokenlake.DataLoader` and ``AsyncDataLoader``."""

    @property
    def epoch(self) -> int:
        """Of the latest iteration."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Go on behind the state, or with the next epoch."""
        ...

    def __len__(self) -> int:
        """Return the batches of an epoch; TypeError where that is not known."""
        ...

    def get_state(self) -> dict[str, Any]:
        """Return what :meth:`set_state` needs to go on behind the last batch that was delivered."""
        ...

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where another loader stood."""
        ...

    def close(self) -> None:
        """End the iteration that is under way, and its threads."""
        ...


def state_of(plan: BatchPlan, position: Position) -> dict[str, Any]:
    """Return the state, JSON-able."""
    epoch = position.passes * (plan.epochs or 1)
    return {"format": FORMAT, "step": position.step, "epoch": epoch, "rows": position.rows, **plan.identity}


def position_of(plan: BatchPlan, state: Mapping[str, Any]) -> Position:
    """Return where a loader of this plan stands in a state.

    Batch sizes may differ from the state's step on, and a schedule of weights may be one that was extended behind it:
    what was delivered stays what it was.

    Raises:
        ConfigError: it is no state, or one of other data or another order; all that differs is named.
    """
    whole = isinstance(state, Mapping) and state.get("format") == FORMAT  # pyright: ignore[reportUnnecessaryIsInstance]
    counts = whole and all(isinstance(state.get(name), int) and state[name] >= 0 for name in _COUNTS)
    if not counts or not isinstance(state.get("batch_size"), list):
        raise ConfigError(
            f"this is no state of a loader: {_short(state)}; expected what get_state() returned (format {FORMAT})"
        )
    step, epoch, rows = (int(state[name]) for name in _COUNTS)
    passes, rest = divmod(epoch, plan.epochs or 1)
    ours = state_of(plan, Position(step, passes, rows))
    problems = [
        f"{name} is {_short(state.get(name))} there and {_short(ours[name])} here"
        for name in ours
        if name not in _FREE and state.get(name) != ours[name]
    ]
    theirs = BatchSizes.from_json(state["batch_size"])
    if theirs.before(step) != plan.sizes.before(step):
        problems.append(
            f"batch sizes up to step {step} are {theirs.to_json()} there and {plan.sizes.to_json()} here "
            f"(another size from now on is written {{0: {theirs.at(0)}, {step}: {plan.sizes.at(step)}}})"
        )
    problems.extend(_length_problems(plan, state.get("lengths"), step))
    problems.extend(_mixture_problems(plan, state.get("mixture"), passes, rows))
    if rest or (plan.steps.rows is not None and rows > plan.steps.rows):
        problems.append(f"a pass here has {plan.epochs} epochs and {plan.steps.rows} rows")
    if problems:
        raise ConfigError("the state is of another run: " + "; ".join(problems), differs=problems)
    return Position(step, passes, rows)


def _length_problems(plan: BatchPlan, theirs: Any, step: int) -> list[str]:
    """Nothing where rows were cut at the same places so far."""
    whole = LengthCurriculum(((0, plan.stored_length or 1),))
    there, here = whole if theirs is None else LengthCurriculum.of(theirs), plan.curriculum or whole
    cut = there.before(step) != whole.before(step)
    if there.before(step) == here.before(step) and (not cut or there.keep_shape == here.keep_shape):
        return []
    return [
        f"lengths up to step {step} are {_short(there.to_json())} there and {_short(here.to_json())} here "
        f"(another length from now on is written {{0: {there.at(0)}, {step}: {here.at(step)}}})"
    ]


def _mixture_problems(plan: BatchPlan, theirs: Any, passes: int, rows: int) -> list[str]:
    """Nothing where our schedule is theirs, or extends theirs behind the rows that were delivered."""
    if isinstance(plan.data, Dataset) and theirs is None:
        return []
    if not isinstance(plan.data, Mixture) or not isinstance(theirs, Mapping):
        return ["only one of them is of a mixture"]
    ours = plan.data.to_json()
    # A stream may be cut elsewhere: what comes before stays what it was, but where each bucket is cut.
    free = ("schedule",) if plan.bucket_shapes else ("schedule", "rows")
    found = [
        f"mixture.{name} is {theirs.get(name)!r} there and {ours.get(name)!r} here"
        for name in dict.fromkeys((*ours, *theirs))
        if name not in free and theirs.get(name) != ours.get(name)
    ]
    if found or ours["schedule"] == theirs.get("schedule"):
        return found
    first, stream = WeightScheduler.from_json(theirs["schedule"]), plan.stream(passes)
    schedule, at = cast("WeightScheduler | None", plan.data.scheduler), None
    while schedule is not None and schedule != first:
        at, schedule = schedule.at, schedule.before
    if schedule is None or at is None:
        return ["the weights are others; expected the same schedule, or one that extends it (extend(at=...))"]
    assert isinstance(stream, MixtureStream)
    if at < (safe := stream.mixture.step_after(rows)):
        return [f"the schedule was extended at step {at}, which was passed; expected step {safe} or later"]
    return []


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 200 else f"{shown[:200]}..."


Opener = Callable[[str, str], Dataset]
"""``("code@v3", "train")`` -> the dataset."""


def restored(state: Any, open_dataset: Opener) -> tuple[BatchPlan, Position]:
    """Return the plan and the place of a state.

    Args:
        state: what ``get_state()`` of a loader returned.
        open_dataset: opens a split of a version by their names.

    Raises:
        ConfigError: it is no state, or a dataset is not the one that it was; says what differs.
        NotFoundError: there is no such version any more.
    """
    try:
        sources = {name: each["dataset"].rpartition("/") for name, each in state["sources"].items()}
        asked = {name: state[name] for name in ("seed", "shuffle", "epochs", "drop_last", "lanes", "window")}
        asked |= {name: state[name] for name in ("padding", "balance", "lengths") if name in state}
        sizes, mixture = dict(state["batch_size"]), state["mixture"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"this is no state of a loader ({error!r}); expected the JSON of what get_state() returned"
        ) from error
    if unnamed := [split for version, _, split in sources.values() if not version]:
        raise ConfigError(f"this is no state of a loader: {unnamed[0]!r} names no split of a version")
    datasets = {name: open_dataset(version, split) for name, (version, _, split) in sources.items()}
    if mixture is None:
        data = next(iter(datasets.values()))
    else:
        # Weights by tokens were worked out into weights of rows before they came into the state.
        kept = mixture.get("kept", {}).items()
        data = Mixture(
            datasets,
            WeightScheduler.from_json(mixture["schedule"]),
            stop=mixture["stop"],
            rows=mixture.get("rows"),
            block_size=mixture["block_size"],
            step_rows=mixture["step_rows"],
            order=state.get("order"),
            max_fraction={name: Fraction(rows, len(datasets[name])) for name, rows in kept},
        )
    if not asked["shuffle"]:  # rows in the order in which they are stored have neither lanes nor windows
        del asked["lanes"], asked["window"]
    plan = BatchPlan(data, LoaderOptions(batch_size=sizes, **asked))
    return plan, position_of(plan, cast("Mapping[str, Any]", state))
