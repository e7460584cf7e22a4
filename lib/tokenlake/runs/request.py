"""What a run was asked for, as a configuration: a name or a file or a mapping, and flat values on top."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

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

#: Where configurations that are known by name lie: in the wheel, else in the checkout.
_PACKAGED: Final = Path(__file__).resolve().parent / "deployments"
DEPLOYMENTS: Final = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).resolve().parents[3] / "deployments"

#: The configurations of runs that were asked for nothing: of `tokenize`, and of `mix`.
DEFAULT: Final = "demo"
DEFAULT_MIXTURE: Final = "pretrain-2048"


def resolve_request(
    config: str | Mapping[str, Any] | None,
    data_files: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
    tokenizer: str | None = None,
    output: str | None = None,
    name: str | None = None,
    overrides: Sequence[str] = (),
    report: Callable[[str], None] = quiet,
    weights: Mapping[str, float] | None = None,
    bounds: Bounds = UNBOUNDED,
) -> PipelineConfig:
    """Return the configuration that the parameters of the flow `tokenize` or `mix` describe.

    Whatever comes in is stored by the server as it is, so secrets must be references.

    Args:
        data_files: a mapping by source, or the files of the only source.
        report: gets a line when something is made that takes a while.
        bounds: What the run may reach; a configuration's file must lie within it.

    Raises:
        ConfigError: anything is wrong, or a secret is spelled out.
    """
    source, data = _base(config or DEFAULT, bounds)
    given: list[str] = []
    if tokenizer:
        # In place of the tokenizer that counts, whose options stay.
        stage, key, section = data.get("tokenize"), "default_tokenizer", data
        if isinstance(stage, Mapping) and stage.get(key):
            key, section = f"tokenize.{key}", stage
        key += ".name_or_path" if isinstance(section.get("default_tokenizer"), Mapping) else ""
        given.append(f"{key}={json.dumps(tokenizer)}")
    given += store_overrides(output) if output else ()
    given += [f"name={json.dumps(name)}"] if name else []
    given += _files(data, data_files) if data_files else []
    if weights:
        # A schedule would go before them.
        given += ["mix.weight_schedule=null", f"mix.weights={json.dumps(dict(weights))}"]
    return _load(source, data, [*given, *overrides], report, bounds)


def stage_values(
    seq_length: int | None = None,
    strategy: str | None = None,
    tokenizer_engine: str | None = None,
    splits: Mapping[str, float] | None = None,
) -> list[str]:
    """Return the overrides that fields of the form stand for; an empty one stands for none."""
    given = {
        "pack.seq_length": seq_length,
        "pack.strategy": strategy,
        "tokenize.engine": tokenizer_engine,
        "source.splits": dict(splits) if splits else None,
    }
    return [f"{key}={json.dumps(value)}" for key, value in given.items() if value]


def known_configurations() -> list[str]:
    """Return the names of the configurations in :data:`DEPLOYMENTS`, sorted."""
    return sorted(file.stem for file in DEPLOYMENTS.glob("*.yaml"))


def require_flow(flow: str, config: PipelineConfig) -> None:
    """Refuse what the flow `tokenize`, or `mix`, does not build.

    Raises:
        ConfigError: the configuration is for the other flow.
    """
    name = config.name or "the configuration"
    if flow == "tokenize" and not config.is_text_build:
        stored = "packs or mixes stored datasets, or keeps tokens"
        what = "mixes its datasets (section mix)" if config.mixes else stored
        raise ConfigError(
            f"{name} {what}, and the flow `tokenize` builds one dataset from text; run the flow `mix` with the same "
            "parameters, or `tokenlake run`, which chooses the flow by itself"
        )
    if flow == "mix" and config.is_text_build:
        raise ConfigError(
            f"{name} mixes nothing: it has no section mix and names no stored dataset; run the flow `tokenize`, or "
            "write mix: {weights: ..., epochs: 1}"
        )


def requested_name(default: str, parameters: Mapping[str, Any]) -> str:
    """A name for a run by its parameters, before anything of it was read or checked.

    Args:
        default: the configuration of runs that name none.
    """
    config, name = parameters.get("config"), parameters.get("name")
    if isinstance(config, Mapping):
        name = name or config.get("name") or ("mix" if default == DEFAULT_MIXTURE else "tokenize")
    return str(name or (Path(str(config)).stem if config else default))


def _load(
    source: str | None,
    data: Mapping[str, Any],
    flat: list[str],
    report: Callable[[str], None],
    bounds: Bounds,
) -> PipelineConfig:
    keys = [override.partition("=")[0].strip() for override in flat]
    named = data.get("datasets") or data.get("type") == DATA_MODULE
    if not named and not any(key.partition(".")[0] == "datasets" for key in keys):
        if source is None or Path(source).resolve() != DEPLOYMENTS / f"{DEFAULT}.yaml":
            name, mixes = Path(source).stem if source else data.get("name"), bool(data.get("mix"))
            files = '\'{"NAME": "/data/*.jsonl", ...}\'' if mixes else "'/data/*.jsonl.zst'"
            raise ConfigError(
                f"{name} names no data to read; give --param data_files={files} to a deployment's run, or "
                "--set 'datasets=[{name: NAME, data_files: ...}]' to `tokenlake run`. Only the configuration `demo` "
                "has a corpus of its own",
                expected="data_files",
            )
        # The demo's corpus, and its tokenizer where it is wanted; both are made where they are missing.
        trained = not any("default_tokenizer" in key for key in keys)
        made = demo_settings(default_path().parent / "demo", report, trained=trained)
        own = (key for key in ("datasets", "default_tokenizer") if key in made)
        flat = [*(f"{key}={json.dumps(made[key])}" for key in own), *flat]
    if source is not None:
        with bounds.contents_hidden(source):
            return load_config(source, flat)
    # As overrides, because those refuse literal secrets and mappings from Python code do not.
    spelled = [f"{key}={json.dumps(value)}" for key, value in data.items()]
    return load_config({}, [*spelled, *flat])


def _base(config: str | Mapping[str, Any], bounds: Bounds) -> tuple[str | None, Mapping[str, Any]]:
    """The path of the configuration's file, if it is one, and its content."""
    if isinstance(config, Mapping):
        return None, config
    path, named = Path(config), DEPLOYMENTS / f"{config}.yaml"
    if not (path.is_file() or path.suffix or len(path.parts) > 1):
        if not named.is_file():
            known = known_configurations()
            raise ConfigError(
                f"config: no file {config!r} and no configuration of that name{did_you_mean(config, known)};"
                f" the names are {', '.join(known)}; or give the path of a YAML file"
            )
        path = named
    bounds.require(check_config, path, DEPLOYMENTS)
    text = config_text(path)
    with bounds.contents_hidden(str(path)):
        data = parse_yaml(text, str(path)).data
    return str(path), data if isinstance(data, Mapping) else {}


def _files(
    data: Mapping[str, Any], files: str | Sequence[str] | Mapping[str, str | Sequence[str]]
) -> list[str]:
    """The overrides that make `files` those of the sources: of new ones where the configuration has none."""
    datasets = data.get("datasets") or ()
    if isinstance(files, Mapping):
        by_source = dict(files)
    elif len(datasets) < 2:
        by_source = {"0" if datasets else "data": files}
    else:
        raise ConfigError(
            f"data_files: the configuration has {len(datasets)} datasets, and it is not clear which one is meant;"
            " write overrides such as datasets.0.data_files=..."
        )
    if not datasets:
        given = [{"name": name, "data_files": entry} for name, entry in by_source.items()]
        return [f"datasets={json.dumps(given)}"]
    known = [str(dataset.get("name")) for dataset in datasets if isinstance(dataset, Mapping)]
    unknown = [name for name in by_source if name not in known] if isinstance(files, Mapping) else []
    if unknown:
        raise ConfigError(
            f"data_files: {unknown[0]!r} is not a dataset of the configuration{did_you_mean(unknown[0], known)}; "
            f"it has {', '.join(known)}"
        )
    return [f"datasets.{name}.data_files={json.dumps(entry)}" for name, entry in by_source.items()]
