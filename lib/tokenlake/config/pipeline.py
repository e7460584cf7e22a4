"""The whole configuration of a pipeline, as canonical YAML and as JSON Schema.

`mix` says weights, where a mixture ends, its order, and the caps of its sources;
`clean`, which documents are looked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, cast

import yaml
from annotated_types import Le
from pydantic import AfterValidator, BeforeValidator, model_validator

from tokenlake.base.section import (
    Count,
    DatasetName,
    Path,
    Positive,
    Section,
    Seed,
    Share,
    Size,
    Step,
    Switch,
    Text,
    Weights,
    problem,
)
from tokenlake.base.sizes import MIB
from tokenlake.config import stages
from tokenlake.config.dataset import DatasetConfig


def _named(datasets: tuple[DatasetConfig, ...]) -> tuple[DatasetConfig, ...]:
    """Give nameless datasets the names ``dataset_{i}``.

    They are copies, because the caller's objects stay as they are.
    """
    named: list[DatasetConfig] = []
    for position, dataset in enumerate(datasets):
        if dataset.name is None:
            name = f"dataset_{position}"
            named.append(dataset.model_copy(update={"name": name}))
        else:
            named.append(dataset)
    return tuple(named)


# An empty YAML section, such as `mix:` with every line commented out, is one of
# defaults.
_Defaults = BeforeValidator(
    lambda value: cast("dict[str, Any]", {}) if value is None else value
)


class CardConfig(Section):
    """Section `card`: facts about the texts on the dataset card, as keys of the Hub.

    A change of them makes a new version, which shares all data files with the old one.
    """

    license: Text | None = None
    """Licence of the texts, such as apache-2.0, cc-by-4.0 or other."""

    language: tuple[Text, ...] = ()
    """Languages of the texts, as codes: en, de."""

    task_categories: tuple[Text, ...] = ()
    """Tasks that the rows are for, such as text-generation."""


class WeightSchedulePoint(Section):
    """One point of a weight schedule: weights that are reached at a step."""

    step: Step
    """Step at which these weights are reached."""

    weights: Weights
    """Dataset name to weight: shares that sum to 1, percentages, or ratios of whole
    numbers.
    """


def _schedule(
    points: tuple[WeightSchedulePoint, ...],
) -> tuple[WeightSchedulePoint, ...]:
    """Refuse a schedule without points, and one whose points do not follow each other."""
    if not points:
        raise problem("got an empty list, must hold at least one point")
    # Weights are interpolated between two points, source by source.
    for before, after in itertools.pairwise(points):
        if after.step <= before.step:
            raise problem(
                f"got step {after.step} after step {before.step}, steps must increase"
            )
        if set(after.weights) != set(before.weights):
            raise problem(
                f"step {before.step} weighs {sorted(before.weights)}, "
                f"step {after.step} weighs {sorted(after.weights)}: all points must weigh the same datasets"
            )
    return points


class MixStageConfig(Section):
    """Section `mix`."""

    weights: Weights | None = None
    """Dataset name to weight: shares that sum to 1, percentages, or ratios of whole
    numbers such as 30 and 70. null: equal weights.
    """

    weight_schedule: (
        Annotated[tuple[WeightSchedulePoint, ...], AfterValidator(_schedule)] | None
    ) = None
    """Weights that change during the run; takes precedence over `weights`."""

    weights_by: Literal["rows", "tokens"] = "rows"
    """Unit of the weights: rows, or tokens (converted by the mean number of tokens
    per row of each source).
    """

    weight_schedule_type: Literal["step", "linear", "cosine"] = "step"
    """Interpolation of the weights between two points of the schedule."""

    step_rows: Count | None = None
    """Number of rows per step of the schedule; null: `batch_size`, or `load.batch_size`
    if a pipeline loads the mixture itself, so that a step is a training step.
    """

    block_size: Count = 1000
    """Number of rows of a lane within which the order of the sources is shuffled, but
    never beyond a batch. The weights are exact at the end of each batch.
    """

    stop_strategy: Literal["restart", "first_exhausted", "all_exhausted"] = "restart"
    """Action when a source ends: restart it, stop (first_exhausted), or continue
    with the others (all_exhausted).
    """

    seed: Seed | None = None
    """Random seed of the shuffle order; null: the seed of the pipeline."""

    lanes: Count | None = None
    """Number of lanes, which changes the order; null: chosen by the size of the
    sources, at most 64.
    """

    batch_size: Count = 256
    """Number of rows per global batch for which a stored mixture is laid out."""

    order: Literal[2, 3, 4] = 4
    """Version of the order; 2 and 3 reproduce and extend mixtures of earlier
    releases.
    """

    unit_rows: Count | None = None
    """Number of rows per unit; null: large enough that a unit reads little more than
    it writes.
    """

    total_tokens: Count | None = None
    """Number of tokens after which the mixture ends; for rows that are documents,
    the expected number.
    """

    total_rows: Count | None = None
    """Number of rows after which the mixture ends."""

    epochs: Positive | dict[Text, Positive] | None = None
    """Length of the mixture as a multiple of the rows of all sources together; or
    dataset name -> number of epochs, which also determines the weights.
    """

    max_repetitions: Positive | dict[Text, Positive] | None = None
    """Maximum average number of repetitions per source, for all sources or as dataset
    name -> number. A plan lists the sources that have too few rows.
    """

    max_fraction: Share | dict[Text, Share] | None = None
    """Share of a source's rows that may be used, for all sources or as dataset name ->
    share. The selected rows are always the same.
    """

    target_budget: Count | None = None
    """Number of tokens of the full run that an experiment represents; requires
    `experiment_budget`.
    """

    experiment_budget: Count | None = None
    """Number of tokens of the experiment. Each source is shortened to the share
    `experiment_budget / target_budget`, so that its rows are repeated as often as in
    the full run.
    """

    @property
    def points(self) -> tuple[tuple[int, dict[str, float]], ...]:
        """(step, dataset name -> weight), steps ascending.

        One point at step 0 is a constant weight.
        """
        if self.weight_schedule is None:
            return ((0, self.weights or {}),)
        return tuple((point.step, point.weights) for point in self.weight_schedule)

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        """Refuse two ends of a mixture, and options that contradict each other."""
        # A mixture ends once: the options of its end exclude each other.
        ends = ("total_tokens", "total_rows", "epochs")
        set_ends = [name for name in ends if getattr(self, name) is not None]
        if len(set_ends) > 1:
            raise problem(
                f"got {' and '.join(set_ends)}, must be at most one of {', '.join(ends)}"
            )
        # Epochs of each dataset give its number of rows, and so the weights and the end.
        if isinstance(self.epochs, dict):
            fields = type(self).model_fields
            options = ("weights", "weight_schedule", "weights_by", "stop_strategy")
            set_options = [
                name for name in options if getattr(self, name) != fields[name].default
            ]
            if set_options:
                raise problem(
                    f"got epochs of each dataset and {' and '.join(set_options)}: epochs determine the weights and "
                    "the end; expected one or the other"
                )
        # A budget of an experiment stands for that of a longer run.
        if (self.target_budget is None) != (self.experiment_budget is None):
            raise problem(
                "got one of target_budget and experiment_budget, must be both or none"
            )
        if (self.experiment_budget or 0) > (self.target_budget or 0):
            raise problem(
                f"got experiment_budget {self.experiment_budget}, must be at most target_budget {self.target_budget}"
            )
        # Each batch takes the same number of rows of every lane.
        if self.lanes is not None and self.batch_size % self.lanes:
            raise problem(
                f"got batch_size {self.batch_size} and lanes {self.lanes}, batch_size must be a multiple of lanes"
            )
        return self


_Words = Annotated[Count, Le(64)]


class ContaminationConfig(Section):
    """Documents that hold parts of evaluation sets."""

    sets: tuple[DatasetConfig, ...]
    """Evaluation sets, in the form of `datasets`. The list of documents to leave out
    contains the `name` of the set.
    """

    ngram: _Words = 13
    """Number of words per n-gram (13: GPT-3, Brown et al. 2020). Documents of a set
    with fewer words cannot be found.
    """

    min_ngrams: Count = 1
    """A document is left out if at least this number of its n-grams is in evaluation
    sets...
    """

    min_fraction: Share = 0.0
    """...and at least this share of them."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        """Require different names of the evaluation sets."""
        # The name of a set is the reason that the list gives for a document.
        names = [dataset.name for dataset in self.sets]
        if None in names:
            position = names.index(None)
            raise problem(
                f"sets.{position}: name is missing; each set needs a name, which the list of documents to leave out "
                "contains"
            )
        if len(set(names)) < len(names):
            raise problem("sets: two sets have the same name")
        return self


Exact: TypeAlias = Literal["folded", "text", "none"]


class MinHashConfig(Section):
    """Near duplicates by MinHash and locality-sensitive hashing.

    The defaults are FineWeb's (Penedo et al. 2024).

    Two documents that share a fraction s of their n-grams are found with probability 1
    - (1 - s^rows)^bands.
    """

    enabled: Switch = True
    """Look for near duplicates."""

    ngram: _Words = 5
    """Number of words per n-gram; a document with fewer words has no near
    duplicates.
    """

    bands: Count = 14
    """Number of groups of hash values; documents with one group in common are near
    duplicates.
    """

    rows: Count = 8
    """Number of hash values per group."""

    seed: Annotated[Seed, Le(2**32 - 1)] = 1
    """Seed of the hash functions."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Refuse more hash values than a signature may have."""
        if self.bands * self.rows > 4096:
            raise problem(
                f"bands * rows is {self.bands * self.rows}, must be at most 4096"
            )
        return self


def _needs_sets(value: ContaminationConfig | None) -> ContaminationConfig | None:
    """Refuse a section without evaluation sets."""
    if value is not None and not value.sets:
        raise problem("sets: got an empty list, must have at least one evaluation set")
    return value


class CleanConfig(Section):
    """Section `clean`: documents to leave out before tokenizing.

    A build reads the list with `exclude`.
    """

    output: Path | None = None
    """Parquet of the documents to leave out (`file`, `position`, `reason`, ...);
    null: NAME-exclude.parquet.
    """

    filters: stages.Quality = ()
    """Published filters of quality, by name: gopher_repetition, gopher_quality, c4,
    fineweb.
    """

    contamination: Annotated[
        ContaminationConfig | None, AfterValidator(_needs_sets)
    ] = None
    """Evaluation sets that must not overlap with the documents."""

    exact: Exact = "folded"
    """Exact duplicates: equal after folding case and white space (folded), equal
    bytes (text), or none.
    """

    minhash: MinHashConfig = MinHashConfig()
    """Near duplicates."""

    against: tuple[Path, ...] = ()
    """Lists that earlier runs wrote. Duplicates of documents that those runs kept
    are left out.
    """

    memory: Size = 512 * MIB
    """Memory for sorting, in addition to 25 bytes per document. It does not change
    the result.
    """


class PipelineConfig(Section):
    """Configuration of a pipeline; omitted sections have their defaults.

    Example:
        >>> import tokenlake as tl
        >>> config = tl.PipelineConfig(name="web", datasets=[{"data_files": "data/*.jsonl"}])
        >>> config.pack.seq_length
        2048
    """

    name: DatasetName | None = None
    """Name of the dataset in the store; null: the stem of the configuration's file."""

    datasets: Annotated[tuple[DatasetConfig, ...], AfterValidator(_named)] = ()
    """Sources, at least one."""

    default_tokenizer: stages.TokenizerChoice | None = None
    """Tokenizer of datasets without one; `tokenize.default_tokenizer` takes
    precedence.
    """

    streaming: Switch = True
    """Stream rows in the row-wise API instead of loading them. Not used by a build,
    which always streams.
    """

    seed: Seed | None = None
    """Random seed of the order of a mixture, and of packed rows if they are
    shuffled.
    """

    source: Annotated[stages.SourceStageConfig, _Defaults] = stages.SourceStageConfig()
    """Reading: units, bad records, splits."""

    clean: Annotated[CleanConfig, _Defaults] = CleanConfig()
    """Documents that `tokenlake clean` leaves out. Not used by a build, which reads
    the list with `exclude`.
    """

    tokenize: Annotated[stages.TokenizeStageConfig, _Defaults] = (
        stages.TokenizeStageConfig()
    )
    """Tokenizing."""

    cache: Annotated[stages.CacheStageConfig, _Defaults] = stages.CacheStageConfig()
    """Cache of the row-wise API; not used by a build."""

    mix: Annotated[MixStageConfig, _Defaults] = MixStageConfig()
    """Sources combined by weight."""

    pack: Annotated[stages.PackStageConfig, _Defaults] = stages.PackStageConfig()
    """Packing of documents into rows of equal length."""

    load: Annotated[stages.LoadStageConfig, _Defaults] = stages.LoadStageConfig()
    """Reading the result in a trainer; not used by a build."""

    save: Annotated[stages.SaveStageConfig, _Defaults] = stages.SaveStageConfig()
    """Store and output files."""

    card: Annotated[CardConfig, _Defaults] = CardConfig()
    """Licence, languages and tasks, for the dataset card."""

    ray: Annotated[stages.RayConfig, _Defaults] = stages.RayConfig()
    """Units that run on Ray."""

    observability: Annotated[stages.ObservabilityConfig, _Defaults] = (
        stages.ObservabilityConfig()
    )
    """Display, log lines and metrics of a run; they change no byte of the result."""

    @property
    def mixes(self) -> bool:
        """True if the sources become one weighted stream.

        Some option of the section `mix` then differs from its default.
        """
        return self.mix != MixStageConfig()

    @property
    def has_exports(self) -> bool:
        """True if exports or a push follow the commit."""
        # The version itself is Parquet with zstd; any other form is an export.
        save = self.save
        has_other_form = save.format != "parquet"
        has_other_compression = save.compression not in (None, "zstd")
        # The shards of a text build are those of the version itself.
        has_own_shards = save.num_shards is not None and not self.is_text_build
        saves_sources = any(
            dataset.save_path or dataset.shard_column for dataset in self.datasets
        )
        # EOS is refused unless an export has a format of a trainer.
        return (
            has_other_form
            or has_other_compression
            or has_own_shards
            or saves_sources
            or save.append_eos
            or save.push_to_hub
        )

    @property
    def is_text_build(self) -> bool:
        """True if all datasets are text that one build tokenizes.

        Then it has no mixture, and no stored dataset.
        """
        # A mixture reads stored tokens. So does packing whose tokens are to be kept.
        if self.mixes or (self.pack.enabled and self.tokenize.cache_tokenized):
            return False
        return all(dataset.dataset is None for dataset in self.datasets)

    @property
    def retokenized(self) -> DatasetConfig | None:
        """The stored dataset that is tokenized again; None for any other build."""
        if self.mixes or self.pack.enabled or len(self.datasets) != 1:
            return None
        dataset = self.datasets[0]
        return dataset if dataset.retokenize else None

    def tokenizer_of(
        self, dataset: DatasetConfig | None
    ) -> str | stages.TokenizerConfig | None:
        """Return the tokenizer of a dataset.

        It is the dataset's own, otherwise that of the section `tokenize`, otherwise the
        default.

        Args:
            dataset: Dataset whose options count; None for a mixture of several.

        Returns:
            The name of a tokenizer or its options; None if there is none.
        """
        # 1. The first choice that is set.
        own_choice = None
        keyword_arguments: Mapping[str, Any] = {}
        if dataset is not None:
            own_choice = dataset.tokenizer
            keyword_arguments = dataset.tokenizer_kwargs or {}
        choice = own_choice or self.tokenize.default_tokenizer or self.default_tokenizer

        # 2. Arguments of transformers that have an option of ours; the others are
        #    refused elsewhere.
        overrides: dict[str, Any] = {}
        for argument, value in keyword_arguments.items():
            if argument in stages.KWARGS:
                overrides[stages.KWARGS[argument]] = value
        if choice is None or not overrides:
            return choice

        # 3. The choice with these options. Only written options are dumped: which ones
        #    are written has a meaning of its own.
        if isinstance(choice, str):
            options: dict[str, Any] = {"name_or_path": choice}
        else:
            options = choice.model_dump(exclude_unset=True)
        return stages.TokenizerConfig.model_validate(options | overrides)

    def truncation_of(self, dataset: DatasetConfig) -> bool | None:
        """Return the option `truncation` of a dataset's tokenizer; None if not set."""
        choice = self.tokenizer_of(dataset)
        if choice is None or isinstance(choice, str):
            return None
        return choice.truncation

    def long_documents_of(self, dataset: DatasetConfig) -> stages.LongDocuments:
        """Return the policy of a dataset for documents longer than `max_length`."""
        # A policy that is set counts; otherwise it follows from other options.
        policy = dataset.long_documents or self.tokenize.long_documents
        if policy:
            return policy
        if dataset.ids is not None:
            # Tokens that are imported stay as they are, unless it is asked for.
            return "keep"
        truncates = self.truncation_of(dataset)
        if truncates is None:
            # Packing cuts documents itself and loses nothing, so only an explicit True
            # truncates before it.
            truncates = not self.pack.enabled
        return "truncate" if truncates else "keep"

    def get_dataset_by_name(self, name: str) -> DatasetConfig | None:
        """Return the dataset of a name, or None."""
        for dataset in self.datasets:
            if dataset.name == name:
                return dataset
        return None

    # Pydantic has a deprecated classmethod of this name; ours is the seeds' promise and
    # replaces it.
    def validate(self) -> list[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the contradictions between sections, one message each.

        The list is empty if there is none.
        """
        # Names of datasets are keys of other options, so that they must be unique.
        names = [dataset.name for dataset in self.datasets]
        problems: list[str] = []
        if not names:
            problems.append("At least one dataset is required")
        if len(set(names)) < len(names):
            problems.append("Duplicate dataset names found")
        # Options of the mixture that name datasets.
        values_by_option: dict[str, Any] = {"Mix weight": self.mix.weights}
        for point in self.mix.weight_schedule or ():
            values_by_option[f"Weight schedule at step {point.step}"] = point.weights
        for key in ("epochs", "max_repetitions", "max_fraction"):
            values_by_option[f"mix.{key}"] = getattr(self.mix, key)
        for option, value in values_by_option.items():
            # One number for all datasets names none of them.
            if not isinstance(value, dict):
                continue
            for name in cast("dict[str, Any]", value):
                if name not in names:
                    problems.append(f"{option} references unknown dataset: {name}")
        if self.save.push_to_hub and self.save.hub_repo_id is None:
            problems.append("save.push_to_hub needs save.hub_repo_id, such as org/name")
        return problems


def dump_yaml(config: PipelineConfig) -> str:
    """Return YAML that :func:`.load_config` reads back to an equal configuration.

    A literal secret becomes ``**********``, which is refused on reading: name where it
    is kept instead. A callback function becomes its ``module:name``.
    """
    return yaml.safe_dump(
        config.model_dump(mode="json"),
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=110,
    )


DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a YAML configuration.

    Every key has a description.
    """
    schema = PipelineConfig.model_json_schema()
    # The model itself takes an empty list, so that `validate()` can say what is
    # missing.
    schema["properties"]["datasets"]["minItems"] = 1
    return {
        "$schema": DIALECT,
        **schema,
        "title": "Tokenlake configuration",
        "required": ["datasets"],
    }
