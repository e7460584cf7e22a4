"""Sections about the data of a training run, with every option of the loader.

The data is one dataset or a mixture.

The keys of section `data` are the options of :class:`tokenlake.DataLoader`, and those of `data.mixture` the arguments
of :class:`tokenlake.Mixture`, with the same names::

    data:
      mixture:
        datasets: {code: artifacts/code@v3, web: artifacts/web@v1}
        weights: {code: 0.3, web: 0.7}
      batch_size: {0: 64, 1000: 128}
      lengths: {0: 512, 2000: 2048}
      balance: attention

The loader's own checks run when the configuration is read, so that a contradiction is
reported with its line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, Self, cast

from annotated_types import Ge
from pydantic import BeforeValidator, InstanceOf, Strict, model_validator

from tokenlake.base.checks import did_you_mean
from tokenlake.base.section import (
    Count,
    Path,
    Positive,
    Section,
    Seed,
    Share,
    Size,
    SourceName,
    SplitName,
    Step,
    Switch,
    Text,
    problem,
    shown,
)
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.balance import BatchBalance
from tokenlake.runtime.loader.batch_sizes import BatchSizes
from tokenlake.runtime.loader.layout import BatchLayout
from tokenlake.runtime.loader.length_curriculum import LengthCurriculum
from tokenlake.runtime.loader.options import CACHE_BYTES, LoaderOptions
from tokenlake.runtime.loader.padding import BatchPadding
from tokenlake.runtime.mixing.caps import SourceCaps
from tokenlake.runtime.mixing.mixture import Stop
from tokenlake.runtime.mixing.schedule import Curve, WeightScheduler, constant

SET_BY_MESH: Final[Mapping[str, str]] = {
    "host": "the mesh decides the rows of each host; leave it out, or give tl.Trainer a loader that has it",
    "sharding": "the mesh decides it: mesh: {data: N, fsdp: N, tensor: N}",
}
"""Options of the loader that section `data` does not take -> reason and alternative."""

_OF_SOURCE: Final = ("dataset", "mixture", "split")
"""Keys of section `data` that decide which rows are opened; all others are options
of the loader.
"""


def _option(read: Callable[[object], object], name: str) -> BeforeValidator:
    """Return the validator of an option that a class of the loader reads.

    Its message loses the name of the option.
    """

    def checked(value: object) -> object:
        # Null is the default of every such option.
        if value is None:
            return None
        try:
            return read(value)
        except ConfigError as error:
            raise problem(str(error).removeprefix(f"{name}: ")) from error

    return BeforeValidator(checked)


def _with_whole_steps(value: object) -> object:
    """Return a mapping of steps with whole numbers as keys.

    JSON, and files of it, have texts as keys.
    """
    if not isinstance(value, Mapping):
        return value
    # Other keys stay, so that the loader's check names them.
    schedule: dict[object, object] = {}
    for step, number in cast("Mapping[object, object]", value).items():
        if isinstance(step, str) and step.isdecimal():
            schedule[int(step)] = number
        else:
            schedule[step] = number
    return schedule


def _batch_size(value: object) -> object:
    """Return a batch size that the loader accepts.

    It is a number of rows, or a mapping of steps to numbers of rows.
    """
    value = _with_whole_steps(value)
    BatchSizes.of(cast("Any", value))
    return value


def _lengths(value: object) -> LengthCurriculum:
    """Return a length curriculum, in any form that the loader accepts."""
    # Both forms have steps: the short mapping, and the points of the long one.
    value = _with_whole_steps(value)
    if isinstance(value, Mapping) and "points" in value:
        arguments = cast("Mapping[str, object]", value)
        value = {**arguments, "points": _with_whole_steps(arguments["points"])}
    return LengthCurriculum.of(value)


def _window(value: object) -> object:
    """Return a window, which is a number or the word "all"."""
    # The check of the loader, with its message; the batch size does not matter for it.
    LoaderOptions(batch_size=1, window=cast("Any", value))
    return value


def _dataset(value: object) -> object:
    """Return the keys of a source that is written as an address alone.

    The address is that of its dataset.
    """
    if isinstance(value, str):
        return {"dataset": value}
    if not isinstance(value, Mapping | DataSource):
        raise problem(
            f"got {shown(value)}, must be STORE/NAME, or {{dataset: STORE/NAME, split: NAME}}"
        )
    return cast("object", value)


def _cap(option: str) -> BeforeValidator:
    """Return the validator of a cap of the sources.

    A cap is a number, or a mapping of source to number.
    """

    def checked(value: object) -> object:
        # Only the checks of the constructor are needed: the caps of the run are made
        # with its mixture.
        caps: dict[str, Any] = {option: value}
        SourceCaps(**caps)
        return value

    return _option(checked, option)


Weight = Annotated[float, Strict(), Ge(0.0)]
"""Weight of a source."""


class DataSource(Section):
    """One source of a mixture: its dataset and split."""

    dataset: Path
    """STORE/NAME, or STORE/NAME@v3."""

    split: SplitName = "train"
    """Split of the dataset."""


class SourceWeights(Section):
    """Weights of the sources from a step on."""

    step: Step
    """Step of the run."""

    weights: dict[SourceName, Weight]
    """Source -> weight: shares, percentages, or ratios of whole numbers. A source
    that is not named has weight 0.
    """


class MixtureConfig(Section):
    """Section `data.mixture`: datasets that are combined by weight.

    Its options are the arguments of `tl.Mixture`.
    """

    datasets: dict[SourceName, Annotated[DataSource, BeforeValidator(_dataset)]]
    """Source -> STORE/NAME, or ``{dataset: STORE/NAME, split: train}``. The order of
    the sources affects that of the rows.
    """

    weights: dict[SourceName, Weight] | None = None
    """Source -> weight: shares, percentages, or ratios of whole numbers. A source
    that is not named has weight 0.
    """

    weight_schedule: tuple[SourceWeights, ...] | None = None
    """Weights that change at known steps, instead of `weights`."""

    weight_schedule_type: Curve = "step"
    """Interpolation of the weights between two points of the schedule."""

    weight_changes: tuple[SourceWeights, ...] = ()
    """Changes that are decided during the run, steps ascending: no row before a change
    moves. A run resumes with changes after its last checkpoint, also to sources that it
    did not have before.
    """

    stop: Stop = "restart"
    """Action when a source ends: restart it, stop (first_exhausted), or continue
    with the others (all_exhausted).
    """

    rows: Count | None = None
    """Number of rows after which the mixture ends; null: only `stop` decides."""

    block_size: Count = 1000
    """Number of rows of a lane that are dealt together."""

    step_rows: Count | None = None
    """Number of rows per step of the schedule; null: the batch size."""

    weights_by: Literal["rows", "tokens"] = "rows"
    """Unit of the weights."""

    order: Literal[2, 3, 4] | None = None
    """Version of the order; null: the current one, or that of the checkpoint."""

    max_repetitions: Annotated[
        Positive | dict[SourceName, Positive] | None, _cap("max_repetitions")
    ] = None
    """Largest number of times that the rows of a source may come."""

    max_fraction: Annotated[
        Share | dict[SourceName, Share] | None, _cap("max_fraction")
    ] = None
    """Largest share of a source that is used, always the same rows."""

    epochs: dict[SourceName, Positive] | None = None
    """Source -> number of times that its rows come; weights and end follow from it."""

    target_budget: Count | None = None
    """Tokens of the run that an experiment represents; requires `experiment_budget`."""

    experiment_budget: Count | None = None
    """Tokens of the experiment; each source is shortened to the share
    ``experiment_budget / target_budget``.
    """

    def scheduler(self) -> WeightScheduler | None:
        """Return the weights before `weight_changes`.

        None: they follow from `epochs`.
        """
        if self.weight_schedule is not None:
            # A schedule gives every source a weight at every point.
            points = [
                {"step": point.step, "weights": self.all_weights(point)}
                for point in self.weight_schedule
            ]
            return WeightScheduler(points, self.weight_schedule_type)
        if self.weights is not None:
            return constant(
                self.all_weights(SourceWeights(step=0, weights=self.weights))
            )
        return None

    def all_weights(self, point: SourceWeights) -> dict[str, float]:
        """Return the weights of a point for all sources, in their order."""
        return {name: point.weights.get(name, 0.0) for name in self.datasets}

    @property
    def caps(self) -> dict[str, Any]:
        """Arguments of :class:`tokenlake.Mixture` that limit its sources.

        They shorten sources or limit their repetitions.
        """
        # They are arguments of the library with the same names.
        option_names = (
            "max_repetitions",
            "max_fraction",
            "epochs",
            "target_budget",
            "experiment_budget",
        )
        return {option_name: getattr(self, option_name) for option_name in option_names}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Raise an error unless weights and caps fit the sources and each other."""
        # One way to set the weights.
        option_names = ("weights", "weight_schedule", "epochs")
        set_options = [
            option for option in option_names if getattr(self, option) is not None
        ]
        if len(set_options) != 1:
            listed_options = " and ".join(set_options) or "none"
            raise problem(
                f"got {listed_options} of {', '.join(option_names)}; expected exactly one of them"
            )
        has_schedule_type = "weight_schedule_type" in self.model_fields_set
        if self.weight_schedule is None and has_schedule_type:
            raise problem(
                "weight_schedule_type does not act without weight_schedule; leave it out"
            )
        if self.epochs is not None and self.weight_changes:
            raise problem(
                "weight_changes do not act with epochs, which decide the weights; leave out one of them"
            )

        # Names of sources.
        for point in (*(self.weight_schedule or ()), *self.weight_changes):
            self._check_names(f"weights at step {point.step}", point.weights)
        self._check_names("weights", self.weights or {})

        # The checks of the library.
        try:
            scheduler = self.scheduler()
            for change in self.weight_changes:
                # Without weights `epochs` is set, which excludes changes (see above).
                assert scheduler is not None
                scheduler = scheduler.reweighted(
                    at=change.step, weights=self.all_weights(change)
                )
            SourceCaps(**self.caps).check_names(self.datasets)
        except ConfigError as error:
            raise problem(str(error)) from error
        self._check_ascending()
        return self

    def _check_names(self, option: str, weights: Mapping[str, float]) -> None:
        """Raise an error for a weight of another source."""
        for source_name in weights:
            if source_name not in self.datasets:
                hint = did_you_mean(source_name, self.datasets)
                raise problem(
                    f"{option}: {source_name!r} is not in datasets{hint} ({', '.join(self.datasets)})"
                )

    def _check_ascending(self) -> None:
        """Raise an error for a change that is not after the one before it."""
        previous = -1
        for change in self.weight_changes:
            if change.step <= previous:
                raise problem(
                    f"weight_changes: step {change.step} comes after step {previous}; expected ascending steps"
                )
            previous = change.step


class TrainingData(Section):
    """Section `data`: training data, and the options of their loader.

    Runs that open the data by themselves read it.
    """

    dataset: Path | None = None
    """STORE/NAME, or STORE/NAME@v3; or a `mixture`."""

    mixture: MixtureConfig | None = None
    """Several datasets, combined by weight."""

    split: SplitName = "train"
    """Split of the dataset; each source of a mixture names its own."""

    batch_size: Annotated[
        Count | dict[Step, Count], _option(_batch_size, "batch_size")
    ] = 8
    """Number of rows of a training step, over all devices and all parts of an
    accumulation; or {first step: rows}, from step 0 on: ``{0: 64, 1000: 128}``.
    """

    seed: Seed = 0
    """Random seed of the shuffle order."""

    shuffle: Switch = True
    """Shuffle the rows; false: rows in stored order."""

    epochs: Count | None = None
    """Number of passes over the data; null: the data never ends, and `steps` is
    required.
    """

    drop_last: Switch = False
    """Leave out the last batch of a pass if it is not full; false: it is filled with
    padding.
    """

    pad_last: Switch | None = None
    """Fill the last batch with padding; null: true, which the devices of a mesh
    need.
    """

    columns: tuple[Text, ...] | None = None
    """Columns of a batch; null: ``input_ids``, ``segment_ids``, ``positions`` and
    ``targets``, or those of preferences for the loss of preferences.
    """

    padding: Annotated[
        InstanceOf[BatchPadding] | None, _option(BatchPadding.of, "padding")
    ] = None
    """Padding of documents and preferences, also of held-out sets: ``{buckets: 8,
    multiple: 64}``. The step is compiled once for each length of a batch, so there
    should be few lengths.
    """

    layout: Annotated[
        InstanceOf[BatchLayout] | None, _option(BatchLayout.of, "layout")
    ] = None
    """Layout of the arrays, also of held-out sets: ``{context_parallel: 4}``."""

    balance: Annotated[
        InstanceOf[BatchBalance] | None, _option(BatchBalance.of, "balance")
    ] = None
    """Balance of the attention cost among devices: ``attention``, or ``{ranks: 8}``."""

    lengths: Annotated[
        InstanceOf[LengthCurriculum] | None, _option(_lengths, "lengths")
    ] = None
    """Length curriculum: ``{0: 256, 1000: 512, 3000: 2048}``, or ``{points: {...},
    keep_shape: true}``.
    """

    lanes: Count | None = None
    """Number of lanes of the order; null: chosen."""

    window: Annotated[Count | Literal["all"] | None, _option(_window, "window")] = None
    """Number of row groups whose rows are permuted together, or ``all``; null: the
    default order.
    """

    interleave: Count | None = None
    """Number of parts of each lane that are read side by side; null: the default
    order.
    """

    prefetch: Annotated[
        int, _option(lambda value: _count("prefetch", value), "prefetch")
    ] = 2
    """Number of batches prepared ahead; 0: none."""

    workers: Annotated[
        int | None, _option(lambda value: _count("workers", value), "workers")
    ] = None
    """Number of threads that decode ahead; null: chosen by the processors and the
    store.
    """

    cache_bytes: Size = CACHE_BYTES
    """Memory for decoded row groups: ``512MiB``. The default order depends on it."""

    @property
    def sources(self) -> dict[str, DataSource]:
        """Source -> dataset and split; a single dataset is named by its split."""
        if self.mixture is not None:
            return dict(self.mixture.datasets)
        assert self.dataset is not None
        return {self.split: DataSource(dataset=self.dataset, split=self.split)}

    @property
    def loader_options(self) -> dict[str, Any]:
        """Options of :class:`tokenlake.DataLoader` except `batch_size`."""
        option_names = [
            option_name
            for option_name in type(self).model_fields
            if option_name not in (*_OF_SOURCE, "batch_size")
        ]
        return {option_name: getattr(self, option_name) for option_name in option_names}

    @model_validator(mode="before")
    @classmethod
    def _without_options_of_the_mesh(cls, value: Any) -> Any:
        """Raise an error for an option of the loader that the mesh of the run sets."""
        # Users know these from `tl.DataLoader`: name the section that sets them here.
        if isinstance(value, Mapping):
            for option_name, reason in SET_BY_MESH.items():
                if option_name in value:
                    raise problem(f"{option_name}: {reason}")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Raise an error unless the options fit together.

        There must be one source of rows, and the loader must accept the options.
        """
        if self.dataset is None and self.mixture is None:
            raise problem(
                "got neither dataset nor mixture; expected dataset: STORE/NAME, or mixture: {datasets: ...}"
            )
        # A split beside a mixture would be read as that of all sources.
        if self.mixture is not None:
            for option_name in ("dataset", "split"):
                if option_name in self.model_fields_set:
                    raise problem(
                        f"{option_name} does not act with mixture, whose datasets name theirs; leave it out"
                    )
        options = dict(self.loader_options)
        # The mesh sets the number of ranks, which the check would miss.
        del options["balance"]
        try:
            LoaderOptions.of("data", self.batch_size, options)
        except ConfigError as error:
            raise problem(str(error)) from error
        return self


def _count(name: str, value: object) -> object:
    """Return a number of the loader that may be 0."""
    options: dict[str, Any] = {name: value}
    return getattr(LoaderOptions(batch_size=1, **options), name)
