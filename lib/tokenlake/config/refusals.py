"""What a build of texts needs beyond a valid configuration, and what this release does not act on yet.

Which options this release acts on: every field of every section is in this table, once.

A field is one of four kinds, so that none can be ignored silently:

- ``build``: a build acts on it;
- ``other``: it configures another side (a trainer, the row-wise API, reporting), and its description says so;
- ``later``: valid, but not implemented yet. The values listed are what this release does; any other value
  is a NotAvailableError. With ``acts_with`` the field means nothing until that switch of its section is on;
- ``asleep``: it means nothing without the switch ``acts_with``, which is itself ``later``.

A test compares the table with the models, so a new field without a row fails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from tokenlake.config.outputs import only_in_builds, output_problems, shard_problems
from tokenlake.config.resolve_source import contradictions, tokenizer_choice
from tokenlake.config.texts import preference_problems

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig


@dataclass(frozen=True, slots=True)
class Rule:
    """What this release does with one field."""

    kind: Literal["build", "other", "later", "asleep"]
    available: tuple[Any, ...] = ()
    """For ``later``: the values that are fine."""
    instead: str = ""
    """For ``later``: what there is today."""
    acts_with: str | None = None
    """The switch of the same section without which the field means nothing."""

    def refuses(self, value: object) -> bool:
        """Return whether `value` is valid but not available."""
        return self.kind == "later" and not any(_same(value, fine) for fine in self.available)


def _same(left: object, right: object) -> bool:
    # 0 == False in Python, but not in a configuration.
    return type(left) is type(right) and left == right


_BUILD: Final = Rule("build")
_OTHER: Final = Rule("other")


def _later(*available: Any, instead: str, acts_with: str | None = None) -> Rule:
    return Rule("later", available, instead, acts_with)


_STORE = "a build writes one dataset to the store save.output_dir"
_SHARDS = "files end at save.max_shard_size"
_REUSE = "a build always reuses equal units of its store, after checking them"
_PROGRESS = "progress goes to a terminal as bars and to a file as lines, and figures to runs/"
_HUB = "`tokenlake push NAME --repo org/name` after the build, or tl.push_to_hub"

_TOP: Final[dict[str, Rule]] = {
    "name": _BUILD,
    "datasets": _BUILD,
    "default_tokenizer": _BUILD,
    "streaming": _OTHER,
    "seed": _BUILD,
    **dict.fromkeys(("source", "tokenize", "mix", "pack", "save", "ray"), _BUILD),
    **dict.fromkeys(("cache", "observability"), _BUILD),
    "load": _OTHER,
}
_DATASET: Final[dict[str, Rule]] = {
    **dict.fromkeys(("data_files", "dataset", "name", "tokenizer", "special_tokens_in_text"), _BUILD),
    **dict.fromkeys(("text_mode", "on_bad_record", "max_bad_fraction", "splits", "exclude"), _BUILD),
    **dict.fromkeys(("type", "split", "dataset_split_name", "subset", "num_rows", "where"), _BUILD),
    **dict.fromkeys(("storage_options", "delimiter"), _BUILD),
    "tokenizer_kwargs": _later(
        None, {}, {"use_fast": True}, instead="{use_fast: true}; the tokenizer.json is used as it is"
    ),
    "cache_path": _later(None, instead="a build resumes and reuses from its store"),
    "cache_enabled": _later(True, instead=_REUSE),
    "save_path": _later(None, instead=_STORE),
    "save_format": _later(None, "parquet", instead="Parquet"),
    "content_field": _BUILD,
    "additional_fields": _BUILD,
    **dict.fromkeys(("format_callback", "format_fields", "transforms"), _BUILD),
    **dict.fromkeys(("chat", "prompt", "preference", "long_documents"), _BUILD),
    **dict.fromkeys(("truncation_strategy", "truncation_side", "num_shards"), _BUILD),
    "shard_column": _later(None, instead=f"{_SHARDS}, or there are exactly save.num_shards"),
}
_TOKENIZER: Final[dict[str, Rule]] = {
    **dict.fromkeys(("name_or_path", "max_length", "truncation", "add_special_tokens"), _BUILD),
    "trust_remote_code": _BUILD,
    **dict.fromkeys(("padding", "padding_side", "return_attention_mask"), _BUILD),
}
_SOURCE: Final[dict[str, Rule]] = dict.fromkeys(
    (
        "unit_size",
        "max_record_bytes",
        "max_expansion",
        "on_bad_record",
        "max_bad_fraction",
        "splits",
        "hash_threads",
    ),
    _BUILD,
)
_TOKENIZE: Final[dict[str, Rule]] = {
    **dict.fromkeys(("default_tokenizer", "max_length", "engine", "special_tokens_in_text"), _BUILD),
    **dict.fromkeys(("long_documents", "truncation_strategy", "truncation_side"), _BUILD),
    "remove_columns": _BUILD,
    "batch_size": _later(1000, instead="documents are encoded in blocks of at least 4 MiB"),
    "num_workers": _later(4, instead="`--workers N`, the flow's parameter or build_dataset(workers=N)"),
    "cache_tokenized": _later(
        None,
        False,
        instead="the tokens of each source are kept as {name}.{source}.tokens where sources are mixed",
    ),
}
_MIX: Final[dict[str, Rule]] = {
    **dict.fromkeys(("weights", "weight_schedule", "weight_schedule_type", "weights_by"), _BUILD),
    **dict.fromkeys(("step_rows", "block_size", "stop_strategy", "seed", "lanes", "batch_size"), _BUILD),
    **dict.fromkeys(("order", "unit_rows", "total_tokens", "total_rows", "epochs"), _BUILD),
}
_PACK: Final[dict[str, Rule]] = {
    **dict.fromkeys(("enabled", "seq_length", "eos_token_id", "pad_token_id", "include_segment_ids"), _BUILD),
    **dict.fromkeys(("window_tokens", "store_segment_ids", "strategy", "num_packers"), _BUILD),
    **dict.fromkeys(("max_segments", "shuffle_packed"), _BUILD),
    "shuffle_buffer_factor": _OTHER,
}
_SAVE: Final[dict[str, Rule]] = {
    "enabled": _OTHER,
    "output_dir": _BUILD,
    "storage_options": _BUILD,
    "max_shard_size": _BUILD,
    "format": _later("parquet", instead="Parquet"),
    "num_shards": _BUILD,
    "compression": _later(None, "zstd", instead="zstd"),
    "overwrite": _later(False, instead="a build never overwrites, it adds a version"),
    "push_to_hub": _later(False, instead=_HUB),
    **dict.fromkeys(("hub_repo_id", "hub_private", "hub_token"), Rule("asleep", acts_with="push_to_hub")),
}
_RAY: Final[dict[str, Rule]] = {
    "enabled": _later(False, instead="this machine's workers"),
    **dict.fromkeys(("num_workers", "resources_per_worker"), Rule("asleep", acts_with="enabled")),
}
_CACHE: Final[dict[str, Rule]] = {
    "enabled": _later(True, instead=_REUSE),
    "cache_type": _later("hierarchical", instead=_REUSE, acts_with="enabled"),
    "cache_dir": _later(None, instead=_REUSE, acts_with="enabled"),
    "memory_cache_size": _later(100, instead=_REUSE, acts_with="enabled"),
    "disk_cache_expiry": _later(86400, instead=_REUSE, acts_with="enabled"),
    "compression": _later("none", instead=_REUSE, acts_with="enabled"),
    "hash_fn": _later("combined", instead=_REUSE, acts_with="enabled"),
}
_LOAD: Final[dict[str, Rule]] = dict.fromkeys(
    (
        "batch_size",
        "prefetch_enabled",
        "prefetch_workers",
        "prefetch_buffer_size",
        "shuffle_buffer_size",
        "drop_last",
        "prefetch_to_device",
    ),
    _OTHER,
)
_OBSERVABILITY: Final[dict[str, Rule]] = {
    "progress_enabled": _later(True, instead=_PROGRESS),
    "progress_type": _later("rich", instead=_PROGRESS),
    "metrics_enabled": _later(True, instead=_PROGRESS),
    "log_level": _later("INFO", instead="PREFECT_LOGGING_LEVEL sets the level of a flow's log"),
    "log_interval": _later(100, instead=_PROGRESS),
}

_ALL: Final[dict[str, Mapping[str, Rule]]] = {
    "": _TOP,
    "datasets": _DATASET,
    "tokenizer": _TOKENIZER,
    "source": _SOURCE,
    "tokenize": _TOKENIZE,
    "mix": _MIX,
    "pack": _PACK,
    "save": _SAVE,
    "ray": _RAY,
    "cache": _CACHE,
    "load": _LOAD,
    "observability": _OBSERVABILITY,
}
RULES: Final[Mapping[str, Mapping[str, Rule]]] = MappingProxyType(_ALL)
"""Section name to field name to rule; ``""`` is the top level, ``tokenizer`` a TokenizerConfig anywhere."""


def _keys(value: Mapping[str, object]) -> str:
    return f"a mapping with {', '.join(map(repr, value))}"


def unavailable(section: str, config: object, path: str) -> list[str]:
    """Return a message for every field of `config` that is set to something this release does not do.

    Args:
        section: key of :data:`RULES`.
        config: the section's model.
        path: where it stands in the configuration, for the messages; ``""`` at the top.
    """
    found: list[str] = []
    for field, rule in RULES[section].items():
        value = getattr(config, field)
        asleep = rule.acts_with is not None and not getattr(config, rule.acts_with)
        if not asleep and rule.refuses(value):
            # A secret's repr is masked, and options are not shown at all.
            shown = _keys(value) if isinstance(value, dict) else repr(value)
            key = f"{path}.{field}".lstrip(".")
            found.append(f"{key}: {shown} is not available yet; today: {rule.instead}")
    return found


_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def text_problems(config: PipelineConfig) -> list[str]:
    """Return what a build needs beyond a valid configuration, and what is written but would do nothing."""
    problems = nameless(config)
    if config.mixes or any(dataset.dataset is not None for dataset in config.datasets):
        problems.append("mix: stored datasets and mixtures are no build of texts; see tokenlake.config.steps")
    if not config.pack.enabled and "enabled" not in config.pack.model_fields_set:
        written = sorted(config.pack.model_fields_set)
        if written:
            problems.append(
                f"pack.{written[0]}: set, but packing is off; write pack.enabled: true, or false to say so"
            )
    for dataset in config.datasets:
        problems += _missing_in(config, dataset)
        problems += output_problems(config, dataset, tokenizer_choice(config, dataset))
    return problems + shard_problems(config) + contradictions(config) + preference_problems(config)


def nameless(config: PipelineConfig) -> list[str]:
    """Return what is wrong where the result has no name."""
    if config.name is not None:
        return []
    return [
        "name: missing. A build needs a name for its dataset: lower-case letters, digits, '.', '_', '-', "
        "at most 64. (The default is the stem of the configuration's file, where that is such a name.)"
    ]


def _missing_in(config: PipelineConfig, dataset: DatasetConfig) -> list[str]:
    path = f"datasets.{dataset.name}"
    problems: list[str] = []
    if tokenizer_choice(config, dataset) is None:
        problems.append(
            f"{path}.tokenizer: missing, and neither tokenize.default_tokenizer nor default_tokenizer is "
            "set; write a Hub id, a directory or a tokenizer.json file"
        )
    if dataset.text_mode != "document" and dataset.type in ("jsonl", "parquet"):
        problems.append(
            f"{path}.text_mode: {dataset.text_mode!r} is for text files, but type is {dataset.type!r}"
        )
    return problems


def not_yet(config: PipelineConfig) -> list[str]:
    """Return a message for every option that is set and that no build acts on."""
    problems = unavailable("", config, "")
    for dataset in config.datasets:
        problems += _not_yet_in(config, dataset)
    for section in RULES:
        if section not in ("", "datasets", "tokenizer"):
            problems += unavailable(section, getattr(config, section), section)
    return problems


def _not_yet_in(config: PipelineConfig, dataset: DatasetConfig) -> list[str]:
    path = f"datasets.{dataset.name}"
    problems = unavailable("datasets", dataset, path)
    if dataset.exclude is not None:
        problems += _remote(f"{path}.exclude", dataset.exclude)
    choice = tokenizer_choice(config, dataset)
    if choice is not None and not isinstance(choice, str):
        problems += unavailable("tokenizer", choice, f"{path}.tokenizer")
    return problems


def _remote(path: str, url: str) -> list[str]:
    if not _URL.match(url):
        return []
    return [f"{path}: {url.split('://')[0]}:// is not available yet; today: plain paths of local files"]


def source_not_yet(dataset: DatasetConfig) -> list[str]:
    """Return a message for every option of a dataset that does nothing for a source of rows on its own."""
    found = unavailable("datasets", dataset, f"datasets.{dataset.name}") + only_in_builds(dataset)
    if dataset.dataset is not None:
        found.append(
            f"datasets.{dataset.name}.dataset: {dataset.dataset!r} is not available yet as a source of rows; "
            "today: builds take it; to read its rows use data_files: STORE/NAME/v1/data/*.parquet"
        )
    return found
