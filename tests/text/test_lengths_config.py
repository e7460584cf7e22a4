"""The policy of long documents in a configuration: inheritance, contradictions, identity."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from tokenlake import PipelineConfig
from tokenlake.config.identity import source_identity
from tokenlake.config.resolve import resolve
from tokenlake.config.resolved import ResolvedTokenizer
from tokenlake.config.stages import TruncationSide, TruncationStrategy
from tokenlake.errors import ConfigError
from tokenlake.text.truncation import SIDES, STRATEGIES


def resolved(
    dataset: dict[str, Any] | None = None,
    *,
    pack: bool = False,
    truncation: bool | None = None,
    **tokenize: Any,
) -> Any:
    tokenizer = {"name_or_path": "t", "truncation": truncation}
    config = PipelineConfig.model_validate(
        {
            "name": "x",
            "datasets": [{"name": "s", "data_files": "f", "tokenizer": tokenizer, **(dataset or {})}],
            "tokenize": tokenize,
            "pack": {"enabled": pack},
        }
    )
    return resolve(config, {}).sources[0]


def policy(*args: Any, **options: Any) -> tuple[str, str, str]:
    tokenizer: ResolvedTokenizer = resolved(*args, **options).tokenizer
    return tokenizer.long_documents, tokenizer.truncation_strategy, tokenizer.truncation_side


def test_every_strategy_of_the_library_can_be_configured():
    assert ("none", *get_args(TruncationStrategy)) == STRATEGIES
    assert set(get_args(TruncationSide)) == set(SIDES)


def test_a_source_goes_before_the_stage():
    assert policy() == ("truncate", "simple", "right")
    assert policy(pack=True) == ("keep", "simple", "right")
    assert policy(long_documents="split") == ("split", "simple", "right")
    assert policy({"long_documents": "drop"}, long_documents="split")[0] == "drop"
    assert policy(truncation_strategy="word", truncation_side="left") == ("truncate", "word", "left")
    found = policy({"truncation_strategy": "smart"}, truncation_strategy="word", truncation_side="left")
    assert found == ("truncate", "smart", "left")


@pytest.mark.parametrize(
    ("truncation", "long_documents"),
    [(True, "truncate"), (False, "keep"), (False, "split"), (False, "drop"), (None, "drop")],
)
def test_what_agrees_is_allowed(truncation: bool | None, long_documents: str):
    assert policy(truncation=truncation, long_documents=long_documents)[0] == long_documents


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"truncation": False, "long_documents": "truncate"},
            "tokenize.long_documents: 'truncate', but the tokenizer of 's' has truncation: false",
        ),
        (
            {"dataset": {"long_documents": "split"}, "truncation": True},
            "datasets.s.long_documents: 'split', but the tokenizer of 's' has truncation: true",
        ),
        (
            {"dataset": {"truncation_side": "left"}, "pack": True},
            r"datasets.s.truncation_side: set, but its long documents are not truncated \(keep\)",
        ),
        (
            {"truncation_strategy": "word", "pack": True},
            "tokenize.truncation_strategy: set, but no dataset's documents are truncated; write long_documents",
        ),
    ],
)
def test_what_contradicts_itself_or_does_nothing_is_an_error(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        resolved(**options)


def test_the_policy_is_identity_where_it_acts():
    def identity(**options: Any) -> dict[str, Any]:
        return source_identity(resolved(**options))["tokenizer"]

    kept = identity(pack=True)
    assert kept == {"add_special_tokens": True, "max_length": None, "special_tokens_in_text": "literal"}
    assert identity(pack=True, max_length=9) == kept
    distinct = [
        kept,
        identity(),
        identity(max_length=9),
        identity(truncation_strategy="word"),
        identity(truncation_side="left"),
        identity(long_documents="split"),
        identity(long_documents="drop"),
    ]
    assert all(one not in distinct[:at] for at, one in enumerate(distinct))
    assert identity(pack=True, long_documents="truncate") == identity()
