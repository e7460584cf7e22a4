"""The configuration that the parameters of a run describe.

Parameters are a name, a file or a mapping, and values that override it.

Each parameter becomes an override ``key=value``, as the command line has them.
Overrides refuse literal secrets, so a mapping that came as a parameter is turned into
overrides, too. The order is

    the demo's data (only for the configuration `demo`) < the mapping < the form's fields < the overrides
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from tokenlake.base.checks import did_you_mean
from tokenlake.base.section_file import config_text
from tokenlake.base.yaml_file import parse_yaml
from tokenlake.config.dataset import DATA_MODULE
from tokenlake.config.load import load_config
from tokenlake.config.overrides import store_overrides
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.demo import demo_settings, quiet
from tokenlake.errors import ConfigError
from tokenlake.etl.sources.hash_cache import default_path
from tokenlake.runs.policy import UNBOUNDED, Bounds, check_config


def _deployments_folder() -> Path:
    """Return the folder of the named configurations.

    A wheel has them beside this module, a checkout at its root.
    """
    module_path = Path(__file__).resolve()
    packaged = module_path.parent / "deployments"
    if packaged.is_dir():
        return packaged
    return module_path.parents[3] / "deployments"


DEPLOYMENTS: Final = _deployments_folder()
"""Folder of the configurations that are known by name."""

DEFAULT: Final = "demo"
"""Configuration of runs of the flow `tokenize` that name none."""

DEFAULT_MIXTURE: Final = "pretrain-2048"
"""Configuration of runs of the flow `mix` that name none."""

DataFiles: TypeAlias = str | Sequence[str] | Mapping[str, str | Sequence[str]]
"""Files of the only source, or a mapping of source to its files."""


def resolve_request(
    config: str | Mapping[str, Any] | None,
    data_files: DataFiles | None = None,
    tokenizer: str | None = None,
    output: str | None = None,
    name: str | None = None,
    overrides: Sequence[str] = (),
    report: Callable[[str], None] = quiet,
    weights: Mapping[str, float] | None = None,
    bounds: Bounds = UNBOUNDED,
) -> PipelineConfig:
    """Return the configuration that the parameters of `tokenize` or `mix` describe.

    The server stores all parameters as they are, so secrets must be references.

    Args:
        config: Name of a configuration in :data:`DEPLOYMENTS`, path of a file, or a
            mapping; None for the demo.
        data_files: Files of the only source, or a mapping of source to its files.
        tokenizer: Hub id or path of the tokenizer that replaces the configured one; its
            options stay.
        output: Path or URL of the store.
        name: Name of the dataset.
        overrides: Texts ``key=value``, which come last.
        report: Function that gets a line when a file is made that takes a while.
        weights: Weights of a mixture, in place of those of the configuration and of its
            schedule.
        bounds: Bounds of the run; a configuration's file must lie within them.

    Raises:
        ConfigError: Any parameter is wrong, or a secret is spelled out.
    """
    config_path, config_data = _read_base(config or DEFAULT, bounds)
    # Each parameter is one more override, in the order of the module's docstring.
    values: list[str] = []
    if tokenizer:
        values.append(f"{_tokenizer_key(config_data)}={json.dumps(tokenizer)}")
    if output:
        values += store_overrides(output)
    if name:
        values.append(f"name={json.dumps(name)}")
    if data_files:
        values += _data_file_overrides(config_data, data_files)
    if weights:
        # A schedule would take precedence over weights.
        values += [
            "mix.weight_schedule=null",
            f"mix.weights={json.dumps(dict(weights))}",
        ]
    return _load(config_path, config_data, [*values, *overrides], report, bounds)


def _tokenizer_key(config_data: Mapping[str, Any]) -> str:
    """Return the key of the default tokenizer that a configuration uses.

    That of `tokenize` comes first.
    """
    tokenizer_key = "default_tokenizer"
    choice = config_data.get(tokenizer_key)
    tokenize_section = config_data.get("tokenize")
    if isinstance(tokenize_section, Mapping):
        stage_choice = tokenize_section.get("default_tokenizer")
        if stage_choice:
            tokenizer_key = "tokenize.default_tokenizer"
            choice = stage_choice
    if isinstance(choice, Mapping):
        # Only the name is replaced; the options stay.
        return f"{tokenizer_key}.name_or_path"
    return tokenizer_key


def stage_values(
    seq_length: int | None = None,
    strategy: str | None = None,
    tokenizer_backend: str | None = None,
    splits: Mapping[str, float] | None = None,
) -> list[str]:
    """Return the overrides that the fields of a flow's form stand for.

    An empty field has none.

    Args:
        seq_length: Tokens of a packed row.
        strategy: Packing strategy.
        tokenizer_backend: Tokenizer backend.
        splits: Split -> its share of the documents.
    """
    fields = {
        "pack.seq_length": seq_length,
        "pack.strategy": strategy,
        "tokenize.tokenizer_backend": tokenizer_backend,
        "source.splits": dict(splits) if splits else None,
    }
    return [f"{key}={json.dumps(value)}" for key, value in fields.items() if value]


def known_configurations() -> list[str]:
    """Return the names of the configurations in :data:`DEPLOYMENTS`, sorted."""
    return sorted(file.stem for file in DEPLOYMENTS.glob("*.yaml"))


def require_flow(flow: str, config: PipelineConfig) -> None:
    """Check that a flow builds a configuration.

    `tokenize` builds from text, `mix` everything else.

    Args:
        flow: Name of the flow.
        config: Configuration of the run.

    Raises:
        ConfigError: The configuration is for the other flow.
    """
    name = config.name or "the configuration"
    if flow == "tokenize" and not config.is_text_build:
        reason = "packs or mixes stored datasets, or stores tokens"
        if config.mixes:
            reason = "mixes its datasets (section mix)"
        raise ConfigError(
            f"{name} {reason}, and the flow `tokenize` builds one dataset from text; run the flow `mix` with the same "
            "parameters, or `tokenlake run`, which chooses the flow by itself"
        )
    if flow == "mix" and config.is_text_build:
        raise ConfigError(
            f"{name} mixes nothing: it has no section mix and names no stored dataset; run the flow `tokenize`, or "
            "write mix: {weights: ..., epochs: 1}"
        )


def requested_name(default: str, parameters: Mapping[str, Any]) -> str:
    """Return a name for a run by its parameters, before any of them is read or checked.

    Args:
        default: Configuration of runs that name none.
        parameters: Parameters of the run.
    """
    config = parameters.get("config")
    name = parameters.get("name")
    # A mapping may name its dataset. That of a file has the file's name by default.
    if isinstance(config, Mapping):
        flow = "mix" if default == DEFAULT_MIXTURE else "tokenize"
        return str(name or config.get("name") or flow)
    if name:
        return str(name)
    return Path(str(config)).stem if config else default


def _load(
    config_path: str | None,
    config_data: Mapping[str, Any],
    values: list[str],
    report: Callable[[str], None],
    bounds: Bounds,
) -> PipelineConfig:
    """Load a configuration with overrides; the demo gets its corpus.

    Args:
        config_path: File of the configuration; None for a mapping.
        config_data: Content of the file, or the mapping.
        values: Overrides ``key=value``.
        report: Function that gets a line when a file is made that takes a while.
        bounds: Bounds of the run; they decide whether messages may show the content of
            the file.

    Raises:
        ConfigError: An option is wrong, or there is no data to read.
    """
    # 1. Data to read: in the configuration, among the overrides, or the corpus of the
    #    demo.
    keys = [value.partition("=")[0].strip() for value in values]
    has_datasets = (
        bool(config_data.get("datasets")) or config_data.get("type") == DATA_MODULE
    )
    if not has_datasets:
        has_datasets = any(key.partition(".")[0] == "datasets" for key in keys)
    if not has_datasets:
        is_demo = False
        if config_path is not None:
            is_demo = Path(config_path).resolve() == DEPLOYMENTS / f"{DEFAULT}.yaml"
        if not is_demo:
            raise _no_data(config_path, config_data)
        values = [*_demo_overrides(keys, report), *values]
    # 2. The configuration with all overrides.
    if config_path is not None:
        with bounds.contents_hidden(config_path):
            return load_config(config_path, values)
    # As overrides, because those refuse literal secrets and mappings from Python code
    # do not.
    options = [f"{key}={json.dumps(value)}" for key, value in config_data.items()]
    return load_config({}, [*options, *values])


def _no_data(config_path: str | None, config_data: Mapping[str, Any]) -> ConfigError:
    """Return the error for a configuration without datasets.

    It names the parameter that names files.
    """
    name = Path(config_path).stem if config_path else config_data.get("name")
    files = "'/data/*.jsonl.zst'"
    if config_data.get("mix"):
        files = '\'{"NAME": "/data/*.jsonl", ...}\''
    return ConfigError(
        f"{name} names no data to read; give --param data_files={files} to a deployment's run, or "
        "--set 'datasets=[{name: NAME, data_files: ...}]' to `tokenlake run`. Only the configuration `demo` "
        "has a corpus of its own",
        expected="data_files",
    )


def _demo_overrides(keys: Sequence[str], report: Callable[[str], None]) -> list[str]:
    """Return the overrides that name the demo's corpus and tokenizer.

    Missing files are made.

    Args:
        keys: Keys of the other overrides; the tokenizer is trained only if they name
            none.
        report: Function that gets a line when a file is made that takes a while.
    """
    names_tokenizer = any("default_tokenizer" in key for key in keys)
    cache_folder = default_path().parent / "demo"
    settings = demo_settings(cache_folder, report, trained=not names_tokenizer)
    overrides: list[str] = []
    for key in ("datasets", "default_tokenizer"):
        if key in settings:
            overrides.append(f"{key}={json.dumps(settings[key])}")
    return overrides


def _read_base(
    config: str | Mapping[str, Any], bounds: Bounds
) -> tuple[str | None, Mapping[str, Any]]:
    """Return the path of the configuration's file, None for a mapping, and its content.

    Raises:
        ConfigError: No such configuration, or the file is not YAML.
    """
    if isinstance(config, Mapping):
        return None, config
    config_path = Path(config)
    # A word without a folder and an extension may be a name.
    is_path = config_path.exists() or config_path.suffix or len(config_path.parts) > 1
    if not is_path:
        config_path = DEPLOYMENTS / f"{config}.yaml"
        if not config_path.is_file():
            names = known_configurations()
            raise ConfigError(
                f"config: no file {config!r} and no configuration of that name{did_you_mean(config, names)};"
                f" the names are {', '.join(names)}; or give the path of a YAML file"
            )
    # The path is checked before the file is read, and its content is not shown to
    # everyone.
    bounds.require(check_config, config_path, DEPLOYMENTS)
    yaml_text = config_text(config_path)
    with bounds.contents_hidden(str(config_path)):
        content = parse_yaml(yaml_text, str(config_path)).data
    return str(config_path), content if isinstance(content, Mapping) else {}


def _data_file_overrides(config_data: Mapping[str, Any], files: DataFiles) -> list[str]:
    """Return the overrides that give sources other files.

    A configuration without sources gets new ones.

    Args:
        config_data: Content of the configuration.
        files: Files of the only source, or a mapping of source to its files.

    Raises:
        ConfigError: The mapping names an unknown source, or there are several sources
            and no mapping.
    """
    datasets = config_data.get("datasets") or ()
    # New sources, by the names of the mapping.
    if not datasets:
        entries = files if isinstance(files, Mapping) else {"data": files}
        sources: list[dict[str, Any]] = []
        for dataset_name, file_entry in entries.items():
            sources.append({"name": dataset_name, "data_files": file_entry})
        return [f"datasets={json.dumps(sources)}"]
    # Files without names belong to the only dataset.
    if not isinstance(files, Mapping):
        if len(datasets) > 1:
            raise ConfigError(
                f"data_files: the configuration has {len(datasets)} datasets, and it is not clear to which one the "
                "files belong; write overrides such as datasets.0.data_files=..."
            )
        return [f"datasets.0.data_files={json.dumps(files)}"]
    # Files of named datasets.
    dataset_names: list[str] = []
    for dataset in datasets:
        if isinstance(dataset, Mapping):
            dataset_names.append(str(dataset.get("name")))
    overrides: list[str] = []
    for dataset_name, file_entry in files.items():
        if dataset_name not in dataset_names:
            raise ConfigError(
                f"data_files: {dataset_name!r} is not a dataset of the configuration"
                f"{did_you_mean(dataset_name, dataset_names)}; it has {', '.join(dataset_names)}"
            )
        overrides.append(f"datasets.{dataset_name}.data_files={json.dumps(file_entry)}")
    return overrides
