"""The models: defaults and rules of the specification, the seeds' snippets, and
messages a person can use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from tests.seeds import promise
from tokenlake import (
    DatasetConfig,
    MixStageConfig,
    PackStageConfig,
    PipelineConfig,
    SaveStageConfig,
    SourceStageConfig,
    TokenizerConfig,
)
from tokenlake.base import literal_secrets


def refusal(model: type[Any], /, **options: Any) -> str:
    with pytest.raises(ValidationError) as error:
        model(**options)
    return str(error.value)


def at(step: int, name: str) -> dict[str, Any]:
    return {"step": step, "weights": {name: 1.0}}


def two(**options: Any) -> PipelineConfig:
    datasets = [
        DatasetConfig(name="code", data_files="c"),
        DatasetConfig(name="text", data_files="t"),
    ]
    return PipelineConfig(datasets=datasets, **options)


def test_a_missing_section_means_its_defaults_which_are_those_of_the_specification() -> (
    None
):
    config = PipelineConfig(
        datasets=[{"data_files": "x", "tokenizer": {"name_or_path": "x"}}],
        mix=None,
        pack={},
    )
    usual = {
        "": {"streaming": True, "seed": None, "default_tokenizer": None},
        "datasets.0": {
            "content_field": "text",
            "tokenizer": TokenizerConfig(name_or_path="x"),
        },
        "datasets.0.tokenizer": {"trust_remote_code": False},
        "tokenize": {
            "max_length": 2048,
            "batch_size": 1000,
            "num_workers": 4,
            "cache_tokenized": None,
        },
        "mix": {
            "block_size": 1000,
            "stop_strategy": "restart",
            "weight_schedule_type": "step",
        },
        "pack": {
            "enabled": False,
            "seq_length": 2048,
            "strategy": "greedy",
            "num_packers": 4,
        },
        "load": {
            "batch_size": 8,
            "prefetch_buffer_size": 4,
            "drop_last": True,
            "prefetch_to_device": False,
        },
        "save": {
            "format": "parquet",
            "max_shard_size": 524288000,
            "hub_private": True,
            "overwrite": False,
        },
        "cache": {"memory_cache_size": 100, "disk_cache_expiry": 86400},
        "source": {"unit_size": None, "max_bad_fraction": 0.001},
    }
    for path, values in usual.items():
        section: Any = config
        for part in filter(None, path.split(".")):
            section = section[int(part)] if part.isdecimal() else getattr(section, part)
        assert {name: getattr(section, name) for name in values} == values
    assert config.pack.include_segment_ids and config.pack.shuffle_buffer_factor == 10


def test_a_tokenizer_is_a_text_a_mapping_or_a_config() -> None:
    text = DatasetConfig(data_files="x", tokenizer="gpt2").tokenizer
    mapping = DatasetConfig(
        data_files="x", tokenizer={"name_or_path": "gpt2", "max_length": 7}
    ).tokenizer
    model = DatasetConfig(
        data_files="x", tokenizer=TokenizerConfig(name_or_path="gpt2", max_length=7)
    ).tokenizer
    path = DatasetConfig(data_files="x", tokenizer=Path("tok/tokenizer.json")).tokenizer
    assert (text, path) == ("gpt2", "tok/tokenizer.json")
    assert mapping == model == TokenizerConfig(name_or_path="gpt2", max_length=7)


@promise(23)
def test_data_files_take_paths_and_lists() -> None:
    assert DatasetConfig(data_files=Path("a") / "b").data_files == "a/b"
    assert DatasetConfig(data_files=["a", Path("b")]).data_files == ("a", "b")
    by_split = {"train": [Path("a")], "test": "b"}
    assert DatasetConfig(data_files=by_split).data_files == {
        "train": ("a",),
        "test": "b",
    }
    for bad in ("", [], [""], 5, {}, {"train": ""}, {"train": {}}, {"": "x"}, {3: "x"}):
        assert "must be a path, glob, directory or URL" in refusal(
            DatasetConfig, data_files=bad
        )
    for nothing in ({}, {"data_files": None}):
        assert "must have data_files (files to read) or dataset" in refusal(
            DatasetConfig, **nothing
        )


def test_a_dataset_of_the_store_comes_as_it_is() -> None:
    assert (
        DatasetConfig(dataset="web.tokens@v3", split="validation").dataset
        == "web.tokens@v3"
    )
    for bad in ("Web", "web@", "web@v0", "a/b", ""):
        assert "must be a dataset of the store" in refusal(DatasetConfig, dataset=bad)
    assert "must have one of them" in refusal(
        DatasetConfig, dataset="web", data_files="x"
    )
    assert "got num_rows, where beside dataset 'web'" in refusal(
        DatasetConfig, dataset="web", where="x", num_rows=3
    )


@promise(24)
def test_nameless_datasets_are_named_by_position_and_the_callers_objects_stay_as_they_are() -> (
    None
):
    mine = DatasetConfig(data_files="x")
    raw = {"data_files": "y"}
    config = PipelineConfig(
        datasets=[mine, raw, DatasetConfig(data_files="z", name="z")]
    )
    assert [dataset.name for dataset in config.datasets] == [
        "dataset_0",
        "dataset_1",
        "z",
    ]
    assert mine.name is None
    assert raw == {"data_files": "y"}


def test_models_are_frozen_and_do_not_share_the_callers_mappings() -> None:
    weights, options = {"a": 1.0}, {"anon": True}
    mix = MixStageConfig(weights=weights)
    dataset = DatasetConfig(data_files="x", storage_options=options)
    weights["a"], options["anon"] = 0.0, False
    assert (mix.weights, dataset.storage_options) == ({"a": 1.0}, {"anon": True})
    with pytest.raises(ValidationError):
        mix.block_size = 5  # type: ignore[misc]
    SourceStageConfig().splits["other"] = 1.0
    assert SourceStageConfig().splits == {"train": 1.0}


@promise(13)
def test_validate_gives_the_messages_of_the_specification() -> None:
    assert PipelineConfig(datasets=[]).validate() == [
        "At least one dataset is required"
    ]
    assert PipelineConfig().validate() == ["At least one dataset is required"]
    twice = PipelineConfig(
        datasets=[{"data_files": "a", "name": "x"}, {"data_files": "b", "name": "x"}]
    )
    assert twice.validate() == ["Duplicate dataset names found"]
    assert two(mix={"weights": {"code": 0.5, "z": 0.5}}).validate() == [
        "Mix weight references unknown dataset: z"
    ]
    schedule = [{"step": 5, "weights": {"code": 0.5, "q": 0.5}}]
    assert two(mix={"weight_schedule": schedule}).validate() == [
        "Weight schedule at step 5 references unknown dataset: q"
    ]
    assert two(save={"push_to_hub": True}).validate() == [
        "save.push_to_hub needs save.hub_repo_id, such as org/name"
    ]
    assert two().validate() == []


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (
            SaveStageConfig,
            {"format": "parqet"},
            ["format", "'parqet'", "'arrow'", "did you mean 'parquet'?"],
        ),
        (
            SaveStageConfig,
            {"max_shard_size": "5 zb"},
            ["max_shard_size", "'5 zb'", "'500MB'"],
        ),
        (
            SaveStageConfig,
            {"num_shard": 1},
            ["num_shard", "unknown key", "did you mean 'num_shards'?"],
        ),
        (
            SaveStageConfig,
            {"output_dir": ""},
            ["output_dir", "got ''", "a path or URL"],
        ),
        (
            PackStageConfig,
            {"seq_length": -1},
            ["seq_length", "got -1", "greater than 0"],
        ),
        (PackStageConfig, {"seq_length": True}, ["seq_length", "got True", "integer"]),
        (
            PackStageConfig,
            {"seq_length": "2048"},
            ["seq_length", "got '2048'", "integer"],
        ),
        (PackStageConfig, {"enabled": "yes"}, ["enabled", "got 'yes'", "boolean"]),
        (
            PackStageConfig,
            {"seq_length": 64, "window_tokens": 63},
            ["window_tokens", "63", "64"],
        ),
        (MixStageConfig, {"weights": {"a": -1.0, "b": 2.0}}, ["weights", "got -1.0"]),
        (MixStageConfig, {"weights": {"a": float("nan")}}, ["weights", "got nan"]),
        (MixStageConfig, {"weight_schedule": []}, ["at least one point"]),
        (
            MixStageConfig,
            {"weight_schedule": [at(5, "a"), at(5, "a")]},
            ["steps must increase"],
        ),
        (
            MixStageConfig,
            {"weight_schedule": [at(0, "a"), at(5, "b")]},
            ["must weigh the same datasets"],
        ),
        (
            MixStageConfig,
            {"weights": {"a": 0.3, "b": 0.3}},
            ["Weights must sum to 1.0, got 0.6"],
        ),
        (
            DatasetConfig,
            {"data_files": "x", "storage_options": {"f": object()}},
            ["option 'f' is of type object"],
        ),
        (
            MixStageConfig,
            {"total_rows": 1, "epochs": 2},
            ["total_rows and epochs", "at most one"],
        ),
        (SourceStageConfig, {"max_bad_fraction": 1.5}, ["max_bad_fraction", "got 1.5"]),
        (SourceStageConfig, {"splits": {"a-b": 1.0}}, ["splits", "'a-b'"]),
        (SourceStageConfig, {"splits": {"a": 1.0, "b": 0.0}}, ["splits", "got 0.0"]),
        (
            TokenizerConfig,
            {"name_or_path": "x", "padding": "left"},
            ["padding", "got 'left'", "'longest'"],
        ),
        (
            DatasetConfig,
            {"data_files": "x", "name": "a/b"},
            ["name", "'a/b'", "letters, digits"],
        ),
        (
            DatasetConfig,
            {"data_files": "x", "tokenizer": 5},
            ["tokenizer", "got 5", "Hub id"],
        ),
        (
            DatasetConfig,
            {"data_files": "x", "tokenizer": {"name": "x"}},
            ["tokenizer.name", "unknown key"],
        ),
        (
            DatasetConfig,
            {"data_files": "x", "format_fields": {"a": "c", "b": "c"}},
            ["same new name"],
        ),
        (
            DatasetConfig,
            {"data_files": "x", "format_callback": "nope"},
            ["format_callback", "'nope'"],
        ),
        (
            DatasetConfig,
            {"data_files": "x", "additional_fields": "a"},
            ["additional_fields", "must be a list"],
        ),
        (PipelineConfig, {"name": "Llama 2"}, ["name", "'Llama 2'", "lower-case"]),
        (PipelineConfig, {"pack": 5}, ["pack", "got 5", "must be a mapping of keys"]),
        (
            PipelineConfig,
            {"datasets": [{"data_files": "x", "split": ""}]},
            ["datasets.0.split", "got ''"],
        ),
    ],
)
def test_a_wrong_value_names_key_value_what_is_allowed_and_the_nearest_match(
    model: type[Any], options: dict[str, Any], words: list[str]
) -> None:
    message = refusal(model, **options)
    for word in words:
        assert word in message


TOKEN = "hf_SuperSecretToken"


@pytest.mark.parametrize("given", [TOKEN, SecretStr(TOKEN)])
def test_a_literal_secret_is_never_shown(given: Any) -> None:
    options = {
        "key": TOKEN,
        "client_kwargs": {"aws_secret_access_key": TOKEN, "endpoint_url": "http://x"},
    }
    dataset = DatasetConfig(
        data_files="x", storage_options=options, tokenizer_kwargs={"token": TOKEN}
    )
    config = PipelineConfig(datasets=[dataset], save={"hub_token": given})
    for text in (
        repr(config),
        str(config),
        config.model_dump_json(),
        str(config.model_dump(mode="json")),
    ):
        assert "SuperSecret" not in text
        assert "http://x" in text
    assert isinstance(config.save.hub_token, SecretStr)
    assert config.save.hub_token.get_secret_value() == TOKEN
    assert literal_secrets(config) == [
        "datasets.0.storage_options.key",
        "datasets.0.storage_options.client_kwargs.aws_secret_access_key",
        "datasets.0.tokenizer_kwargs.token",
        "save.hub_token",
    ]


def test_a_secret_by_reference_is_kept_as_the_reference() -> None:
    variable = SaveStageConfig(hub_token={"env": "HF_TOKEN"})
    assert variable.model_dump(mode="json")["hub_token"] == {"env": "HF_TOKEN"}
    config = SaveStageConfig(hub_token={"block": "hub"})
    assert config.model_dump(mode="json")["hub_token"] == {"block": "hub"}
    assert SaveStageConfig(hub_token=config.hub_token) == config
    options = DatasetConfig(
        data_files="x", storage_options={"key": {"env": "K"}}
    ).model_dump(mode="json")
    assert options["storage_options"] == {"key": {"env": "K"}}
    assert literal_secrets(config) == []


@pytest.mark.parametrize(
    "options",
    [
        {"hub_token": 12345},
        {"hub_token": {"env": f"{TOKEN}!"}},
        {"hub_token": {"evn": TOKEN}},
        {"hub_token": [TOKEN]},
        {"hub_tokn": TOKEN},
        {"hub_token": "**********"},
    ],
)
def test_a_wrong_secret_is_refused_without_showing_it(options: dict[str, Any]) -> None:
    message = refusal(SaveStageConfig, **options)
    assert "12345" not in message
    assert "SuperSecret" not in message
    assert "SuperSecret" not in refusal(PipelineConfig, save=[options])
