"""Configuration of a training run: one YAML file, over an optional preset.

It is validated like every configuration.

::

    preset: pretrain
    steps: 2000
    data: {dataset: artifacts/books@v3, batch_size: 64}
    evaluation: {every: 200, sets: {held-out: {dataset: artifacts/books@v3, split: validation}}}
    checkpoint: {folder: runs/books}

An option that the chosen loss, optimizer or schedule does not have is an error; it is
never ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, Self, cast

from annotated_types import Ge, Gt, Lt
from pydantic import BeforeValidator, Strict, model_validator

from tokenlake.base.checks import require_one_of
from tokenlake.base.section import (
    Count,
    Path,
    Section,
    Share,
    SourceName,
    SplitName,
    Step,
    Switch,
    Text,
    problem,
)
from tokenlake.base.section_file import load_section
from tokenlake.runtime.trainer.data_config import TrainingData


def _exponent(value: object) -> object:
    """Return the number of a text such as ``3e-4``.

    YAML 1.1 reads only ``3.0e-4`` as a number.
    """
    if isinstance(value, str) and re.fullmatch(_EXPONENT, value):
        return float(value)
    return value


# Numbers of a configuration, which may be written with an exponent.
_EXPONENT: Final = r"[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+"
_Positive = Annotated[float, Strict(), Gt(0.0), BeforeValidator(_exponent)]
_Amount = Annotated[float, Strict(), Ge(0.0), BeforeValidator(_exponent)]
_Decay = Annotated[float, Strict(), Ge(0.0), Lt(1.0)]


class _Choice(Section):
    """Section whose `name` decides which of its options act.

    Setting another option is an error.
    """

    key: ClassVar[str]
    known: ClassVar[Mapping[str, frozenset[str]]]
    """Name -> options that act with it."""

    @model_validator(mode="after")
    def _known_options(self) -> Self:
        """Raise an error for an option that is set and does not act with the name."""
        # An option of another loss or optimizer would be ignored silently: name the
        # ones that it belongs to.
        chosen_name: str = self.model_dump(include={"name"})["name"]
        idle_options = self.model_fields_set - {"name"} - self.known[chosen_name]
        for option in sorted(idle_options):
            users = ", ".join(
                choice for choice, options in self.known.items() if option in options
            )
            if getattr(self, option) is not None:
                raise problem(
                    f"{option} does not act with {self.key} {chosen_name!r}; it belongs to: {users}"
                )
        return self

    @property
    def acting(self) -> dict[str, Any]:
        """Name and acting options, as JSON values: they decide the numbers of a run."""
        # Options without effect are left out, so that they do not keep a run from
        # resuming.
        options = self.model_dump(mode="json")
        return {
            option_name: options[option_name]
            for option_name in ("name", *sorted(self.known[options["name"]]))
        }


class HeldOutSet(Section):
    """Rows that are evaluated and never trained on."""

    dataset: Path
    """STORE/NAME, or STORE/NAME@v3."""

    split: SplitName = "validation"
    """Split of the dataset."""

    batch_size: Count | None = None
    """Number of rows of a batch; null: that of the first training step."""


class EvaluationConfig(Section):
    """Section `evaluation`: held-out sets, each under a tag."""

    every: Count = 500
    """Number of steps between evaluations; there is one at the end, too."""

    batches: Count | None = None
    """Largest number of batches of a set; null: all of them."""

    held_out: Switch = False
    """Evaluate the documents that the version of `data` holds out (`eval` of its
    datasets); tags are source names.
    """

    sets: dict[SourceName, HeldOutSet] = {}  # noqa: RUF012 (pydantic copies defaults)
    """Tag -> held-out set."""


LossName = Literal["cross_entropy", "focal", "dpo", "orpo", "kto"]

# Options of each loss, from its formula; all losses can compute their logits in chunks.
_LOSS_OPTIONS: Final[dict[str, frozenset[str]]] = {
    "cross_entropy": frozenset({"chunk", "z_loss"}),
    "focal": frozenset({"chunk", "z_loss", "gamma"}),
    "dpo": frozenset({"chunk", "beta", "smoothing"}),
    "orpo": frozenset({"chunk", "beta"}),
    "kto": frozenset({"chunk", "beta", "desirable", "undesirable"}),
}


class LossConfig(_Choice):
    """Section `loss`; ``trainer/losses.py`` has the formulas and their sources."""

    key = "loss"
    known = _LOSS_OPTIONS
    name: LossName = "cross_entropy"

    chunk: Count | None = None
    """Number of ids of a row whose logits exist at once, of a model that returns
    (hidden, head); null: all.
    """

    z_loss: _Amount = 0.0
    """Weight of log(Z)**2."""

    gamma: _Amount = 2.0
    """Focal: exponent; the larger, the less an id counts that is likely already."""

    beta: _Positive = 0.1
    """DPO, KTO: strength of the pull to the reference; ORPO: weight of the odds
    ratio.
    """

    smoothing: Annotated[Share, Lt(0.5)] = 0.0
    """DPO: assumed share of pairs that are the wrong way round."""

    desirable: _Positive = 1.0
    """KTO: weight of good completions."""

    undesirable: _Positive = 1.0
    """KTO: weight of bad completions."""


OptimizerName = Literal["adamw", "lion", "sophia", "prodigy", "adam8bit"]

# Options of every optimizer with moments; each adds those of its own formula.
_MOMENTS: Final = frozenset({"clip", "weight_decay", "b1", "b2"})
_OPTIMIZER_OPTIONS: Final[dict[str, frozenset[str]]] = {
    "adamw": _MOMENTS | {"no_decay", "eps"},
    "lion": _MOMENTS | {"no_decay"},
    "sophia": _MOMENTS | {"no_decay", "eps"},
    "prodigy": _MOMENTS | {"eps"},
    "adam8bit": _MOMENTS | {"no_decay", "eps"},
}


class OptimizerConfig(_Choice):
    """Section `optimizer`: the optimizer and its options.

    Options left out have the defaults of the optimizer's authors.
    """

    key = "optimizer"
    known = _OPTIMIZER_OPTIONS
    name: OptimizerName = "adamw"

    weight_decay: _Amount = 0.0

    no_decay: tuple[Text, ...] = ()
    """Regular expressions; parameters whose path contains a match have no weight
    decay: ``[norm, bias]``.
    """

    clip: _Positive | None = None
    """Largest norm of all gradients together; null: gradients are not clipped."""

    b1: _Decay | None = None
    """Decay of the first moment."""

    b2: _Decay | None = None
    """Decay of the second moment."""

    eps: _Positive | None = None
    """Small number that keeps a quotient finite."""


ScheduleName = Literal["constant", "linear", "cosine", "cosine_restarts", "wsd"]

# A constant rate has no end to fall to; all other schedules know theirs.
_SCHEDULED: Final = frozenset({"peak", "warmup", "floor", "steps"})
_SCHEDULE_OPTIONS: Final[dict[str, frozenset[str]]] = {
    "constant": frozenset({"peak", "warmup"}),
    "linear": _SCHEDULED,
    "cosine": _SCHEDULED,
    "cosine_restarts": _SCHEDULED | {"cycles"},
    "wsd": _SCHEDULED | {"decay"},
}


class ScheduleConfig(_Choice):
    """Section `schedule`: the learning rate of each step."""

    key = "schedule"
    known = _SCHEDULE_OPTIONS
    name: ScheduleName = "cosine"

    peak: _Positive = 3e-4
    """Highest learning rate; for Prodigy, which finds its own, a factor: 1.0."""

    warmup: Step = 0
    """Number of steps until the peak, linear from 0."""

    floor: Share = 0.0
    """Learning rate at the end, as a share of the peak."""

    steps: Count | None = None
    """Step at which the schedule ends; null: the last step of the run."""

    cycles: Count = 4
    """Number of cosines, each of which starts at the peak."""

    decay: Share = 0.2
    """WSD: share of the steps, at the end, in which the rate falls."""


class MeshConfig(Section):
    """Section `mesh`: numbers of devices over which arrays are cut.

    Rows are cut over data and fsdp, the ids of a row over context, and parameters over
    fsdp and tensor.
    """

    data: Count | None = None
    """Number of devices; null: all that the other axes leave."""

    fsdp: Count = 1
    context: Count = 1
    """Number of devices that share each row; the model's attention must take keys from
    all of them. Set ``data.layout: {context_parallel: N}`` to the same number for parts
    of similar cost.
    """

    tensor: Count = 1

    rules: dict[Text, tuple[Literal["data", "fsdp", "tensor"] | None, ...]] = {}  # noqa: RUF012
    """Regular expression of a parameter's path -> axis of each of its dimensions:
    ``{up: [null, tensor]}``.
    """


class CheckpointConfig(Section):
    """Section `checkpoint`: place and frequency of checkpoints."""

    folder: Path | None = None
    """Folder of checkpoints, from the newest of which the run resumes; null: none
    are written.
    """

    every: Count = 500
    """Number of steps between checkpoints; there is one at the end, too."""

    keep: Count = 3
    """Number of newest checkpoints that are kept."""


class LogConfig(Section):
    """Section `log`: measurements and where they are written."""

    every: Count = 10
    """Number of steps between measurements; each waits for the devices."""

    ema: _Decay = 0.98
    """Decay of the running mean of the loss."""

    progress: Switch = True
    """Write a line to stderr for each measurement."""

    jsonl: Path | None = None
    """File with a JSON object for each measurement and each evaluation."""

    tensorboard: Path | None = None
    """Folder of event files; needs tensorboardX."""

    peak_flops: _Positive | Literal["measure"] | None = None
    """FLOP/s of one device, for MFU; null: that of known accelerators; measure: that
    of a timed matrix product.
    """

    flops_per_token: _Positive | None = None
    """FLOPs of a step per token, forward and backward; null: 6 per parameter (Kaplan
    et al. 2020).
    """


class EarlyStoppingConfig(Section):
    """Section `early_stopping`: ends a run whose held-out metric no longer falls."""

    tag: SourceName
    """Tag of a held-out set."""

    metric: Text = "loss"
    """Metric of the set; lower is better."""

    patience: Count = 3
    """Number of consecutive evaluations without a gain after which the run ends."""

    min_delta: _Amount = 0.0
    """Smallest gain that counts."""


PRESETS: Final[dict[str, dict[str, Any]]] = {
    "smoke": {
        "steps": 50,
        "schedule": {"name": "constant", "peak": 3e-3, "warmup": 5},
        "log": {"every": 5},
    },
    "pretrain": {
        "precision": "bfloat16",
        "loss": {"name": "cross_entropy", "z_loss": 1e-4},
        "optimizer": {
            "name": "adamw",
            "weight_decay": 0.1,
            "b1": 0.9,
            "b2": 0.95,
            "clip": 1.0,
            "no_decay": ["norm", "bias"],
        },
        "schedule": {"name": "cosine", "peak": 3e-4, "warmup": 1000, "floor": 0.1},
    },
    "finetune": {
        "precision": "bfloat16",
        "optimizer": {"name": "adamw", "clip": 1.0},
        "schedule": {"name": "linear", "peak": 2e-5, "warmup": 50},
    },
    "preference": {
        "precision": "bfloat16",
        "loss": {"name": "dpo"},
        "optimizer": {"name": "adamw", "clip": 1.0},
        "schedule": {"name": "linear", "peak": 5e-7, "warmup": 50},
    },
}
"""Name -> defaults of a configuration, key by key."""


class TrainingConfig(Section):
    """Configuration of a whole training run.

    Example:
        >>> import tokenlake as tl
        >>> config = tl.TrainingConfig(preset="smoke", steps=4)
        >>> config.steps, config.precision
        (4, 'float32')
    """

    preset: Text | None = None
    """Name of a preset, one of :data:`PRESETS`; a section whose `name` differs takes
    nothing from the preset.
    """

    data: TrainingData | None = None
    """Training data; null: the trainer is given a loader."""

    steps: Count | None = None
    """Number of steps of the whole run, including those before it was resumed; null:
    one pass over the data.
    """

    accumulate: Count = 1
    """Number of equal parts of a batch whose gradients are summed one after the
    other, in the memory of one.
    """

    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the model's arithmetic; parameters, optimizer and loss are
    float32.
    """

    # Every section may be left out.
    mesh: MeshConfig = MeshConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    early_stopping: EarlyStoppingConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _over_preset(cls, value: Any) -> Any:
        """Return the keys of a configuration over those of its preset.

        The presets are in :data:`PRESETS`.
        """
        if not isinstance(value, Mapping):
            return value
        keys = cast("Mapping[str, Any]", value)
        # Keys of the file win over those of the preset, key by key, not section by
        # section.
        preset = keys.get("preset")
        if preset is None:
            return keys
        require_one_of("preset", preset, tuple(PRESETS))
        merged = dict(PRESETS[preset])
        for key, section in keys.items():
            # Of a section that is an object, only the options that were set count.
            if isinstance(section, Section):
                section = section.model_dump(exclude_unset=True)
            merged[key] = _merged_section(merged.get(key), section)
        return merged


def _merged_section(preset_section: Any, section: Any) -> Any:
    """Return a section over that of the preset, key by key.

    A section that chooses another `name` replaces it.
    """
    if not isinstance(preset_section, Mapping) or not isinstance(section, Mapping):
        return section
    defaults = cast("Mapping[str, Any]", preset_section)
    options = cast("Mapping[str, Any]", section)
    # Most options of the preset would not act with another loss or optimizer, and be
    # errors.
    preset_name = defaults.get("name")
    if options.get("name", preset_name) != preset_name:
        return options
    return {**defaults, **options}


def load_training_config(
    source: TrainingConfig | Mapping[str, Any] | str | os.PathLike[str],
    overrides: Sequence[str] = (),
) -> TrainingConfig:
    """Return the configuration of a training run.

    Args:
        source: Path of a YAML file, mapping of its keys, or configuration.
        overrides: ``key=value`` texts that replace keys of the source, such as
            ``schedule.peak=1e-3``.

    Raises:
        ConfigError: The configuration is wrong. The message has a line for each
            problem, with the key, its value, the allowed values, the nearest match, and
            the line of the file.

    Example:
        >>> import tokenlake as tl
        >>> config = tl.load_training_config({"preset": "smoke", "steps": 4}, ["schedule.peak=1e-3"])
        >>> config.schedule.peak
        0.001
    """
    example = "{preset: smoke, data: {dataset: .demo/artifacts/demo, batch_size: 8}}"
    return load_section(TrainingConfig, source, overrides, example=example)[0]
