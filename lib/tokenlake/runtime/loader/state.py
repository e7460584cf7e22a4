"""State of a loader: a few integers, compared strictly when they are loaded.

It is small enough for any checkpoint. The state counts the batches that were delivered,
never those that were prepared. It holds no buffer and no random state, because the
order is a function of the position. It is the same on every host and for any number of
hosts, so that a run may be resumed with more or fewer of them. A state alone identifies
the data and the order (:func:`restored`).

A state consists of ``step``, ``epoch`` and ``rows`` (the position in the stream) and of
the plan's identity: data, batch sizes, seed and other options. It is loaded in three
steps (:func:`position_of`):

1. The identity must equal that of the plan. Batch sizes, lengths and weights may differ
   after the state's position, since earlier rows stay the same; a mixture may have
   further sources, of weight 0 up to there. All differences are listed in one error.
2. The position must be one that a run with these options reaches.
3. The loader continues at this position.
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
from tokenlake.runtime.mixing.order_form import OrderForm
from tokenlake.runtime.mixing.schedule import WeightScheduler
from tokenlake.runtime.mixing.streams import MixtureStream

FORMAT: Final = 1
NO_STATE: Final = "this is not the state of a loader"

TURN: Final = "turn"
"""Key of a worker's turn, (worker, number of workers), in its state."""

GIVEN: Final = "given"
"""Key of the number of rows of the current batch that a worker has delivered, if
items are rows.
"""

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
        "interleave",
        "order",
        "sources",
        "mixture",
        "padding",
    }
)
_NOT_COMPARED: Final = (*_COUNTS, "batch_size", "mixture", "balance", "lengths")
"""Keys that may differ, or are compared separately. The rows of a batch do not
depend on the balance of ranks.
"""

# A value may be a whole checkpoint that was given by mistake.
_MOST_SHOWN: Final = 200
"""Characters of a value in a message."""


@runtime_checkable
class BatchLoader(Protocol):
    """Loader of batches, epoch after epoch, with a state.

    :class:`tokenlake.DataLoader` and ``AsyncDataLoader`` are such loaders.
    """

    @property
    def epoch(self) -> int:
        """Epoch of the latest iteration."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Iterate from the state that was set, or over the next epoch."""
        ...

    def __len__(self) -> int:
        """Return the number of batches of an epoch; TypeError if it is not known."""
        ...

    def get_state(self) -> dict[str, Any]:
        """Return the state after the last batch that was delivered.

        :meth:`set_state` continues from it.
        """
        ...

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of another loader."""
        ...

    def close(self) -> None:
        """End the current iteration and its threads."""
        ...


def state_of(plan: BatchPlan, position: Position) -> dict[str, Any]:
    """Return the state of a loader at a position, JSON-able."""
    epoch = position.passes * (plan.epochs or 1)
    return {
        "format": FORMAT,
        "step": position.step,
        "epoch": epoch,
        "rows": position.rows,
        **plan.identity,
    }


def plain_state(state: Any) -> dict[str, Any]:
    """Return a state as plain JSON values.

    Integers of NumPy become integers, tuples become lists.

    Raises:
        ConfigError: It is not a state: not a mapping, in another format, or with
            unknown keys.
    """
    # Checkpoint libraries return the integers of a state as arrays of NumPy, and its
    # tuples as lists.
    plain = plain_integers(state)
    stored_format: object = None
    if isinstance(plain, dict):
        stored_format = cast("dict[str, Any]", plain).get("format")
    if not isinstance(plain, dict) or not _is_equal(stored_format, FORMAT):
        raise ConfigError(
            f"{NO_STATE}: {_short(state)}; expected the result of get_state() (format {FORMAT})"
        )
    # An unknown key is either a newer format or another dictionary; both would be
    # misread.
    for key in cast("dict[Any, Any]", plain):
        if key not in _KEYS:
            raise ConfigError(
                f"{NO_STATE}: it has an unknown key {_short(key)}{did_you_mean(key, _KEYS)}; expected the result of "
                "get_state()"
            )
    try:
        json.dumps(plain)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{NO_STATE}: it is not JSON ({error}); expected the result of get_state()"
        ) from None
    return cast("dict[str, Any]", plain)


def require_whole_run(state: Mapping[str, Any]) -> None:
    """Raise ConfigError if a state is that of one of several workers."""
    turn = turn_of(state)
    if turn is not None and turn != (0, 1):
        raise ConfigError(
            f"this is the state of worker {turn[0]} of {turn[1]}, and not of the whole run; expected the state of a "
            "DataLoader, or state_after() of a dataset of PyTorch"
        )


def turn_of(state: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return (worker, number of workers) of a state; None if it names no worker.

    Raises:
        ConfigError: The value is not such a pair.
    """
    # The state of a whole run names no worker.
    if TURN not in state:
        return None
    turn = state[TURN]
    if isinstance(turn, list) and len(cast("list[Any]", turn)) == 2:
        first, workers = (
            whole_number(f"{NO_STATE}: {TURN}", number, 0)
            for number in cast("list[Any]", turn)
        )
        if first < workers:
            return first, workers
    raise ConfigError(
        f"{NO_STATE}: {TURN}: got {_short(turn)}, must be [worker, number of workers]"
    )


def position_of(plan: BatchPlan, state: Mapping[str, Any]) -> Position:
    """Return the position of a state in a plan.

    Batch sizes may differ from the state's step on, and the schedule of weights may be
    extended after it: the rows that were delivered stay the same.

    Args:
        plan: Plan of the loader that continues.
        state: State of a loader.

    Raises:
        ConfigError: It is not a state; or it is of other data or another order, with a
            list of all differences; or its step, epoch and rows are not those of one
            position of the run.
    """
    state = plain_state(state)
    # The three counts are compared with the plan afterwards, when its other options are
    # known to be equal.
    step = _count_of(state, "step")
    epoch = _count_of(state, "epoch")
    rows = _count_of(state, "rows")
    passes, rest = divmod(epoch, plan.epochs or 1)
    ours = state_of(plan, Position(step, passes, rows))
    # 1. Compare the identities, and collect all differences.
    problems: list[str] = []
    for key_name in ours:
        if key_name not in state and key_name not in _OPTIONAL:
            problems.append(f"{key_name} is missing there")
        elif key_name == "sources":
            problems.extend(_source_problems(plan, state.get(key_name), ours[key_name]))
        elif key_name in _NOT_COMPARED:
            continue
        elif not _is_equal(state.get(key_name), ours[key_name]):
            problems.append(
                f"{key_name} is {_short(state.get(key_name))} there and {_short(ours[key_name])} here"
            )
    for key_name in state:
        if key_name not in ours and key_name not in _OPTIONAL:
            problems.append(
                f"{key_name} is {_short(state[key_name])} there, and missing here"
            )
    theirs = _sizes_of(state)
    if theirs.before(step) != plan.sizes.before(step):
        problems.append(
            f"batch sizes up to step {step} are {theirs.to_json()} there and {plan.sizes.to_json()} here (to change "
            f"the size from now on, write {{0: {theirs.at(0)}, {step}: {plan.sizes.at(step)}}})"
        )
    problems.extend(_length_problems(plan, state.get("lengths"), step))
    problems.extend(_mixture_problems(plan, state, passes, rows))
    if rest or (plan.steps.rows is not None and rows > plan.steps.rows):
        problems.append(
            f"a pass here has {plan.epochs} epochs and {plan.steps.rows} rows"
        )
    if problems:
        raise ConfigError(
            "the state belongs to another run: " + "; ".join(problems), differs=problems
        )
    # 2. Check that a run reaches the position.
    position = Position(step, passes, rows)
    # With other weights or another end of the mixture, later passes may have another
    # length than in the state.
    is_same_stream = plan.identity["mixture"] is None or _is_equal(
        state["mixture"], plan.identity["mixture"]
    )
    if passes == 0 or is_same_stream:
        _check_place(plan, position)
    return position


def _check_place(plan: BatchPlan, position: Position) -> None:
    """Raise ConfigError unless a run reaches a position.

    The step determines the passes and rows delivered.
    """
    # The step alone determines the position; the other counts only confirm it.
    possible = [plan.position(position.step)]
    # The end of a pass is also the beginning of the next.
    if possible[0].rows == 0 and possible[0].passes > 0:
        possible.append(plan.steps.end(possible[0].passes - 1))
    if position in possible:
        return
    epochs = plan.epochs or 1
    expected = " or ".join(
        f"epoch {place.passes * epochs} and {place.rows:,} rows" for place in possible
    )
    raise ConfigError(
        f"the state contradicts itself: after {position.step:,} steps of batch sizes {plan.sizes.to_json()} a run is "
        f"at {expected}, but the state has epoch {position.passes * epochs} and {position.rows:,} rows. It was "
        "changed, or combined from several; expected the result of get_state()"
    )


def _count_of(state: Mapping[str, Any], name: str) -> int:
    """Return a count of a state; ConfigError if it is missing or not a whole number."""
    if name not in state:
        raise ConfigError(
            f"{NO_STATE}: {name!r} is missing; expected the result of get_state()"
        )
    return whole_number(f"{NO_STATE}: {name}", state[name], 0, MOST_COUNTED)


def _sizes_of(state: Mapping[str, Any]) -> BatchSizes:
    """Return the batch sizes of a state; ConfigError if they are none."""
    try:
        return BatchSizes.from_json(state["batch_size"])
    except (KeyError, TypeError, ValueError, ConfigError):
        stored_sizes = _short(state.get("batch_size"))
        raise ConfigError(
            f"{NO_STATE}: batch_size: got {stored_sizes}, must be [[step, rows], ...], from step 0 on"
        ) from None


def _is_equal(theirs: Any, ours: Any) -> bool:
    """Return whether JSON values are equal, types included.

    True is not 1, and 1.0 is not an integer.
    """
    # Compare recursively, since Python's `==` would take True for 1 at any depth.
    if isinstance(ours, Mapping):
        if not isinstance(theirs, Mapping) or theirs.keys() != ours.keys():
            return False
        return all(
            _is_equal(theirs[key], ours[key]) for key in cast("Mapping[str, Any]", ours)
        )
    if isinstance(ours, list | tuple):
        if not isinstance(theirs, list | tuple) or len(theirs) != len(ours):
            return False
        return all(map(_is_equal, theirs, ours))
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return theirs is ours
    if isinstance(ours, int) and not isinstance(theirs, int):
        return False
    return theirs == ours


def _length_problems(plan: BatchPlan, stored_lengths: Any, step: int) -> list[str]:
    """Return the difference of the length curricula before a step, if any.

    Args:
        plan: Plan of the loader that continues.
        stored_lengths: Length curriculum of the state; None: rows are whole.
        step: Step of the state.
    """
    # A run without a curriculum is one whose length never changes.
    whole_rows = LengthCurriculum(((0, plan.stored_length or 1),))
    theirs = (
        whole_rows if stored_lengths is None else LengthCurriculum.of(stored_lengths)
    )
    ours = plan.curriculum or whole_rows
    if theirs.before(step) == ours.before(step):
        # The shape of batches matters only if rows have been cut.
        was_cut = theirs.before(step) != whole_rows.before(step)
        if not was_cut or theirs.keep_shape == ours.keep_shape:
            return []
    return [
        f"lengths up to step {step} are {_short(theirs.to_json())} there and {_short(ours.to_json())} here (to "
        f"change the length from now on, write {{0: {theirs.at(0)}, {step}: {ours.at(step)}}})"
    ]


def _added_sources(plan: BatchPlan, theirs: Any) -> list[str]:
    """Return the names of the sources that a mixture has after all sources of a state.

    Sources can be added to a run in progress if they have weight 0 up to the state's
    step: the rows before it are then the same. There are two exceptions. The lengths of
    buckets depend on the rows of all sources. And a mixture that ends with its sources
    ends lane by lane, so that later weights decide rows of earlier steps.

    Args:
        plan: Plan of the loader that continues.
        theirs: Sources of the state, by name.
    """
    if not isinstance(plan.data, Mixture) or not isinstance(theirs, Mapping):
        return []
    if plan.bucket_shapes or plan.data.stop != "restart":
        return []
    names = plan.data.names
    stored_names = set(cast("Mapping[str, Any]", theirs))
    if set(names[: len(stored_names)]) != stored_names:
        return []
    return list(names[len(stored_names) :])


def _source_problems(
    plan: BatchPlan, theirs: Any, ours: Mapping[str, Any]
) -> list[str]:
    """Return the difference of the sources, if any.

    Sources that a mixture added are not reported.

    Args:
        plan: Plan of the loader that continues.
        theirs: Sources of the state, by name.
        ours: Sources of the plan, by name.
    """
    # Sources that were added are not in the state, and are left out of the comparison.
    added_names = _added_sources(plan, theirs)
    compared = dict(ours)
    for source_name in added_names:
        del compared[source_name]
    if _is_equal(theirs, compared):
        return []
    differing_forms = _form_problems(theirs, compared)
    if differing_forms:
        return differing_forms
    hint = ""
    has_new_sources = isinstance(theirs, Mapping) and len(theirs) < len(ours)
    if isinstance(plan.data, Mixture) and has_new_sources:
        hint = "; new sources of a mixture come after those of the state"
        if plan.bucket_shapes:
            hint = "; a mixture with buckets takes no new sources during a run"
        elif plan.data.stop != "restart":
            hint = f"; a mixture with stop {plan.data.stop!r} takes no new sources during a run; 'restart' does"
    problems = _version_problems(plan, theirs, compared)
    if not problems:
        problems = [f"sources is {_short(theirs)} there and {_short(ours)} here"]
    problems[-1] += hint
    return problems


def _version_problems(
    plan: BatchPlan, theirs: Any, ours: Mapping[str, Any]
) -> list[str]:
    """Return the differences of the versions of sources, one for each source.

    The list is empty if the sources of the state are not such values.

    Args:
        plan: Plan of the loader that continues.
        theirs: Sources of the state, by name.
        ours: Sources of the plan that are compared, by name.
    """
    if not isinstance(theirs, Mapping):
        return []
    their_sources = cast("Mapping[str, Any]", theirs)
    problems: list[str] = []
    for name in dict.fromkeys((*their_sources, *ours)):
        their_name = _name_of_split(their_sources.get(name))
        our_name = _name_of_split(ours.get(name))
        if their_name is None and name in their_sources:
            return []
        if their_name is None:
            problems.append(f"source {name} is missing there and {our_name} here")
        elif our_name is None:
            problems.append(f"source {name} is {their_name} there and missing here")
        elif their_name != our_name:
            version, _, split = their_name.rpartition("/")
            url = plan.datasets[name].store.url
            problems.append(
                f"source {name} is {their_name} there and {our_name} here "
                f"(tl.open({f'{url}/{version}'!r}, split={split!r}) opens that of the state)"
            )
        elif not _is_equal(their_sources[name], ours[name]):
            problems.append(
                f"source {name} is {our_name} there and here, but not the same data: "
                f"{_short(their_sources[name])} there and {_short(ours[name])} here (it was built again, or is in "
                "another store)"
            )
    return problems


def _name_of_split(source: Any) -> str | None:
    """Return the version and split of a source of a state, such as ``code@v3/train``.

    It is None if the value is not a source.
    """
    if not isinstance(source, Mapping):
        return None
    name = cast("Mapping[str, Any]", source).get("dataset")
    if not isinstance(name, str) or "/" not in name:
        return None
    return name


def _form_problems(theirs: Any, ours: Mapping[str, Any]) -> list[str]:
    """Return the difference of the orders of the same sources.

    The list is empty if the sources differ in anything else.

    Args:
        theirs: Sources of the state, by name.
        ours: Sources of the plan, by name.
    """
    if not isinstance(theirs, Mapping) or theirs.keys() != ours.keys():
        return []
    problems: list[str] = []
    for name, our_source in ours.items():
        their_source: Any = theirs[name]
        if not isinstance(their_source, Mapping):
            return []
        their_facts = cast("Mapping[str, Any]", their_source)
        for fact in dict.fromkeys((*our_source, *their_facts)):
            their_value = their_facts.get(fact)
            our_value = our_source.get(fact)
            if _is_equal(their_value, our_value):
                continue
            if fact not in ("window", "interleave", "order"):
                return []
            # A source without a form is read one row group after the other.
            default = 1 if fact == "window" else None
            problems.append(
                f"{fact} of source {name} is {_short(their_value or default)} there and "
                f"{_short(our_value or default)} here"
            )
    return problems


def _mixture_problems(
    plan: BatchPlan, state: Mapping[str, Any], passes: int, rows: int
) -> list[str]:
    """Return the differences of the mixtures, if any.

    Our schedule may extend theirs after the rows delivered.

    Args:
        plan: Plan of the loader that continues.
        state: State of a loader; its mixture is None for a single dataset.
        passes: Passes before the position of the state.
        rows: Rows of the pass before it.
    """
    theirs = state.get("mixture")
    if isinstance(plan.data, Dataset) and theirs is None:
        return []
    if not isinstance(plan.data, Mixture) or not isinstance(theirs, Mapping):
        return ["one of them reads a mixture, the other a single dataset"]
    ours = plan.data.to_json()
    added_names = _added_sources(plan, state.get("sources"))
    kept_rows = dict(ours.pop("kept", {}))
    for source_name in added_names:
        kept_rows.pop(source_name, None)
    if kept_rows:
        ours["kept"] = kept_rows
    # A step of the schedule has the rows of the first batch by default. The number has
    # to be stated before batch sizes and weights can both change.
    if theirs.get("step_rows") is None and ours["step_rows"] == plan.sizes.first:
        ours["step_rows"] = None
    # A stream may end elsewhere, since the rows before stay the same. With buckets,
    # each bucket would end elsewhere.
    not_compared = ("schedule",) if plan.bucket_shapes else ("schedule", "rows")
    problems: list[str] = []
    for argument_name in dict.fromkeys((*ours, *theirs)):
        stored_value = theirs.get(argument_name)
        own_value = ours.get(argument_name)
        if argument_name not in not_compared and not _is_equal(stored_value, own_value):
            problems.append(
                f"mixture.{argument_name} is {stored_value!r} there and {own_value!r} here"
            )
    if problems or _is_equal(theirs.get("schedule"), ours["schedule"]):
        return problems
    # Go back from our schedule, extension by extension, to theirs, in which added
    # sources have weight 0.
    their_schedule = WeightScheduler.from_json(
        theirs.get("schedule") or {}
    ).with_sources(added_names)
    schedule: WeightScheduler | None = plan.data.scheduler
    extended_at: int | None = None
    while schedule is not None and schedule != their_schedule:
        extended_at = schedule.at
        schedule = schedule.before
    if schedule is None:
        return [_other_weights(plan.data.scheduler, their_schedule)]
    if extended_at is None:  # sources were added, and have no weight yet
        return []
    stream = plan.stream(passes)
    assert isinstance(stream, MixtureStream)
    first_step = stream.mixture.step_after(rows)
    if extended_at < first_step:
        return [
            f"the schedule was extended at step {extended_at}, which has already passed; expected step {first_step} "
            "or later"
        ]
    return []


def _other_weights(ours: WeightScheduler, theirs: WeightScheduler) -> str:
    """Return a description of how the weights of a state differ from ours."""
    if ours.names != theirs.names and sorted(ours.names) == sorted(theirs.names):
        return (
            f"the order of the sources is {', '.join(theirs.names)} there and {', '.join(ours.names)} here, and it "
            "determines the order of the rows; expected the datasets in the order of the state"
        )
    return (
        f"the weights are {_weights_by_step(theirs)} there and {_weights_by_step(ours)} here; expected the same "
        "schedule, or one that extends it (extend(at=...))"
    )


def _weights_by_step(schedule: WeightScheduler) -> str:
    """Return the points of a schedule and of its changes, for a message."""
    facts = schedule.to_json()
    points = [*facts["points"]]
    for extension in facts["extensions"]:
        points.extend(extension["points"])
    return _short({point["step"]: point["weights"] for point in points})


def _short(value: Any) -> str:
    """Return a value for a message, long ones abbreviated."""
    shown_value = repr(value)
    if len(shown_value) > _MOST_SHOWN:
        return f"{shown_value[:_MOST_SHOWN]}..."
    return shown_value


Opener = Callable[[str, str], Dataset]
"""(name of a version, such as "code@v3", name of a split) -> dataset."""


def restored(state: Any, open_dataset: Opener) -> tuple[BatchPlan, Position]:
    """Return the plan and the position of a state.

    Args:
        state: State that ``get_state()`` of a loader returned.
        open_dataset: Function that opens a split of a version.

    Raises:
        ConfigError: It is not a state; or a dataset has changed, with a list of the
            differences.
        NotFoundError: A version does not exist any more.
    """
    state = plain_state(state)
    require_whole_run(state)
    # 1. Read the state.
    names = ["seed", "shuffle", "epochs", "drop_last", "lanes", "window"]
    for option_name in ("padding", "balance", "lengths", "interleave"):
        if option_name in state:
            names.append(option_name)
    mixture_arguments: dict[str, Any] = {}
    schedule: Any = None
    kept_rows: dict[str, Any] = {}
    try:
        sources = {
            name: source["dataset"].rpartition("/")
            for name, source in state["sources"].items()
        }
        options = {name: state[name] for name in names}
        sizes = dict(state["batch_size"])
        mixture = state["mixture"]
        if mixture is not None:
            mixture_arguments = {
                name: mixture[name]
                for name in ("stop", "rows", "block_size", "step_rows")
            }
            schedule = mixture["schedule"]
            kept_rows = dict(mixture.get("kept", {}))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{NO_STATE} ({error!r}); expected the result of get_state() as JSON"
        ) from error
    # 2. Open the datasets.
    datasets: dict[str, Dataset] = {}
    for version, _, split in sources.values():
        if not version:
            raise ConfigError(
                f"{NO_STATE}: {split!r} does not name a split of a version"
            )
    for source_name, (version, _, split) in sources.items():
        datasets[source_name] = open_dataset(version, split)
    forms: dict[str, OrderForm] | None = None
    # 3. Combine them as they were. The state has weights by rows, even if they were
    #    given by tokens.
    if mixture is None:
        if len(datasets) != 1:
            raise ConfigError(
                f"{NO_STATE}: it has no mixture and {len(datasets)} sources; expected one"
            )
        data: Dataset | Mixture = next(iter(datasets.values()))
    else:
        data = Mixture(
            datasets,
            WeightScheduler.from_json(schedule),
            **mixture_arguments,
            order=state.get("order"),
            max_fraction=_fractions(kept_rows, datasets),
        )
        # Each source has an order of its own.
        forms = OrderForm.all_of_state(state)
        if forms is None:
            raise ConfigError(
                f"{NO_STATE}: sources: got {_short(state['sources'])}, and a window or interleave among them is none"
            )
        del options["window"]
    if not options["shuffle"]:  # the stored order has neither lanes nor windows
        del options["lanes"]
        options.pop("window", None)
    if "interleave" in options:
        options.pop("window", None)
    plan = BatchPlan(data, LoaderOptions(batch_size=sizes, **options), forms)
    return plan, position_of(plan, state)


def _fractions(
    kept_rows: Mapping[str, Any], datasets: Mapping[str, Dataset]
) -> dict[str, Fraction]:
    """Return the share of each shortened source that a mixture uses.

    Args:
        kept_rows: Number of rows that are used, of each shortened source.
        datasets: All sources.

    Raises:
        ConfigError: A name is not that of a source, or a number is not possible.
    """
    fractions: dict[str, Fraction] = {}
    for source_name, rows in kept_rows.items():
        if source_name not in datasets:
            raise ConfigError(
                f"{NO_STATE}: mixture.kept: {source_name!r} is not a source"
            )
        most = len(datasets[source_name])
        fractions[source_name] = Fraction(
            whole_number(f"{NO_STATE}: mixture.kept.{source_name}", rows, 1, most), most
        )
    return fractions
