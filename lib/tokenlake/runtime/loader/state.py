"""Where a loader stands, as a few integers: small enough for any checkpoint, strict enough to refuse another's.

The state counts what was delivered, never what was prepared. It holds no buffer and no random state: order is a
function. It is the same on every host, whatever their number, so that a run may go on with more hosts, or fewer. A
state alone says which data was read and in which order (:func:`restored`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Final, Protocol, cast, runtime_checkable

from tokenlake.base.checks import did_you_mean, plain_integers, whole_number
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.batch_sizes import BatchSizes
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.loader.length_curriculum import LengthCurriculum
from tokenlake.runtime.loader.mixture import Mixture
from tokenlake.runtime.loader.options import LoaderOptions
from tokenlake.runtime.loader.plan import MOST_COUNTED, BatchPlan
from tokenlake.runtime.loader.steps import Position
from tokenlake.runtime.mixing.schedule import WeightScheduler
from tokenlake.runtime.mixing.streams import MixtureStream

FORMAT: Final = 1
NO_STATE: Final = "this is no state of a loader"
TURN: Final = "turn"
"""The key of a worker's turn in its state."""
GIVEN: Final = "given"
"""The key of the rows of the batch at hand that a worker delivered, where items are rows."""
_COUNTS: Final = ("step", "epoch", "rows")
_OPTIONAL: Final = (TURN, GIVEN, "balance", "lengths")
_KEYS: Final = frozenset(
    {
        *_COUNTS,
        *_OPTIONAL,
        "format",
        "batch_size",
        "seed",
        "shuffle",
        "epochs",
        "drop_last",
        "lanes",
        "window",
        "order",
        "sources",
        "mixture",
        "padding",
    }
)
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


def plain_state(state: Any) -> dict[str, Any]:
    """Return a state as plain JSON values: integers of NumPy become integers, tuples become lists.

    Raises:
        ConfigError: it is no state: no mapping, of another format, or with keys that no state has.
    """
    plain = plain_integers(state)
    if not isinstance(plain, dict) or not _alike(cast("dict[str, Any]", plain).get("format"), FORMAT):
        raise ConfigError(
            f"{NO_STATE}: {_short(state)}; expected what get_state() returned (format {FORMAT})"
        )
    for key in cast("dict[Any, Any]", plain):
        if key not in _KEYS:
            raise ConfigError(
                f"{NO_STATE}: it has a key {_short(key)}, which no state has"
                f"{did_you_mean(key, _KEYS)}; expected what get_state() returned"
            )
    try:
        json.dumps(plain)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{NO_STATE}: it is not JSON ({error}); expected what get_state() returned"
        ) from None
    return cast("dict[str, Any]", plain)


def require_whole_run(state: Mapping[str, Any]) -> None:
    """Raise ConfigError where a state is that of one of several workers."""
    turn = turn_of(state)
    if turn is not None and turn != (0, 1):
        raise ConfigError(
            f"this is the state of worker {turn[0]} of {turn[1]}, and not of the whole run; expected the state of a "
            "DataLoader, or state_after() of a dataset of PyTorch"
        )


def turn_of(state: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return which worker a state is of, and of how many; None where it names none.

    Raises:
        ConfigError: it names no such worker.
    """
    if TURN not in state:
        return None
    turn = state[TURN]
    if isinstance(turn, list) and len(cast("list[Any]", turn)) == 2:
        first, workers = (
            whole_number(f"{NO_STATE}: {TURN}", number, 0) for number in cast("list[Any]", turn)
        )
        if first < workers:
            return first, workers
    raise ConfigError(f"{NO_STATE}: {TURN}: got {_short(turn)}, must be [worker, number of workers]")


def position_of(plan: BatchPlan, state: Mapping[str, Any]) -> Position:
    """Return where a loader of this plan stands in a state.

    Batch sizes may differ from the state's step on, and a schedule of weights may be one that was extended behind it:
    what was delivered stays what it was.

    Raises:
        ConfigError: it is no state, or one of other data or another order, all that differs being named; or its step,
            epoch and rows are not those of one place of the run.
    """
    state = plain_state(state)
    step, epoch, rows = (_count_of(state, name) for name in _COUNTS)
    passes, rest = divmod(epoch, plan.epochs or 1)
    ours = state_of(plan, Position(step, passes, rows))
    problems = list[str]()
    for name in ours:
        if name not in state and name not in _OPTIONAL:
            problems.append(f"{name} is missing there")
        elif name not in _FREE and not _alike(state.get(name), ours[name]):
            problems.append(f"{name} is {_short(state.get(name))} there and {_short(ours[name])} here")
    for name in state:
        if name not in ours and name not in _OPTIONAL:
            problems.append(f"{name} is {_short(state[name])} there, and a run here has none")
    theirs = _sizes_of(state)
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
    position = Position(step, passes, rows)
    # With other weights or another end of the mixture, later passes may be longer or shorter than they were there.
    is_same_stream = plan.identity["mixture"] is None or _alike(state["mixture"], plan.identity["mixture"])
    if passes == 0 or is_same_stream:
        _check_place(plan, position)
    return position


def _check_place(plan: BatchPlan, position: Position) -> None:
    """Raise ConfigError unless a run comes to a place: its step says how many passes and rows were delivered."""
    places = [plan.position(position.step)]
    if places[0].rows == 0 and places[0].passes > 0:
        places.append(plan.steps.end(places[0].passes - 1))
    if position in places:
        return
    epochs = plan.epochs or 1
    expected = " or ".join(f"epoch {place.passes * epochs} and {place.rows:,} rows" for place in places)
    raise ConfigError(
        f"the state does not fit itself: after {position.step:,} steps of batch sizes {plan.sizes.to_json()} a run is "
        f"at {expected}, and it says epoch {position.passes * epochs} and {position.rows:,} rows. It was changed, or "
        "put together from several; expected what get_state() returned"
    )


def _count_of(state: Mapping[str, Any], name: str) -> int:
    if name not in state:
        raise ConfigError(f"{NO_STATE}: {name!r} is missing; expected what get_state() returned")
    return whole_number(f"{NO_STATE}: {name}", state[name], 0, MOST_COUNTED)


def _sizes_of(state: Mapping[str, Any]) -> BatchSizes:
    try:
        return BatchSizes.from_json(state["batch_size"])
    except (KeyError, TypeError, ValueError, ConfigError):
        got = _short(state.get("batch_size"))
        raise ConfigError(
            f"{NO_STATE}: batch_size: got {got}, must be [[step, rows], ...], from step 0 on"
        ) from None


def _alike(theirs: Any, ours: Any) -> bool:
    """Whether values of JSON are equal, also in their types: True is not 1, and 1.0 is no integer."""
    if isinstance(ours, Mapping):
        if not isinstance(theirs, Mapping) or theirs.keys() != ours.keys():
            return False
        return all(_alike(theirs[key], ours[key]) for key in cast("Mapping[str, Any]", ours))
    if isinstance(ours, list | tuple):
        if not isinstance(theirs, list | tuple) or len(theirs) != len(ours):
            return False
        return all(_alike(a, b) for a, b in zip(theirs, ours, strict=True))
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return theirs is ours
    if isinstance(ours, int) and not isinstance(theirs, int):
        return False
    return theirs == ours


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
        if name not in free and not _alike(theirs.get(name), ours.get(name))
    ]
    if found or _alike(theirs.get("schedule"), ours["schedule"]):
        return found
    first, stream = WeightScheduler.from_json(theirs.get("schedule") or {}), plan.stream(passes)
    schedule, at = cast("WeightScheduler | None", plan.data.scheduler), None
    while schedule is not None and schedule != first:
        at, schedule = schedule.at, schedule.before
    if schedule is None or at is None:
        return [_other_weights(plan.data.scheduler, first)]
    assert isinstance(stream, MixtureStream)
    if at < (safe := stream.mixture.step_after(rows)):
        return [f"the schedule was extended at step {at}, which was passed; expected step {safe} or later"]
    return []


def _other_weights(ours: WeightScheduler, theirs: WeightScheduler) -> str:
    """Say how the weights of a state differ from those here."""
    if ours.names != theirs.names and sorted(ours.names) == sorted(theirs.names):
        return (
            f"the order of the sources is {', '.join(theirs.names)} there and {', '.join(ours.names)} here, and it "
            "decides the order of the rows; expected the datasets in the order of the state"
        )
    shown = [_short([point["weights"] for point in each.to_json()["points"]]) for each in (theirs, ours)]
    return (
        f"the weights are others: {shown[0]} there and {shown[1]} here; expected the same schedule, or one that "
        "extends it (extend(at=...))"
    )


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
    state = plain_state(state)
    require_whole_run(state)
    try:
        sources = {name: each["dataset"].rpartition("/") for name, each in state["sources"].items()}
        asked = {name: state[name] for name in ("seed", "shuffle", "epochs", "drop_last", "lanes", "window")}
        asked |= {name: state[name] for name in ("padding", "balance", "lengths") if name in state}
        sizes = dict(state["batch_size"])
        mixture = state["mixture"]
        mixed = dict[str, Any]()
        schedule: Any = None
        kept = dict[str, Any]()
        if mixture is not None:
            mixed = {name: mixture[name] for name in ("stop", "rows", "block_size", "step_rows")}
            schedule = mixture["schedule"]
            kept = dict(mixture.get("kept", {}))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{NO_STATE} ({error!r}); expected the JSON of what get_state() returned"
        ) from error
    if unnamed := [split for version, _, split in sources.values() if not version]:
        raise ConfigError(f"{NO_STATE}: {unnamed[0]!r} names no split of a version")
    datasets = {name: open_dataset(version, split) for name, (version, _, split) in sources.items()}
    if mixture is None:
        if len(datasets) != 1:
            raise ConfigError(f"{NO_STATE}: it has no mixture and {len(datasets)} sources; expected one")
        data = next(iter(datasets.values()))
    else:
        # Weights by tokens were worked out into weights of rows before they came into the state.
        data = Mixture(
            datasets,
            WeightScheduler.from_json(schedule),
            **mixed,
            order=state.get("order"),
            max_fraction=_fractions(kept, datasets),
        )
    if not asked["shuffle"]:  # rows in the order in which they are stored have neither lanes nor windows
        del asked["lanes"], asked["window"]
    plan = BatchPlan(data, LoaderOptions(batch_size=sizes, **asked))
    return plan, position_of(plan, state)


def _fractions(kept: Mapping[str, Any], datasets: Mapping[str, Dataset]) -> dict[str, Fraction]:
    """Return which share of each source a mixture uses, of the sources of which it does not use all rows."""
    fractions = dict[str, Fraction]()
    for name, rows in kept.items():
        if name not in datasets:
            raise ConfigError(f"{NO_STATE}: mixture.kept: {name!r} is no source")
        most = len(datasets[name])
        fractions[name] = Fraction(whole_number(f"{NO_STATE}: mixture.kept.{name}", rows, 1, most), most)
    return fractions
