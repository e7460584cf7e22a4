"""Configurations of ``type: data_module``: one dataset, a tokenizer, a prompt template and a data loader.

They are read as they are by :class:`tokenlake.data_pipeline.DataPipeline`, and translated for a build:

| key | in a build |
|---|---|
| `dataset.name` | `datasets.data_files`; a Hub id unless it is a local path, a glob or a URL |
| `dataset.config_name` | `datasets.subset` |
| `dataset.splits` | an entry of `datasets` each: `split`, `splits`, `num_rows` |
| `dataset.column_mapping` | `datasets.format_fields` |
| `dataset.streaming` | `streaming` |
| `dataset.stages` | `packing`: `pack.enabled` and `pack.seq_length` |
| `tokenizer` | `datasets.tokenizer`, with `padding: max_length` and `truncation: true` unless they are written |
| `prompt_template` | `datasets.prompt` |
| `save`, `name` | `save`, `name` |
| `dataset.columns` | checked against the columns that the prompt uses; a build reads no other anyway |
| `dataloader`, `output_schema` | of loading alone: a version says nothing of how it is read |
"""

from __future__ import annotations

import os
import re
from typing import Any, Final, Literal, Self

from pydantic import ValidationError, model_validator

from tokenlake.config.formats import FORMATS
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.refusals import problems_error
from tokenlake.config.section import (
    Count,
    DatasetName,
    Path,
    Section,
    Seed,
    SplitName,
    Switch,
    Text,
    path_of,
    problem,
)
from tokenlake.config.stages import SaveStageConfig, TokenizerChoice, TokenizerConfig
from tokenlake.config.texts import PromptConfig
from tokenlake.errors import ConfigError

DATA_MODULE: Final = "data_module"
"""What the key `type` of such a file holds."""

_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(@[\w./-]+)?")
_EXTENSIONS: Final = tuple(end for facts in FORMATS.values() for end in (*facts.extensions, *facts.prose))
_SPLIT: Final = "{split}"
_LATER: Final = {
    "fim": "fill-in-the-middle rearranges documents, not prompts, and is no stage of a prompt",
    "ppo": "a query is a prompt without an answer; train on prompts with `preference: {method: grpo}` of a build",
}

Stage = Literal["sft", "packing", "fim", "ppo"]
Name = Literal["input_ids", "attention_mask", "labels"]
Integer = Literal["int32", "int64"]


def is_hub_id(name: str) -> bool:
    """Return whether `name` is the id of a dataset on the Hub: spelled like one, and nothing that lies on this disk."""
    spelled = _ID.fullmatch(name) is not None and not name.lower().endswith(_EXTENSIONS)
    return spelled and not os.path.exists(name)  # noqa: PTH110 (pathlib would cost a second object)


class SplitSpec(Section):
    """A split of the dataset; a plain text in the place of this section is its `name`."""

    name: SplitName
    """Name of the split, of the Hub's dataset and of the result."""

    sample_size: Count | None = None
    """Use so many rows; the first ones, or where `shuffle` is true any."""

    shuffle: Switch = False
    """Take rows in an order that `seed` decides."""

    seed: Seed = 0
    """Of that order, and of the loader's."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class DataModuleDataset(Section):
    """Section `dataset`."""

    name: Path
    """Hub id, or path, glob, directory or URL of files; {split} in it stands for the name of the split."""

    config_name: Text | None = None
    """Configuration (subset) of a Hub dataset."""

    streaming: Switch = False
    """Read rows as they are asked for; false: hold them in memory, so that they can be shuffled as a whole."""

    columns: tuple[Text, ...] | None = None
    """Columns to keep; null: all."""

    splits: tuple[SplitSpec, ...] = (SplitSpec(name="train"),)
    """The splits that are used."""

    column_mapping: dict[Text, Text] | None = None
    """Name in the prompt to column of the dataset, where they differ."""

    stages: tuple[Stage, ...] = ("sft",)
    """What is done with prompts: `sft`; `packing` puts several into one row of a build."""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        names = [split.name for split in self.splits]
        if not names or len(set(names)) < len(names):
            raise problem(f"splits: got {', '.join(names) or 'none'}, must be at least one, each once")
        if len(names) > 1 and _SPLIT not in self.name and not is_hub_id(self.name):
            raise problem(
                f"splits: {', '.join(names)} would all be the rows of the same files; write {{split}} where their "
                "paths differ, such as data/{split}.jsonl"
            )
        for stage in self.stages:
            if stage in _LATER:
                raise problem(f"stages: {stage!r} is not available; {_LATER[stage]}")
        return self


class DataLoaderConfig(Section):
    """Section `dataloader`: arguments of ``torch.utils.data.DataLoader``; not used by a build."""

    batch_size: Count = 1
    """Rows of a batch."""

    num_workers: Count | Literal[0] = 0
    """Worker processes; 0: the loading one itself."""

    pin_memory: Switch = False
    """Copy batches to pinned memory of a GPU's driver."""

    persistent_workers: Switch = False
    """Keep workers from one epoch to the next."""

    prefetch_factor: Count | None = None
    """Batches that each worker makes ahead; null: PyTorch's own."""

    shuffle: Switch = False
    """Another order in every epoch, where the call does not say."""

    drop_last: Switch = False
    """Leave out the last batch of an epoch where it is smaller."""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        for name in ("persistent_workers", "prefetch_factor"):
            if getattr(self, name) and not self.num_workers:
                raise problem(f"{name}: set, but num_workers is 0; set it to 1 or more, or leave {name} out")
        return self


class DataModuleConfig(Section):
    """A configuration of ``type: data_module``."""

    type: Literal["data_module"] = DATA_MODULE
    """What kind of configuration this is."""

    version: Literal["1.0"] = "1.0"
    """Version of the schema."""

    name: DatasetName | None = None
    """Name of a build's result in the store; null: the stem of the configuration's file."""

    dataset: DataModuleDataset
    """Where rows come from."""

    tokenizer: TokenizerChoice
    """Hub id or path, or a whole section with `max_length`, `padding`, `truncation`, `special_tokens`."""

    prompt_template: PromptConfig = PromptConfig(template="{text}")
    """How a row becomes a prompt and its answer; left out: the column `text`, all of which bears loss."""

    dataloader: DataLoaderConfig = DataLoaderConfig()
    """How batches are made; not used by a build."""

    output_schema: dict[Name, Integer] = {"input_ids": "int64", "attention_mask": "int64", "labels": "int64"}  # noqa: RUF012
    """Tensors of a batch and their types; not used by a build."""

    save: SaveStageConfig = SaveStageConfig()
    """Where a build puts its result."""

    @property
    def tokenizer_config(self) -> TokenizerConfig:
        """The tokenizer, and what it does by default: rows of `max_length` ids, longer ones cut."""
        given = self.tokenizer
        written = {"name_or_path": given} if isinstance(given, str) else given.model_dump(exclude_unset=True)
        packs = "packing" in self.dataset.stages
        usual: dict[str, Any] = {} if packs else {"padding": "max_length", "truncation": True}
        return TokenizerConfig.model_validate({"max_length": 2048, **usual, **written})

    @property
    def used_columns(self) -> tuple[str, ...]:
        """Columns that the prompt names, as the dataset calls them."""
        prompt, renamed = self.prompt_template, self.dataset.column_mapping or {}
        names = (*prompt.input_columns, *([prompt.label_column] if prompt.label_column else []))
        return tuple(renamed.get(name, name) for name in names)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        columns = self.dataset.columns
        lacking = [name for name in self.used_columns if columns is not None and name not in columns]
        if lacking:
            raise problem(
                f"dataset.columns: {', '.join(map(repr, lacking))} missing, which prompt_template uses"
            )
        return self


def pipeline_of(config: DataModuleConfig, *, build: bool = True) -> PipelineConfig:
    """Return the same as the configuration of a pipeline, which builds and sources of rows read.

    Args:
        build: refuse what a build would not do.

    Raises:
        ConfigError: a build cannot do what is asked for.
    """
    dataset, tokenizer, packs = config.dataset, config.tokenizer_config, "packing" in config.dataset.stages
    shuffled = [split.name for split in dataset.splits if split.shuffle and split.sample_size is not None]
    if build and shuffled:
        found = [
            f"dataset.splits.{name}.shuffle: true, but a build takes the first sample_size rows; write shuffle: false, "
            "or load with DataPipeline"
            for name in shuffled
        ]
        raise problems_error(ConfigError, found)
    renames = {column: wanted for wanted, column in (dataset.column_mapping or {}).items()}
    datasets: list[dict[str, Any]] = []
    for split in dataset.splits:
        name = dataset.name.replace(_SPLIT, split.name)
        datasets.append(
            {
                "name": split.name,
                "data_files": name,
                "type": "hf" if is_hub_id(name) else None,
                "subset": dataset.config_name,
                "split": split.name,
                "splits": {split.name: 1.0},
                "num_rows": None if split.shuffle else split.sample_size,
                "format_fields": renames or None,
                "tokenizer": tokenizer,
                "prompt": config.prompt_template,
            }
        )
    data: dict[str, Any] = {
        "name": config.name,
        "streaming": dataset.streaming,
        "datasets": datasets,
        "pack": {"enabled": True, "seq_length": tokenizer.max_length} if packs else {"enabled": False},
        "save": config.save,
    }
    try:
        return PipelineConfig.model_validate(data)
    except ValidationError as error:
        problems = [f"{path_of(each['loc'])}: {each['msg']}" for each in error.errors()]
        raise problems_error(ConfigError, problems) from None
