"""What a run was asked for, as a configuration: a name or a file or a mapping, and flat values on top."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tokenlake.config.load import config_text, load_config
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.stores import store_overrides
from tokenlake.config.suggestion import did_you_mean
from tokenlake.config.yaml_file import parse_yaml
from tokenlake.demo.settings import demo_settings
from tokenlake.errors import ConfigError
from tokenlake.prefect.policy import contents_untold, require_allowed_config
from tokenlake.sources.local.hash_cache import default_path

#: Where configurations that are known by name lie: in the wheel, else in the checkout.
_PACKAGED: Final = Path(__file__).resolve().parent / "deployments"
DEPLOYMENTS: Final = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).resolve().parents[3] / "deployments"

#: The configurations of runs that were asked for nothing: of `tokenize`, and of `mix`.
DEFAULT: Final = "demo"
DEFAULT_MIXTURE: Final = "pretrain-2048"


def _ignore(line: str) -> None:
    """Report nothing."""


def resolve_request(
    config: str | Mapping[str, Any] | None,
    data_files: str | Sequence[str] | None = None,
    tokenizer: str | None = None,
    output: str | None = None,
    name: str | None = None,
    overrides: Sequence[str] = (),
    report: Callable[[str], None] = _ignore,
) -> PipelineConfig:
    """Return the configuration that a run's parameters describe; see :func:`.flows.tokenization.tokenize`.

    Whatever comes in is stored by the server as it is, so secrets must be references.

    Args:
        report: gets a line when something is made that takes a while.

    Raises:
        ConfigError: anything is wrong, or a secret is spelled out.
    """
    source, data = _base(config or DEFAULT)
    files = _datasets(data, data_files)
    return _load(source, data, [*_flat(data, tokenizer, output, name), *files, *overrides], report)


def resolve_mixture(
    config: str | Mapping[str, Any] | None,
    data_files: Mapping[str, str | Sequence[str]] | None = None,
    weights: Mapping[str, float] | None = None,
    tokenizer: str | None = None,
    output: str | None = None,
    name: str | None = None,
    overrides: Sequence[str] = (),
    report: Callable[[str], None] = _ignore,
) -> PipelineConfig:
    """The same for the parameters of :func:`tokenlake.prefect.flows.mix`."""
    source, data = _base(config or DEFAULT_MIXTURE)
    flat = _flat(data, tokenizer, output, name)
    sources = [*_sources(data, data_files), *_weights(weights)]
    return _load(source, data, [*flat, *sources, *overrides], report)


def require_text(config: PipelineConfig) -> None:
    """Refuse what the flow `tokenize` does not build.

    Raises:
        ConfigError: the configuration mixes, or is about stored datasets.
    """
    if not config.is_text_build:
        what = "mixes its datasets (section mix)" if config.mixes else "packs or mixes stored datasets"
        raise ConfigError(
            f"{config.name or 'the configuration'} {what}, and the flow `tokenize` builds one dataset from text; "
            "run the flow `mix` with the same parameters, or `tokenlake run`, which chooses by itself"
        )


def require_mixture(config: PipelineConfig) -> None:
    """Refuse what the flow `mix` does not build.

    Raises:
        ConfigError: the configuration is of text alone, and mixes nothing.
    """
    if config.is_text_build:
        raise ConfigError(
            f"{config.name or 'the configuration'} mixes nothing: it has no section mix and names no stored dataset; "
            "run the flow `tokenize`, or write mix: {weights: ..., epochs: 1}"
        )


def requested_name(config: object, name: str | None, default: str = DEFAULT) -> str:
    """A name for a run, before anything of it was read or checked."""
    if name:
        return name
    if isinstance(config, Mapping):
        return str(config.get("name") or ("mix" if default == DEFAULT_MIXTURE else "tokenize"))
    return Path(str(config)).stem if config else default


def _flat(data: Mapping[str, Any], tokenizer: str | None, output: str | None, name: str | None) -> list[str]:
    return [
        *_set(_tokenizer_key(data), tokenizer),
        *(store_overrides(output) if output else ()),
        *_set("name", name),
    ]


def _load(
    source: str | None, data: Mapping[str, Any], flat: list[str], report: Callable[[str], None]
) -> PipelineConfig:
    keys = [override.partition("=")[0].strip() for override in flat]
    if not data.get("datasets") and not any(key.partition(".")[0] == "datasets" for key in keys):
        if source is None or Path(source).resolve() != DEPLOYMENTS / f"{DEFAULT}.yaml":
            raise _no_data(
                Path(source).stem if source else str(data.get("name")), mixes=bool(data.get("mix"))
            )
        flat = [*_demo(report, trained=not any("default_tokenizer" in key for key in keys)), *flat]
    if source is not None:
        with contents_untold(source):
            return load_config(source, flat)
    # As overrides, because those refuse literal secrets and mappings from Python code do not.
    spelled = [f"{key}={json.dumps(value)}" for key, value in data.items()]
    return load_config({}, [*spelled, *flat])


def _no_data(name: str, *, mixes: bool) -> ConfigError:
    files = '\'{"NAME": "/data/*.jsonl", ...}\'' if mixes else "'/data/*.jsonl.zst'"
    return ConfigError(
        f"{name} names no data to read; give --param data_files={files} to a deployment's run, or "
        "--set 'datasets=[{name: NAME, data_files: ...}]' to `tokenlake run`. Only the configuration `demo` reads a "
        "corpus of its own",
        expected="data_files",
    )


def _base(config: str | Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any]]:
    """The path of the configuration's file, if it is one, and its content."""
    if isinstance(config, Mapping):
        return None, config
    path = _find(config)
    require_allowed_config(path, DEPLOYMENTS)
    text = config_text(path)
    with contents_untold(str(path)):
        data = parse_yaml(text, str(path)).data
    return str(path), data if isinstance(data, Mapping) else {}


def _find(config: str) -> Path:
    path = Path(config)
    if path.is_file() or path.suffix or len(path.parts) > 1:
        return path
    named = DEPLOYMENTS / f"{config}.yaml"
    if named.is_file():
        return named
    known = sorted(file.stem for file in DEPLOYMENTS.glob("*.yaml") if file.stem != "prefect")
    raise ConfigError(
        f"config: no file {config!r} and no configuration of that name{did_you_mean(config, known)};"
        f" there are {', '.join(known)}, or give the path of a YAML file"
    )


def _datasets(data: Mapping[str, Any], data_files: str | Sequence[str] | None) -> list[str]:
    datasets = data.get("datasets") or ()
    if not data_files:
        return []
    if not datasets:
        return [f"datasets={json.dumps([{'name': 'data', 'data_files': data_files}])}"]
    if len(datasets) == 1:
        return [f"datasets.0.data_files={json.dumps(data_files)}"]
    raise ConfigError(
        f"data_files: the configuration has {len(datasets)} datasets and it is not said which one is meant;"
        " write overrides such as datasets.0.data_files=..."
    )


def _sources(data: Mapping[str, Any], data_files: Mapping[str, str | Sequence[str]] | None) -> list[str]:
    """Files by the name of their source: as these where there are some, else as new ones, in the order given."""
    if not data_files:
        return []
    datasets = data.get("datasets") or ()
    if not datasets:
        given = [{"name": name, "data_files": files} for name, files in data_files.items()]
        return [f"datasets={json.dumps(given)}"]
    known = [str(dataset.get("name")) for dataset in datasets if isinstance(dataset, Mapping)]
    if unknown := [name for name in data_files if name not in known]:
        raise ConfigError(
            f"data_files: {unknown[0]!r} is no dataset of the configuration{did_you_mean(unknown[0], known)}; "
            f"it has {', '.join(known)}"
        )
    return [f"datasets.{name}.data_files={json.dumps(files)}" for name, files in data_files.items()]


def _weights(weights: Mapping[str, float] | None) -> list[str]:
    if not weights:
        return []
    # A schedule would go before them.
    return ["mix.weight_schedule=null", f"mix.weights={json.dumps(dict(weights))}"]


def _demo(report: Callable[[str], None], *, trained: bool) -> list[str]:
    """The demo's corpus, and its tokenizer where it is wanted; both are made where they are missing."""
    settings = demo_settings(default_path().parent / "demo", report, trained=trained)
    return [
        f"{key}={json.dumps(settings[key])}" for key in ("datasets", "default_tokenizer") if key in settings
    ]


def _tokenizer_key(data: Mapping[str, Any]) -> str:
    """The key that a tokenizer given apart replaces: the one that counts, its options staying."""
    prefix, section = "", data
    stage = data.get("tokenize")
    if isinstance(stage, Mapping) and stage.get("default_tokenizer"):
        prefix, section = "tokenize.", stage
    current = section.get("default_tokenizer")
    return f"{prefix}default_tokenizer" + (".name_or_path" if isinstance(current, Mapping) else "")


def _set(key: str, value: str | None) -> list[str]:
    return [f"{key}={json.dumps(value)}"] if value else []
