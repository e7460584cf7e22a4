"""A configuration that mixes text as the builds that it is."""

from __future__ import annotations

from typing import Any

import pytest

from tokenlake import PipelineConfig
from tokenlake.config import first_steps, last_step
from tokenlake.config.resolve import resolve
from tokenlake.errors import ConfigError, NotAvailableError


def config(
    *, datasets: list[dict[str, Any]] | None = None, **sections: Any
) -> PipelineConfig:
    texts = [{"name": name, "data_files": f"{name}.jsonl"} for name in ("code", "web")]
    given = {
        "name": "mixed",
        "default_tokenizer": "gpt2",
        "datasets": datasets or texts,
    }
    return PipelineConfig.model_validate(given | sections)


MIX: dict[str, Any] = {"weights": {"code": 0.25, "web": 0.75}, "epochs": 1.0}


def test_mixed_text_becomes_a_tokens_dataset_for_each_source_and_a_mixture_of_these() -> (
    None
):
    whole = config(
        mix=MIX, pack={"enabled": True, "seq_length": 64}, save={"num_shards": None}
    )
    steps = first_steps(whole)
    assert {source: step.name for source, step in steps.items()} == {
        "code": "mixed.code.tokens",
        "web": "mixed.web.tokens",
    }
    code = resolve(steps["code"])
    assert (code.kind, [source.name for source in code.sources]) == ("tokens", ["code"])
    # Packing keeps long documents, and packing comes later.
    assert code.sources[0].tokenizer.long_documents == "keep"
    last = resolve(
        last_step(whole, {"code": "mixed.code.tokens@v3", "web": "other.web.tokens@v1"})
    )
    assert [(each.name, each.dataset, each.split) for each in last.parents] == [
        ("code", "mixed.code.tokens@v3", "train"),
        ("web", "other.web.tokens@v1", "train"),
    ]
    assert last.mixture is not None
    assert last.mixture.points == ((0, {"code": 0.25, "web": 0.75}),)
    assert last.mixture.step_rows == 256
    assert last.pack is not None


def test_long_documents_are_truncated_before_they_are_mixed_where_that_is_asked() -> (
    None
):
    steps = first_steps(
        config(mix=MIX, pack={"enabled": True}, tokenize={"long_documents": "truncate"})
    )
    assert resolve(steps["web"]).sources[0].tokenizer.long_documents == "truncate"
    unpacked = first_steps(config(mix=MIX))
    assert resolve(unpacked["web"]).sources[0].tokenizer.long_documents == "truncate"


def test_stored_datasets_are_taken_as_they_are_and_text_beside_them_is_made_first() -> (
    None
):
    datasets = [
        {"name": "code", "dataset": "code@v2"},
        {"name": "web", "data_files": "web.jsonl"},
    ]
    whole = config(datasets=datasets, mix=MIX)
    assert list(first_steps(whole)) == ["web"]
    parents = resolve(last_step(whole, {"web": "mixed.web.tokens@v7"})).parents
    assert [parent.dataset for parent in parents] == ["code@v2", "mixed.web.tokens@v7"]


@pytest.mark.parametrize(
    ("kind", "sections", "said"),
    [
        (
            ConfigError,
            {"mix": {"weights": {"code": 0.5, "web": 0.5}}},
            "restart never ends",
        ),
        (
            ConfigError,
            {"mix": {"weights": {"code": 1.0}, "epochs": 1.0}},
            "no weight for web",
        ),
        (
            ConfigError,
            {"mix": MIX, "pack": {"seq_length": 8}},
            "packing is not enabled",
        ),
        (ConfigError, {"mix": MIX, "name": None}, "name: missing"),
        (
            NotAvailableError,
            {"mix": MIX, "tokenize": {"cache_tokenized": False}},
            "cache_tokenized",
        ),
        (ConfigError, {"mix": MIX, "name": "m" * 60}, "too long"),
    ],
)
def test_what_cannot_be_mixed_is_refused(
    kind: type[ConfigError], sections: dict[str, Any], said: str
) -> None:
    whole = config(**sections)
    with pytest.raises(kind, match=said):
        first_steps(whole)
        resolve(last_step(whole, {"code": "a@v1", "web": "b@v1"}))


def test_without_a_mixture_stored_datasets_are_packed_and_no_text_is_beside_them() -> (
    None
):
    whole = config(
        datasets=[{"name": "code", "dataset": "code"}], pack={"enabled": True}
    )
    assert first_steps(whole) == {}
    resolved = resolve(whole)
    assert (resolved.mixture, resolved.parents[0].dataset) == (None, "code")
    datasets = [
        {"name": "code", "dataset": "code@v2"},
        {"name": "web", "data_files": "web.jsonl"},
    ]
    with pytest.raises(ConfigError, match="Add a section mix"):
        first_steps(config(datasets=datasets, pack={"enabled": True}))
