"""Options that a pipeline does not act on, so that none is ignored: what it does instead stands here.

Options that change how fast rows come but never which (`unit_size`, `engine` ...) are let be, so that
one file can configure a build and a pipeline. Any other option acts, or a value beside its default is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tokenlake.errors import ConfigError, NotAvailableError

if TYPE_CHECKING:
    from tokenlake.config.pipeline import PipelineConfig


@dataclass(frozen=True, slots=True)
class _Rule:
    """An option that does not act: the values that are fine, and what there is instead of the others."""

    instead: str
    fine: tuple[Any, ...] = (None,)


_BUILDS = "it acts in builds (`tokenlake run`, build_dataset)"
_CACHES = "it comes with the caches; today tokens are kept by tokenize.cache_tokenized"
_SILENT = "a pipeline reports nothing"

_RULES: Final[dict[str, dict[str, _Rule]]] = {
    "datasets": {
        "exclude": _Rule(_BUILDS),
        "splits": _Rule(_BUILDS, (None, {"train": 1.0})),
        "max_bad_fraction": _Rule(_BUILDS),
        "preference": _Rule(f"{_BUILDS}; for rows there is PreferenceRows"),
        "tokenizer_kwargs": _Rule("the tokenizer.json is used as it is", (None, {}, {"use_fast": True})),
        "shard_column": _Rule(
            "rows are saved in their order, to files of save.num_shards or save.max_shard_size"
        ),
    },
    "source": {
        "splits": _Rule(_BUILDS, ({"train": 1.0},)),
        "max_bad_fraction": _Rule(_BUILDS, (0.001,)),
    },
    "mix": {
        "lanes": _Rule("rows are drawn in one lane; lanes act where a mixture is built"),
        "weights_by": _Rule("rows; tokens act where a mixture is built", ("rows",)),
        "order": _Rule("rows are drawn in one lane, in one order; it acts where a mixture is built", (3,)),
        "epochs": _Rule("total_rows and total_tokens end a mixture, and stop_strategy does"),
    },
    "save": {
        "push_to_hub": _Rule("build a version, and `tokenlake push` it", (False,)),
        "storage_options": _Rule("files are saved to paths of this machine", (None, {})),
    },
    "cache": {
        "enabled": _Rule(_CACHES, (True,)),
        "cache_type": _Rule(_CACHES, ("hierarchical",)),
        "cache_dir": _Rule(_CACHES),
        "memory_cache_size": _Rule(_CACHES, (100,)),
        "disk_cache_expiry": _Rule(_CACHES, (86400,)),
        "compression": _Rule(_CACHES, ("none",)),
        "hash_fn": _Rule(_CACHES, ("combined",)),
    },
    "observability": {
        "progress_enabled": _Rule(_SILENT, (True,)),
        "progress_type": _Rule(_SILENT, ("rich",)),
        "metrics_enabled": _Rule(_SILENT, (True,)),
        "log_level": _Rule(_SILENT, ("INFO",)),
        "log_interval": _Rule(_SILENT, (100,)),
    },
    "ray": {"enabled": _Rule("rows are made in this process", (False,))},
}


def check_pipeline(config: PipelineConfig) -> None:
    """Check a whole configuration, before anything is read.

    Raises:
        ConfigError: it contradicts itself; the message lists everything.
        NotAvailableError: an option that a pipeline does not act on is set.
    """
    _raise(ConfigError, config.validate())
    found = [
        line for dataset in config.datasets for line in _idle("datasets", dataset, f"datasets.{dataset.name}")
    ]
    for section in ("source", "cache", "observability", "ray"):
        found += _idle(section, getattr(config, section), section)
    _raise(NotAvailableError, found)


def check_stage(config: PipelineConfig, section: str) -> None:
    """Check the section of a stage that was called; raises as :func:`check_pipeline`."""
    _raise(ConfigError, config.validate())
    _raise(NotAvailableError, _idle(section, getattr(config, section), section))


def _idle(section: str, config: object, path: str) -> list[str]:
    found: list[str] = []
    for field, rule in _RULES.get(section, {}).items():
        value = getattr(config, field)
        if not any(type(value) is type(fine) and value == fine for fine in rule.fine):
            # What options hold may be a secret.
            shown = f"a {type(value).__name__}" if isinstance(value, Mapping) else repr(value)
            found.append(
                f"{path}.{field}: {shown:.200} does not act in a pipeline yet; today: {rule.instead}"
            )
    return found


def _raise(kind: type[ConfigError], problems: list[str]) -> None:
    if len(problems) == 1:
        raise kind(problems[0], problems=problems)
    if problems:
        listed = "\n".join(f"  {line}" for line in problems)
        raise kind(f"{len(problems)} problems in the configuration\n{listed}", problems=problems)
