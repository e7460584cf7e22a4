"""From a YAML file, a mapping or a model to a validated configuration, or to one error with every problem."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from tokenlake.base.section import path_of
from tokenlake.base.section_file import apply_overrides, problems_error, read_document, validate_section
from tokenlake.config.dataset import DATA_MODULE, SPLIT_PLACE, DataModuleConfig, is_hub_id, names_text
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.errors import ConfigError

ConfigSource = PipelineConfig | Mapping[str, Any] | str | os.PathLike[str]

_EXAMPLE: Final = "datasets: [{data_files: 'data/*.jsonl', tokenizer: openai-community/gpt2}]"


def load_config(source: ConfigSource, overrides: Sequence[str] = ()) -> PipelineConfig:
    """Return the configuration that `source` and `overrides` describe.

    Args:
        source: path of a YAML file, a mapping, or a configuration; of ``type: data_module``, too, which is translated.
        overrides: ``key=value`` texts, see :mod:`tokenlake.base.section_file`.

    In a file and in overrides a secret must be a reference. A file's stem is the default `name`.

    Raises:
        ConfigError: anything is wrong; the message has a line for each problem, with key, value, what is
            allowed, the nearest match, and the line of the file.
    """
    if isinstance(source, PipelineConfig) and not overrides:
        config, file = source, None
    else:
        data, file = read_document(PipelineConfig, source, _EXAMPLE)
        if apply_overrides(data, overrides)[0].get("type") == DATA_MODULE:
            config = pipeline_of(validate_section(DataModuleConfig, data, file, overrides))
        else:
            config = validate_section(PipelineConfig, data, file, overrides)
    if problems := config.validate():
        raise problems_error(ConfigError, problems, file and file.name)
    return config


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
        name = dataset.name.replace(SPLIT_PLACE, split.name)
        # Files that are of one split alone are named for it; of a folder of several, names or its card say which.
        is_of_split = SPLIT_PLACE in dataset.name or len(dataset.splits) == 1
        by_name = is_hub_id(name) or dataset.config_name is not None or not is_of_split
        datasets.append(
            {
                "name": split.name,
                "data_files": name if by_name else {split.name: name},
                "type": "hf" if is_hub_id(name) else None,
                "subset": dataset.config_name,
                "split": split.name,
                "splits": {split.name: 1.0},
                "num_rows": None if split.shuffle else split.sample_size,
                "format_fields": renames or None,
                "tokenizer": tokenizer,
                "prompt": config.prompt_template,
                # As the loader reads them; what is not text keeps the identity that it has without the option.
                **({"text_mode": "lines"} if names_text(name) else {}),
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
