"""What a training run is asked for: one YAML file, checked as every configuration is, over an optional preset.

::

    preset: pretrain
    steps: 2000
    data: {dataset: artifacts/books@v3, batch_size: 64}
    evaluation: {every: 200, sets: {held-out: {dataset: artifacts/books@v3, split: validation}}}
    checkpoint: {folder: runs/books}

An option that the chosen loss, optimizer or schedule does not know is refused, never ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, Self, cast

from annotated_types import Ge, Gt, Lt
from pydantic import BeforeValidator, InstanceOf, Strict, model_validator

from tokenlake.base.checks import require_one_of
from tokenlake.base.section import (
    Count,
    Fraction,
    Path,
    Section,
    Seed,
    SourceName,
    SplitName,
    Step,
    Switch,
    Text,
    problem,
)
from tokenlake.base.section_file import load_section
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.batch_sizes import BatchSizes
from tokenlake.runtime.loader.padding import BatchPadding


def _exponent(value: object) -> object:
    """Let ``3e-4`` be the number that everybody means; to YAML 1.1 it is a text, and only ``3.0e-4`` a number."""
    return float(value) if isinstance(value, str) and re.fullmatch(_EXPONENT, value) else value


_EXPONENT: Final = r"[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+"
_Positive = Annotated[float, Strict(), Gt(0.0), BeforeValidator(_exponent)]
_Amount = Annotated[float, Strict(), Ge(0.0), BeforeValidator(_exponent)]
_Decay = Annotated[float, Strict(), Ge(0.0), Lt(1.0)]


class _Choice(Section):
    """A section whose `name` decides which of its options act; the others are refused where they are set."""

    key: ClassVar[str]
    known: ClassVar[Mapping[str, frozenset[str]]]
    """Name -> the options that act with it."""

    @model_validator(mode="after")
    def _known_options(self) -> Self:
        name: str = self.model_dump(include={"name"})["name"]
        for option in sorted(self.model_fields_set - {"name"} - self.known[name]):
            users = ", ".join(choice for choice, options in self.known.items() if option in options)
            if getattr(self, option) is not None:
                raise problem(f"{option} does not act with {self.key} {name!r}; it belongs to: {users}")
        return self

    @property
    def acting(self) -> dict[str, Any]:
        """What decides the numbers of a run: the name and its options, as JSON."""
        facts = self.model_dump(mode="json")
        return {name: facts[name] for name in ("name", *sorted(self.known[facts["name"]]))}


def _padding(value: object) -> object:
    """Read a padding as the loader does."""
    try:
        return None if value is None else BatchPadding.of(value)
    except ConfigError as error:
        raise problem(str(error)) from error


def _batch_size(value: object) -> object:
    """Read a batch size as the loader does: a number, or step -> number; steps may be text, as JSON has them."""
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        value = {
            int(step) if isinstance(step, str) and step.isdecimal() else step: rows for step, rows in items
        }
    try:
        BatchSizes.of(cast("Any", value))
    except ConfigError as error:
        raise problem(str(error).removeprefix("batch_size: ")) from error
    return value


class HeldOutSet(Section):
    """Rows that are evaluated and never trained on."""

    dataset: Path
    """STORE/NAME, or STORE/NAME@v3."""

    split: SplitName = "validation"
    """Of that dataset."""

    batch_size: Count | None = None
    """Rows of a batch; null: those of a step, of several numbers the first."""


class TrainingData(Section):
    """Section `data`: what is trained on, for runs that open it by themselves."""

    dataset: Path
    """STORE/NAME, or STORE/NAME@v3."""

    split: SplitName = "train"
    """Of that dataset."""

    batch_size: Annotated[Count | dict[Step, Count], BeforeValidator(_batch_size)] = 8
    """Rows of a training step, of all devices and of all parts of an accumulation; or {first step: rows}, from step 0
    on: ``{0: 64, 1000: 128}``."""

    seed: Seed = 0
    """Of the order."""

    epochs: Count | None = None
    """Of a pass; null: the data never ends, and `steps` must say when training does."""

    padding: Annotated[InstanceOf[BatchPadding] | None, BeforeValidator(_padding)] = None
    """Of documents and preferences, as of the loader, of held-out sets too: ``{buckets: 8, multiple: 64}``. The step is
    compiled once for each length of a batch: few lengths are wanted."""


class EvaluationConfig(Section):
    """Section `evaluation`: held-out sets, each under a tag."""

    every: Count = 500
    """Steps between evaluations; there is one at the end, too."""

    batches: Count | None = None
    """Most batches of a set; null: all of them."""

    held_out: Switch = False
    """Evaluate what the version of `data` holds out of each source (`eval` of its datasets), by the source's name."""

    sets: dict[SourceName, HeldOutSet] = {}  # noqa: RUF012 (pydantic copies defaults)
    """Tag -> held-out set."""


LossName = Literal["cross_entropy", "focal", "dpo", "orpo", "kto"]

_LOSS_OPTIONS: Final[dict[str, frozenset[str]]] = {
    "cross_entropy": frozenset({"chunk", "z_loss"}),
    "focal": frozenset({"chunk", "z_loss", "gamma"}),
    "dpo": frozenset({"chunk", "beta", "smoothing"}),
    "orpo": frozenset({"chunk", "beta"}),
    "kto": frozenset({"chunk", "beta", "desirable", "undesirable"}),
}


class LossConfig(_Choice):
    """Section `loss`; formulas and their sources stand in ``trainer/losses.py``."""

    key = "loss"
    known = _LOSS_OPTIONS
    name: LossName = "cross_entropy"

    chunk: Count | None = None
    """Ids of a row whose logits exist at once, of a model that returns (hidden, head); null: all."""

    z_loss: _Amount = 0.0
    """Weight of log(Z)**2."""

    gamma: _Amount = 2.0
    """Focal: how much an id that is already likely counts less."""

    beta: _Positive = 0.1
    """DPO, KTO: strength of the pull to the reference; ORPO: weight of the odds ratio."""

    smoothing: Annotated[Fraction, Lt(0.5)] = 0.0
    """DPO: share of pairs that are believed to be the wrong way round."""

    desirable: _Positive = 1.0
    """KTO: weight of good completions."""

    undesirable: _Positive = 1.0
    """KTO: weight of bad completions."""


OptimizerName = Literal["adamw", "lion", "sophia", "prodigy", "adam8bit"]

_MOMENTS: Final = frozenset({"clip", "weight_decay", "b1", "b2"})
_OPTIMIZER_OPTIONS: Final[dict[str, frozenset[str]]] = {
    "adamw": _MOMENTS | {"no_decay", "eps"},
    "lion": _MOMENTS | {"no_decay"},
    "sophia": _MOMENTS | {"no_decay", "eps"},
    "prodigy": _MOMENTS | {"eps"},
    "adam8bit": _MOMENTS | {"no_decay", "eps"},
}


class OptimizerConfig(_Choice):
    """Section `optimizer`; options left out are those of the optimizer's authors."""

    key = "optimizer"
    known = _OPTIMIZER_OPTIONS
    name: OptimizerName = "adamw"

    weight_decay: _Amount = 0.0

    no_decay: tuple[Text, ...] = ()
    """Regular expressions; parameters in whose path one is found have no weight decay: ``[norm, bias]``."""

    clip: _Positive | None = None
    """Largest norm of all gradients together; null: they stay as they are."""

    b1: _Decay | None = None
    """Decay of the first moment."""

    b2: _Decay | None = None
    """Decay of the second moment."""

    eps: _Positive | None = None
    """What keeps a quotient finite."""


ScheduleName = Literal["constant", "linear", "cosine", "cosine_restarts", "wsd"]

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
    """Highest learning rate; of Prodigy, which finds its own, a factor: 1.0."""

    warmup: Step = 0
    """Steps until it is reached, in a line from 0."""

    floor: Fraction = 0.0
    """Learning rate at the end, as a share of the peak."""

    steps: Count | None = None
    """At which step the end is reached; null: with the last step of the run."""

    cycles: Count = 4
    """Restarts of the cosine, the first included."""

    decay: Fraction = 0.2
    """WSD: share of the steps, at the end, in which the rate falls."""


class MeshConfig(Section):
    """Section `mesh`: over how many devices rows (data, fsdp) and parameters (fsdp, tensor) are cut."""

    data: Count | None = None
    """Null: all devices that `fsdp` and `tensor` leave."""

    fsdp: Count = 1
    tensor: Count = 1

    rules: dict[Text, tuple[Literal["data", "fsdp", "tensor"] | None, ...]] = {}  # noqa: RUF012
    """Regular expression of a parameter's path -> axis of each of its dimensions: ``{up: [null, tensor]}``."""


class CheckpointConfig(Section):
    """Section `checkpoint`."""

    folder: Path | None = None
    """Null: none are written. Where there are some, the run goes on from the newest."""

    every: Count = 500
    """Steps between checkpoints; there is one at the end, too."""

    keep: Count = 3
    """How many of the newest stay."""


class LogConfig(Section):
    """Section `log`."""

    every: Count = 10
    """Steps between measurements; each waits for the devices."""

    ema: _Decay = 0.98
    """Decay of the running mean of the loss."""

    progress: Switch = True
    """A line on stderr."""

    jsonl: Path | None = None
    """File with a JSON object for each measurement and each evaluation."""

    tensorboard: Path | None = None
    """Folder of event files; needs tensorboardX."""

    peak_flops: _Positive | Literal["measure"] | None = None
    """FLOP/s of one device, for MFU; null: those of known accelerators; measure: of a matrix product, timed once."""

    flops_per_token: _Positive | None = None
    """Of a step, forward and backward; null: 6 for each parameter (Kaplan et al. 2020)."""


class EarlyStoppingConfig(Section):
    """Section `early_stopping`: ends a run whose held-out metric no longer falls."""

    tag: SourceName
    """Of a held-out set."""

    metric: Text = "loss"
    """Of that set; lower is better."""

    patience: Count = 3
    """Evaluations without a gain, in a row."""

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
"""Name -> what a configuration says unless it says otherwise, key by key."""


class TrainingConfig(Section):
    """A whole run."""

    preset: Text | None = None
    """One of :data:`PRESETS`; a section that chooses another `name` takes nothing from the preset's."""

    data: TrainingData | None = None
    """Null: the trainer is given a loader."""

    steps: Count | None = None
    """Of the whole run, resumed or not; null: those of one pass over the data."""

    accumulate: Count = 1
    """Equal parts of a batch whose gradients are summed one after the other, in the memory of one."""

    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the model's arithmetic; parameters, optimizer and loss are float32."""

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
        name = cast("Mapping[str, Any]", value).get("preset") if isinstance(value, Mapping) else None
        if name is None:
            return value
        require_one_of("preset", name, tuple(PRESETS))
        merged = dict(PRESETS[name])
        for key, asked in cast("Mapping[str, Any]", value).items():
            below = merged.get(key)
            own: Any = asked.model_dump(exclude_unset=True) if isinstance(asked, Section) else asked
            # Sections key by key, unless they choose another `name`.
            if isinstance(below, Mapping) and isinstance(own, Mapping):
                own = {**below, **own} if own.get("name", below.get("name")) == below.get("name") else own
            merged[key] = own
        return merged


def load_training_config(
    source: TrainingConfig | Mapping[str, Any] | str | os.PathLike[str], overrides: Sequence[str] = ()
) -> TrainingConfig:
    """Return the configuration of a training run.

    Args:
        source: path of a YAML file, a mapping, or a configuration.
        overrides: ``key=value`` texts, as ``schedule.peak=1e-3``.

    Raises:
        ConfigError: anything is wrong; the message has a line for each problem, with key, value, what is allowed,
            the nearest match, and the line of the file.
    """
    example = "{preset: smoke, data: {dataset: .demo/artifacts/demo, batch_size: 8}}"
    return load_section(TrainingConfig, source, overrides, example=example)[0]
