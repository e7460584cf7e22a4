"""Load a configuration from a YAML file, a mapping or a model.

The result is valid; otherwise one error lists every problem.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from tokenlake.base.section import path_of
from tokenlake.base.section_file import (
    apply_overrides,
    problems_error,
    read_document,
    validate_section,
)
from tokenlake.config.dataset import (
    DATA_MODULE,
    SPLIT_PLACE,
    DataModuleConfig,
    SplitSpec,
    is_hub_id,
    names_text,
)
from tokenlake.config.former_names import with_present_names
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.errors import ConfigError

ConfigSource = PipelineConfig | Mapping[str, Any] | str | os.PathLike[str]

_EXAMPLE: Final = (
    "datasets: [{data_files: 'data/*.jsonl', tokenizer: openai-community/gpt2}]"
)


def load_config(source: ConfigSource, overrides: Sequence[str] = ()) -> PipelineConfig:
    """Return the configuration of a file, a mapping or a model, with overrides.

    In a file and in overrides a secret must be a reference. A file's stem is the
    default `name`.

    Args:
        source: Path of a YAML file, mapping of its keys, or configuration. One of
            ``type: data_module`` is translated.
        overrides: Texts ``key=value`` that replace keys of the source, such as
            ``pack.seq_length=512``.

    Returns:
        The validated, frozen configuration.

    Raises:
        ConfigError: An option is wrong. The message has a line for each problem, with
            its key, value, allowed values, nearest match, and line of the file.

    Example:
        >>> import tokenlake as tl
        >>> config = tl.load_config({"datasets": [{"data_files": "data/*.jsonl"}]}, ["pack.seq_length=512"])
        >>> config.pack.seq_length
        512
    """
    # A model is frozen, so that it needs no second validation of its options.
    if isinstance(source, PipelineConfig) and not overrides:
        _require_valid(source, None)
        return source

    # Overrides are applied before validation: they may complete an incomplete file.
    overrides = with_present_names(overrides)
    data, file = read_document(PipelineConfig, source, _EXAMPLE)
    changed, _ = apply_overrides(data, overrides)
    if changed.get("type") == DATA_MODULE:
        config = pipeline_of(validate_section(DataModuleConfig, data, file, overrides))
    else:
        config = validate_section(PipelineConfig, data, file, overrides)

    # Contradictions between sections. The message has the file's name, if there is one.
    file_name = None
    if file is not None:
        file_name = file.name
    _require_valid(config, file_name)
    return config


def _require_valid(config: PipelineConfig, file: str | None) -> None:
    """Raise one ConfigError about all problems that concern several options."""
    problems = config.validate()
    if problems:
        raise problems_error(ConfigError, problems, file)


def pipeline_of(config: DataModuleConfig, *, build: bool = True) -> PipelineConfig:
    """Return the same configuration in the form of a pipeline.

    Builds and sources of rows read this form.

    Args:
        config: Configuration of ``type: data_module``.
        build: True to refuse options that a build does not support.

    Raises:
        ConfigError: An option is wrong, or not supported by a build.
    """
    # A random sample needs all rows at once, which a build never has.
    dataset = config.dataset
    if build:
        problems: list[str] = []
        for split in dataset.splits:
            if split.shuffle and split.sample_size is not None:
                problems.append(
                    f"dataset.splits.{split.name}.shuffle: true, but a build takes the first sample_size rows; write "
                    "shuffle: false, or load with DataPipeline"
                )
        if problems:
            raise problems_error(ConfigError, problems)
    # Packed rows have the length of the tokenizer's `max_length`.
    pack: dict[str, Any] = {"enabled": False}
    if "packing" in dataset.stages:
        pack = {"enabled": True, "seq_length": config.tokenizer_config.max_length}
    data: dict[str, Any] = {
        "name": config.name,
        "streaming": dataset.streaming,
        "datasets": [_dataset_of_split(config, split) for split in dataset.splits],
        "pack": pack,
        "save": config.save,
    }
    # An option that is valid here may be invalid in a pipeline. The keys in the message
    # are those of the pipeline.
    try:
        return PipelineConfig.model_validate(data)
    except ValidationError as error:
        lines: list[str] = []
        for details in error.errors():
            lines.append(f"{path_of(details['loc'])}: {details['msg']}")
        raise problems_error(ConfigError, lines) from None


def _dataset_of_split(config: DataModuleConfig, split: SplitSpec) -> dict[str, Any]:
    """Return the options of the dataset that holds one split of a data module."""
    dataset = config.dataset
    name = dataset.name.replace(SPLIT_PLACE, split.name)
    # The files of a single split are listed under its name. In a folder of several
    # splits, and on the Hub, the names of the files or the card assign files to splits.
    has_own_files = SPLIT_PLACE in dataset.name or len(dataset.splits) == 1
    is_assigned = (
        is_hub_id(name) or dataset.config_name is not None or not has_own_files
    )
    data_files: str | dict[str, str] = name
    if not is_assigned:
        data_files = {split.name: name}
    file_type: str | None = None
    if is_hub_id(name):
        file_type = "hf"
    # The first rows; a random sample was refused before, or is drawn by the loader.
    num_rows: int | None = None
    if not split.shuffle:
        num_rows = split.sample_size
    # The mapping of a data module leads from the prompt to the rows, a rename back.
    renames: dict[str, str] = {}
    for field, column in (dataset.column_mapping or {}).items():
        renames[column] = field
    options: dict[str, Any] = {
        "name": split.name,
        "data_files": data_files,
        "type": file_type,
        "subset": dataset.config_name,
        "split": split.name,
        "splits": {split.name: 1.0},
        "num_rows": num_rows,
        "format_fields": renames or None,
        "tokenizer": config.tokenizer_config,
        "prompt": config.prompt_template,
    }
    if names_text(name):
        # As the loader reads them. Other files keep the identity that they have without
        # the option.
        options["text_mode"] = "lines"
    return options
