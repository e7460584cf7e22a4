"""The configuration that the parameters of a run describe: a name, a file or a mapping,
and values that override it.

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

_PACKAGED: Final = Path(__file__).resolve().parent / "deployments"
DEPLOYMENTS: Final = (
    _PACKAGED
    if _PACKAGED.is_dir()
    else Path(__file__).resolve().parents[3] / "deployments"
)
"""Folder of the configurations that are known by name: in the wheel, otherwise in
the checkout.
"""

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
    """Return the configuration that the parameters of the flow `tokenize` or `mix`
    describe.

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
    file, data = _read_base(config or DEFAULT, bounds)
    values: list[str] = []
    if tokenizer:
        values.append(f"{_tokenizer_key(data)}={json.dumps(tokenizer)}")
    if output:
        values += store_overrides(output)
    if name:
        values.append(f"name={json.dumps(name)}")
    if data_files:
        values += _data_file_overrides(data, data_files)
    if weights:
        # A schedule would take precedence over weights.
        values += [
            "mix.weight_schedule=null",
            f"mix.weights={json.dumps(dict(weights))}",
        ]
    return _load(file, data, [*values, *overrides], report, bounds)


def _tokenizer_key(data: Mapping[str, Any]) -> str:
    """Return the key of the default tokenizer that a configuration uses: that of
    `tokenize` comes first.
    """
    key = "default_tokenizer"
    choice = data.get(key)
    stage = data.get("tokenize")
    if isinstance(stage, Mapping) and stage.get("default_tokenizer"):
        key = "tokenize.default_tokenizer"
        choice = stage["default_tokenizer"]
    if isinstance(choice, Mapping):
        # Only the name is replaced; the options stay.
        return f"{key}.name_or_path"
    return key


def stage_values(
    seq_length: int | None = None,
    strategy: str | None = None,
    tokenizer_backend: str | None = None,
    splits: Mapping[str, float] | None = None,
) -> list[str]:
    """Return the overrides that the fields of a flow's form stand for; an empty field
    has none.

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
    """Check that a flow builds a configuration: `tokenize` builds from text, `mix`
    everything else.

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
    if isinstance(config, Mapping):
        flow = "mix" if default == DEFAULT_MIXTURE else "tokenize"
        return str(name or config.get("name") or flow)
    if name:
        return str(name)
    return Path(str(config)).stem if config else default


def _load(
    file: str | None,
    data: Mapping[str, Any],
    values: list[str],
    report: Callable[[str], None],
    bounds: Bounds,
) -> PipelineConfig:
    """Load a configuration with overrides; the demo gets its corpus.

    Args:
        file: File of the configuration; None for a mapping.
        data: Content of the file, or the mapping.
        values: Overrides ``key=value``.
        report: Function that gets a line when a file is made that takes a while.
        bounds: Bounds of the run; they decide whether messages may show the content of
            the file.

    Raises:
        ConfigError: An option is wrong, or there is no data to read.
    """
    keys = [value.partition("=")[0].strip() for value in values]
    has_datasets = bool(data.get("datasets")) or data.get("type") == DATA_MODULE
    if not has_datasets:
        has_datasets = any(key.partition(".")[0] == "datasets" for key in keys)
    if not has_datasets:
        is_demo = (
            file is not None and Path(file).resolve() == DEPLOYMENTS / f"{DEFAULT}.yaml"
        )
        if not is_demo:
            raise _no_data(file, data)
        values = [*_demo_overrides(keys, report), *values]
    if file is not None:
        with bounds.contents_hidden(file):
            return load_config(file, values)
    # As overrides, because those refuse literal secrets and mappings from Python code
    # do not.
    options = [f"{key}={json.dumps(value)}" for key, value in data.items()]
    return load_config({}, [*options, *values])


def _no_data(file: str | None, data: Mapping[str, Any]) -> ConfigError:
    """Return the error for a configuration without datasets, with the parameter that
    names files.
    """
    name = Path(file).stem if file else data.get("name")
    files = "'/data/*.jsonl.zst'"
    if data.get("mix"):
        files = '\'{"NAME": "/data/*.jsonl", ...}\''
    return ConfigError(
        f"{name} names no data to read; give --param data_files={files} to a deployment's run, or "
        "--set 'datasets=[{name: NAME, data_files: ...}]' to `tokenlake run`. Only the configuration `demo` "
        "has a corpus of its own",
        expected="data_files",
    )


def _demo_overrides(keys: Sequence[str], report: Callable[[str], None]) -> list[str]:
    """Return the overrides that name the demo's corpus and its tokenizer; missing files
    are made.

    Args:
        keys: Keys of the other overrides; the tokenizer is trained only if they name
            none.
        report: Function that gets a line when a file is made that takes a while.
    """
    names_tokenizer = any("default_tokenizer" in key for key in keys)
    settings = demo_settings(
        default_path().parent / "demo", report, trained=not names_tokenizer
    )
    return [
        f"{key}={json.dumps(settings[key])}"
        for key in ("datasets", "default_tokenizer")
        if key in settings
    ]


def _read_base(
    config: str | Mapping[str, Any], bounds: Bounds
) -> tuple[str | None, Mapping[str, Any]]:
    """Return the path of the configuration's file, None for a mapping, and its content.

    Raises:
        ConfigError: No such configuration, or the file is not YAML.
    """
    if isinstance(config, Mapping):
        return None, config
    path = Path(config)
    # A word without a folder and an extension may be a name.
    is_path = path.exists() or path.suffix or len(path.parts) > 1
    if not is_path:
        path = DEPLOYMENTS / f"{config}.yaml"
        if not path.is_file():
            names = known_configurations()
            raise ConfigError(
                f"config: no file {config!r} and no configuration of that name{did_you_mean(config, names)};"
                f" the names are {', '.join(names)}; or give the path of a YAML file"
            )
    bounds.require(check_config, path, DEPLOYMENTS)
    text = config_text(path)
    with bounds.contents_hidden(str(path)):
        data = parse_yaml(text, str(path)).data
    return str(path), data if isinstance(data, Mapping) else {}


def _data_file_overrides(data: Mapping[str, Any], files: DataFiles) -> list[str]:
    """Return the overrides that give sources other files, or new sources if the
    configuration has none.

    Args:
        data: Content of the configuration.
        files: Files of the only source, or a mapping of source to its files.

    Raises:
        ConfigError: The mapping names an unknown source, or there are several sources
            and no mapping.
    """
    datasets = data.get("datasets") or ()
    if not datasets:
        entries = files if isinstance(files, Mapping) else {"data": files}
        sources = [
            {"name": name, "data_files": entry} for name, entry in entries.items()
        ]
        return [f"datasets={json.dumps(sources)}"]
    # Files without names belong to the only dataset.
    if not isinstance(files, Mapping):
        if len(datasets) > 1:
            raise ConfigError(
                f"data_files: the configuration has {len(datasets)} datasets, and it is not clear to which one the "
                "files belong; write overrides such as datasets.0.data_files=..."
            )
        return [f"datasets.0.data_files={json.dumps(files)}"]
    names = [
        str(dataset.get("name")) for dataset in datasets if isinstance(dataset, Mapping)
    ]
    overrides: list[str] = []
    for name, entry in files.items():
        if name not in names:
            raise ConfigError(
                f"data_files: {name!r} is not a dataset of the configuration{did_you_mean(name, names)}; "
                f"it has {', '.join(names)}"
            )
        overrides.append(f"datasets.{name}.data_files={json.dumps(entry)}")
    return overrides
