"""Resolving: precedence, defaults, nothing ignored silently, and what is identity."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr, ValidationError

from tokenlake import DatasetConfig, PipelineConfig, TokenizerConfig, load_config
from tokenlake.config import (
    READERS,
    UNSUPPORTED_OPTIONS,
    ResolvedBuild,
    ResolvedChat,
    ResolvedPack,
    ResolvedSource,
    ResolvedTokenizer,
    json_schema,
    source_identity,
)
from tokenlake.config.resolve import identity, resolve
from tokenlake.errors import ConfigError, NotAvailableError


def config(dataset: dict[str, Any] | None = None, **sections: Any) -> PipelineConfig:
    """Return a configuration that resolves, with some options changed."""
    whole = {
        "data_files": "data/*.jsonl",
        "name": "code",
        "tokenizer": "gpt2",
        **(dataset or {}),
    }
    return PipelineConfig.model_validate(
        {"name": "demo", "datasets": [whole], **sections}
    )


def build(dataset: dict[str, Any] | None = None, **sections: Any) -> ResolvedBuild:
    return resolve(config(dataset, **sections), environ={})


def refusal(
    kind: type[ConfigError], dataset: dict[str, Any] | None = None, **sections: Any
) -> str:
    with pytest.raises(ConfigError) as error:
        build(dataset, **sections)
    assert type(error.value) is kind
    return str(error.value)


# What a build consumes


@pytest.mark.parametrize(
    "url", ["s3://lake/tokens", "S3A://lake", "gs://lake/a/b", "gcs://lake"]
)
def test_a_store_in_a_bucket_with_options_that_are_no_identity(url: str) -> None:
    options = {
        "endpoint_url": "https://here",
        "key": {"env": "KEY"},
        "secret": SecretStr("hunter22"),
    }
    found = resolve(config(save={"output_dir": url, "storage_options": options}))
    assert found.store == url
    assert found.store_options == options | {"secret": "hunter22"}
    assert "hunter22" not in repr(found)
    assert identity(found) == identity(resolve(config()))


@pytest.mark.parametrize(
    ("save", "message"),
    [
        ({"output_dir": "s3://hunter2@lake/a"}, "has a user name or password in it"),
        ({"output_dir": "gs://lake/a?token=hunter2"}, "has a query in it"),
        (
            {"output_dir": "/a", "storage_options": {"key": "hunter2"}},
            "is local and takes none",
        ),
    ],
)
def test_a_store_that_cannot_be(save: dict[str, Any], message: str) -> None:
    found = refusal(ConfigError, save=save)
    assert message in found
    assert "hunter2" not in found


def test_a_dataset_overrides_its_stage() -> None:
    stages: dict[str, Any] = {
        "source": {
            "on_bad_record": "quarantine",
            "max_bad_fraction": 0.5,
            "splits": {"train": 1.0},
        },
        "tokenize": {"special_tokens_in_text": "encode"},
    }
    own = {"on_bad_record": "fail", "max_bad_fraction": 0.0, "splits": {"test": 1.0}}
    own["special_tokens_in_text"] = "fail"
    inherits, overrides = build(**stages).sources[0], build(own, **stages).sources[0]
    assert (inherits.on_bad_record, inherits.max_bad_fraction) == ("quarantine", 0.5)
    assert inherits.tokenizer.special_tokens_in_text == "encode"
    assert (overrides.on_bad_record, overrides.max_bad_fraction) == ("fail", 0.0)
    assert overrides.splits == (("test", 1.0),)
    assert overrides.tokenizer.special_tokens_in_text == "fail"


# What is refused


def test_what_is_missing_is_an_error_that_lists_everything() -> None:
    nameless = PipelineConfig(datasets=[{"data_files": "x"}])
    with pytest.raises(ConfigError) as error:
        resolve(nameless)
    assert "2 problems" in str(error.value)
    assert "name: missing" in str(error.value)
    assert "datasets.dataset_0.tokenizer: missing" in str(error.value)
    assert "pack.seq_length: set, but packing is not enabled" in refusal(
        ConfigError, pack={"seq_length": 512}
    )
    assert "text_mode" in refusal(ConfigError, {"type": "jsonl", "text_mode": "lines"})
    with pytest.raises(ConfigError, match="At least one dataset is required"):
        resolve(PipelineConfig(name="demo"))


MODELS: dict[str, Any] = {
    "datasets": DatasetConfig,
    "tokenizer": TokenizerConfig,
    "": PipelineConfig,
} | {
    name: type(value)
    for name, value in PipelineConfig()
    if isinstance(value, BaseModel)
}


def _file_of(module: str) -> Path:
    """Return the file of a module, which is not imported; of a package its
    __init__.py.
    """
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin)


@pytest.mark.parametrize(("section", "model"), MODELS.items())
def test_every_field_is_looked_at_or_refused_or_says_that_a_build_does_not_use_it(
    section: str, model: type[BaseModel]
) -> None:
    files = [
        *_file_of("tokenlake.config").parent.glob("*.py"),
        *_file_of("tokenlake.etl.observability").parent.glob("*.py"),
        *_file_of("tokenlake.etl.plan").parent.glob("*.py"),
        _file_of("tokenlake.etl.export.plan"),
        *_file_of("tokenlake.etl.clean").parent.glob("*.py"),
    ]
    code = "".join(path.read_text() for path in files)
    copied = {
        each.name
        for kind in (ResolvedSource, ResolvedPack, ResolvedChat, ResolvedTokenizer)
        for each in dataclasses.fields(kind)
    }
    schema = json_schema()
    options = schema["$defs"].get(model.__name__, schema)["properties"]
    for name in model.model_fields:
        looked_at = re.search(rf"\.{name}\b", code) or name in MODELS or name in copied
        told = re.search(
            "[Nn]ot used by|keeps only|requires|never runs code",
            options[name]["description"],
        )
        refused = any(
            refusal.key == f"{section}.{name}" for refusal in UNSUPPORTED_OPTIONS
        )
        assert looked_at or told or refused, f"{section}.{name}"


NEEDED = {"datasets": {"data_files": "x"}, "save": {"hub_repo_id": "a/b"}}


def another(refusal: Any, section: str, name: str) -> Any:
    """Return a value that the field takes and that is neither its default nor fine."""
    model = MODELS[section]
    choices = re.findall(r"'(\w+)'", str(model.model_fields[name].annotation))
    for value in (*choices, True, False, 7, "x", {"x": 1}):
        with suppress(ValidationError):
            made = getattr(
                model.model_validate({**NEEDED.get(section, {}), name: value}), name
            )
            if refusal.is_unsupported(made, model.model_fields[name].get_default()):
                return value
    raise AssertionError(f"no other value of {section}.{name}")


@pytest.mark.parametrize(
    "refused", UNSUPPORTED_OPTIONS, ids=lambda refused: refused.key
)
def test_a_default_is_never_refused_and_another_value_always_with_what_to_use_instead(
    refused: Any,
) -> None:
    section, _, name = refused.key.partition(".")
    default = MODELS[section].model_fields[name].get_default()
    assert not refused.is_unsupported(default, default)
    assert any(refused.instead(reader) for reader in READERS)
    if refused.is_speed:
        built = build(**{section: {name: another(refused, section, name)}})
        assert [note.partition(":")[0] for note in built.notes] == [refused.key]
        assert dataclasses.replace(built, notes=()) == build()
    elif refused.build:
        options = {**NEEDED.get(section, {}), name: another(refused, section, name)}
        inside = section == "datasets"
        message = refusal(
            NotAvailableError,
            **({"dataset": options} if inside else {section: options}),
        )
        assert f"{'datasets.code' if inside else section}.{name}: " in message
        assert "is not available in a build; instead: " in message


def test_what_is_harmless_passes_and_changes_nothing() -> None:
    harmless = build(
        {
            "save_format": "parquet",
            "tokenizer_kwargs": {"use_fast": True},
            "format_fields": {},
        },
        save={
            "enabled": True,
            "compression": "zstd",
            "hub_repo_id": "a/b",
            "hub_token": "hf_x",
        },
        load={"batch_size": 99, "shuffle_buffer_size": 10},
        ray={"num_workers": 9},
        tokenize={"remove_columns": ["text"], "cache_tokenized": False},
        pack={"enabled": True, "shuffle_packed": False, "shuffle_buffer_factor": 2},
    )
    assert harmless == build(pack={"enabled": True})


def test_what_is_not_available_is_listed_at_once_and_shows_no_secret() -> None:
    assert "2 problems" in refusal(
        NotAvailableError, {"cache_path": "x"}, cache={"enabled": False}
    )
    said = refusal(
        NotAvailableError,
        {"exclude": "https://host/x.parquet"},
        save={"output_dir": "https://b/s"},
    )
    assert "datasets.code.exclude: https:// is not available" in said
    assert "save.output_dir: https:// is not available" in said
    options = {
        "storage_options": {"secret": "hf_Super"},
        "tokenizer_kwargs": {"token": "hf_Super"},
    }
    save = {"push_to_hub": True, "hub_repo_id": "a/b", "hub_token": "hf_Super"}
    assert "hf_Super" not in refusal(NotAvailableError, options, save=save)


# What is identity


def ids(found: ResolvedBuild) -> str:
    return json.dumps(
        [identity(found), *map(source_identity, found.sources)],
        sort_keys=True,
        allow_nan=False,
    )


PACKED: dict[str, Any] = {"pack": {"enabled": True, "seq_length": 512}}


@pytest.mark.parametrize(
    ("dataset", "sections"),
    [
        ({"name": "other"}, {}),
        ({"type": "jsonl"}, {}),
        ({"content_field": "body"}, {}),
        ({"text_mode": "lines"}, {}),
        ({"on_bad_record": "quarantine"}, {}),
        ({"splits": {"train": 0.5, "test": 0.5}}, {}),
        ({"special_tokens_in_text": "encode"}, {}),
        ({"tokenizer": {"name_or_path": "gpt2", "add_special_tokens": False}}, {}),
        ({"tokenizer": {"name_or_path": "gpt2", "truncation": True}}, {}),
        ({}, {"pack": {"enabled": False}}),
        ({}, {"pack": {"enabled": True, "seq_length": 513}}),
        ({}, {"pack": {"enabled": True, "seq_length": 512, "eos_token_id": 5}}),
        ({}, {"pack": {"enabled": True, "seq_length": 512, "pad_token_id": 5}}),
        ({}, {"pack": {"enabled": True, "seq_length": 512, "window_tokens": 4096}}),
        ({}, {"pack": {"enabled": True, "seq_length": 512, "store_segment_ids": True}}),
        ({}, {"pack": {"enabled": True, "seq_length": 512, "strategy": "best_fit"}}),
        ({}, {"pack": {"enabled": True, "seq_length": 512, "max_segments": 8}}),
        ({}, {"pack": {"enabled": True, "seq_length": 512, "shuffle_packed": True}}),
        ({}, {"source": {"unit_size": 1}}),
        ({}, {"source": {"max_record_bytes": 1}}),
        ({}, {"save": {"max_shard_size": 1}}),
    ],
)
def test_what_changes_bytes_changes_the_identity(
    dataset: dict[str, Any], sections: dict[str, Any]
) -> None:
    assert ids(build(dataset, **{**PACKED, **sections})) != ids(build(**PACKED))


def test_the_identity_is_pinned() -> None:
    """A change here makes every dataset ever built look new: change it on purpose or
    not at all.
    """
    found = build(**PACKED, source={"unit_size": "128MiB"})
    assert identity(found) == {
        "kind": "packed",
        "pack": {
            "seq_length": 512,
            "eos_token_id": None,
            "pad_token_id": None,
            "strategy": "greedy",
            "window_tokens": 16777216,
            "store_segment_ids": False,
        },
        "unit_size": 134217728,
        "max_shard_size": 524288000,
        "compression": "zstd",
    }
    assert source_identity(found.sources[0]) == {
        "name": "code",
        "type": None,
        "content_field": "text",
        "text_mode": "document",
        "on_bad_record": "fail",
        "max_record_bytes": 268435456,
        "splits": [["train", 1.0]],
        "tokenizer": {
            "add_special_tokens": True,
            "max_length": None,
            "special_tokens_in_text": "literal",
        },
    }
    assert identity(build())["kind"] == "tokens"
    assert identity(build())["pack"] is None


def test_a_worker_gets_the_records_without_importing_pydantic_or_yaml() -> None:
    code = (
        "import sys, tokenlake.config.resolved, tokenlake.etl.job; "
        "sys.exit(any(name in sys.modules for name in ('pydantic', 'yaml')))"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )


def test_what_a_section_says_holds_until_a_nearer_one_says_another() -> None:
    def tokenizer(dataset: Any, **sections: Any) -> ResolvedTokenizer:
        return build({"tokenizer": dataset}, **sections).sources[0].tokenizer

    stage: dict[str, Any] = {"default_tokenizer": "s", "max_length": 77}
    found = [
        tokenizer(own, tokenize=stage, default_tokenizer="p") for own in ("d", None)
    ]
    assert [(each.name_or_path, each.max_length) for each in found] == [
        ("d", 77),
        ("s", 77),
    ]
    assert tokenizer(None, default_tokenizer="p").name_or_path == "p"
    assert (
        tokenizer({"name_or_path": "x", "max_length": 5}, tokenize=stage).max_length
        == 5
    )
    # A dump writes every key down; it must not turn what is inherited into something of
    # its own.
    written = config({"tokenizer": {"name_or_path": "x"}}, tokenize=stage).model_dump(
        mode="json"
    )
    assert resolve(load_config(written)).sources[0].tokenizer.max_length == 77
    for asked, packing, policy in (
        (None, True, "keep"),
        (None, False, "truncate"),
        (True, True, "truncate"),
    ):
        cut = tokenizer(
            {"name_or_path": "x", "truncation": asked}, pack={"enabled": packing}
        )
        assert cut.long_documents == policy
    environ = {"TOKENLAKE_STORE": "/lake"}
    assert resolve(config(save={"output_dir": "/mine"}), environ).store == "/mine"
    assert (resolve(config(), environ).store, build().store) == ("/lake", "./artifacts")


def test_an_option_that_does_nothing_is_no_identity() -> None:
    def packed(seed: int | None = None, **pack: Any) -> str:
        return ids(build(seed=seed, pack={"enabled": True, "seq_length": 512, **pack}))

    assert (
        packed(seed=1)
        == packed(seed=2)
        == packed(shuffle_packed=False)
        == packed(num_packers=2)
    )
    assert packed(seed=1, shuffle_packed=True) != packed(seed=2, shuffle_packed=True)
    assert packed(seed=0, strategy="pool") == packed(
        strategy="pool", shuffle_packed=True
    )
    assert packed(strategy="pool") != packed(strategy="pool", shuffle_packed=False)
    assert packed(num_packers=2, strategy="pool") != packed(strategy="pool")
    longer: dict[str, Any] = {"tokenize": {"max_length": 99}}
    assert ids(build(**PACKED, **longer)) == ids(build(**PACKED))
    assert ids(build(**longer)) != ids(build())


@pytest.mark.parametrize(
    ("dataset", "sections"),
    [
        ({}, {"name": "other", "streaming": False, "seed": 9}),
        (
            {},
            {"load": {"batch_size": 9, "drop_last": False}, "ray": {"num_workers": 9}},
        ),
        (
            {},
            {
                "save": {"output_dir": "/a", "enabled": True},
                "tokenize": {"tokenizer_backend": "tokenizers"},
            },
        ),
        (
            {},
            {
                "source": {
                    "hash_threads": 9,
                    "max_bad_fraction": 0.5,
                    "max_expansion": 1e9,
                }
            },
        ),
        ({}, {"pack": {**PACKED["pack"], "include_segment_ids": False}}),
        (
            {
                "data_files": ["a", "b"],
                "exclude": "/takedowns.parquet",
                "max_bad_fraction": 0.5,
            },
            {},
        ),
        (
            {"tokenizer": {"name_or_path": "/a/copy/of/it", "trust_remote_code": True}},
            {},
        ),
    ],
)
def test_paths_workers_engines_and_other_runtime_options_are_no_identity(
    dataset: dict[str, Any], sections: dict[str, Any]
) -> None:
    assert ids(build(dataset, **{**PACKED, **sections})) == ids(build(**PACKED))


@pytest.mark.parametrize(
    ("template", "loss", "counts"),
    [
        ("{{ messages }}", "assistant", True),
        ("{{ messages }}", "all", False),
        ("{%- generation %}{{ messages }}{% endgeneration %}", "assistant", False),
    ],
)
def test_the_rules_that_find_turns_count_where_they_are_used(
    template: str, loss: Any, counts: bool
) -> None:
    """Masks of earlier rules, which put loss on some headers, are not taken over."""
    assert ("turns" in ResolvedChat(template=template, loss=loss).identity()) == counts
