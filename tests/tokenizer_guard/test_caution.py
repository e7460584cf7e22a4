"""Which tokenizers run in this process, and which in one of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from tests.tokenizer_guard import hostile
from tests.tokenizer_reference import needs_stages
from tests.tokenizers import tokenizer_samples as samples
from tokenlake.errors import TokenizerError
from tokenlake.etl.tokenizers import SPLIT_REGEXES, objection
from tokenlake.runtime.tokenizer_guard import (
    Growth,
    deliberate,
    growth_of,
    is_plain,
    reason_for_caution,
)

tokenizers: Any = pytest.importorskip("tokenizers")

PLAIN = [
    *SPLIT_REGEXES.values(),
    r"\s+",
    r" {2,}",
    r"\p{N}{1,3}",
    r"[0-9][0-9][0-9]",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    # CLIP
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    # DeepSeek V3
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    # BLOOM
    " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+",
]
BACKTRACKING = [
    r"(a+)+$",
    r"(a*)*b",
    r"(?:a|aa)+$",
    r"(a|a){20}b",
    r"(?i:x+)*y",
    r"((a+)b?)+",
    r"(a)\1",
    r"(?<n>a)\k<n>",
    r"(?<n>a\g<n>?)",
    r"a?a?a?a?a?a?a?a?aaaaaaaa",
    r"(a|b)(a|b)(a|b)(a|b)(a|b)c",
    r"\s*\s*\s*\s*x",
    r"a{2}{3}",
    r"a+*",
    r"a++*",
    r"[[a](b+)+",
    r"[](a+)+]",
    r"(?(1)a|b)",
    r"(",
    r"a)",
    r"[a",
    "\\",
    "a" * 5000,
]


@pytest.mark.parametrize("pattern", PLAIN)
def test_expressions_of_published_models_are_plain(pattern: str) -> None:
    assert is_plain(pattern)


@pytest.mark.parametrize("pattern", BACKTRACKING)
def test_expressions_that_may_backtrack_are_not_plain(pattern: str) -> None:
    assert not is_plain(pattern)


REPLACE = {"type": "Replace", "pattern": {"String": "ab"}, "content": "xxxxxx"}


@pytest.mark.parametrize(
    ("stage", "growth"),
    [
        (None, Growth()),
        ({"type": "NFKC"}, Growth()),
        (REPLACE, Growth(3.0)),
        ({**REPLACE, "content": ""}, Growth(1.0)),
        ({**REPLACE, "pattern": {"Regex": "a"}}, Growth(7.0, 6)),
        ({**REPLACE, "pattern": {"String": ""}}, Growth(7.0, 6)),
        ({"type": "Prepend", "prepend": "\u2581"}, Growth(1.0, 3)),
        (
            hostile.normalizers({"type": "Prepend", "prepend": "ab"}, REPLACE),
            Growth(3.0, 6),
        ),
        (hostile.normalizers(hostile.normalizers(REPLACE), REPLACE), Growth(9.0)),
        ({"type": "New"}, None),
        ({"type": "Replace", "pattern": "a", "content": "b"}, None),
        ({"type": "Prepend", "prepend": 5}, None),
        ({"type": "Precompiled", "precompiled_charsmap": "!"}, None),
        (hostile.normalizers({"type": "Precompiled"}, {"type": "Precompiled"}), None),
        ({"type": "Sequence", "normalizers": 7}, None),
        (hostile.normalizers(5), None),  # pyright: ignore[reportArgumentType]
    ],
)
def test_growth_of_a_stage(stage: dict[str, Any] | None, growth: Growth | None) -> None:
    assert growth_of(stage) == growth


_TEXTS = st.text("ab \u00e9\u2581", max_size=8)
_PARTS = st.one_of(
    st.builds(
        lambda pattern, content: {
            "type": "Replace",
            "pattern": {"String": pattern},
            "content": content,
        },
        st.text("ab ", min_size=1, max_size=3),
        _TEXTS,
    ),
    st.builds(
        lambda pattern, content: {
            "type": "Replace",
            "pattern": {"Regex": pattern},
            "content": content,
        },
        st.sampled_from(["a", "[ab]", " +", "b?"]),
        _TEXTS,
    ),
    st.builds(lambda text: {"type": "Prepend", "prepend": text}, _TEXTS),
    st.just({"type": "ByteLevel"}),
)


@needs_stages
@given(st.lists(_PARTS, max_size=4), _TEXTS)
def test_a_text_never_grows_more_than_was_computed(
    parts: list[dict[str, Any]], text: str
) -> None:
    stage = hostile.normalizers(*parts)
    growth = growth_of(stage)
    assert growth is not None
    normalizer = samples.backend_with(normalizer=stage).normalizer
    try:
        with deliberate("normalizing"):
            size = len(normalizer.normalize_str(text).encode())
    except TokenizerError:  # some sequences with ByteLevel panic in `tokenizers`
        reject()
    assert size <= growth.factor * len(text.encode()) + growth.added


def test_known_forms_are_harmless() -> None:
    for name, files in samples.known().items():
        assert reason_for_caution(files.spec) is None, name


CAUTION: dict[str, tuple[Callable[[hostile.Spec], object], str]] = {
    "growing normalizer": (
        hostile.growing_normalizer,
        "may make 2,000,000,000,000 bytes of one",
    ),
    "growing pre-tokenizer": (
        hostile.growing_pre_tokenizer,
        "may make 2,147,483,648 bytes of one",
    ),
    "growing decoder": (hostile.growing_decoder, "its decoder may make"),
    "long prepend": (hostile.long_prepend, "may add 104,857,601 bytes to a text"),
    "unknown normalizer": (
        lambda spec: spec.update(normalizer={"type": "New"}),
        "a part that is not known",
    ),
    "unknown model": (
        lambda spec: spec["model"].update(type="New"),
        "its model is 'New'",
    ),
    "many parts": (
        lambda spec: spec.update(
            normalizer=hostile.normalizers(*[{"type": "NFC"}] * 33)
        ),
        "its normalizer has 33 parts",
    ),
    "backtracking": (
        lambda spec: spec.update(pre_tokenizer=samples.split_stage("(a+)+$")),
        "a regular expression that may backtrack: '(a+)+$'",
    ),
    "long piece": (
        lambda spec: spec["model"]["vocab"].update({"x" * 2000: 5}),
        "a piece of 2,000 characters",
    ),
    "sparse ids": (
        lambda spec: hostile.set_id(spec, (1 << 31) - 1),
        "its largest id is 2,147,483,647",
    ),
    "long added token": (
        lambda spec: hostile.add_token(spec, content="x" * 600),
        "an added token of 600",
    ),
    "long prefix": (
        lambda spec: spec["model"].update(continuing_subword_prefix="#" * 100),
        "its model.continuing_subword_prefix is not a text of at most 64 characters",
    ),
    "many ids around": (
        lambda spec: spec.update(
            post_processor=samples.template([(f"<{i}>", i) for i in range(300)], [])
        ),
        "its post_processor does more than add a few ids to a text",
    ),
    "many ids around, by a template in text": (
        lambda spec: spec.update(
            post_processor={
                "type": "TemplateProcessing",
                "single": "<s> $A",
                "pair": "<s> $A $B",
                "special_tokens": {
                    "<s>": {"id": "<s>", "ids": [0] * 300, "tokens": ["<s>"] * 300}
                },
            }
        ),
        "its post_processor does more than add a few ids to a text",
    ),
}


@pytest.mark.parametrize("name", CAUTION)
def test_unusual_parts_are_a_reason_for_caution(name: str) -> None:
    change, reason = CAUTION[name]
    assert reason in str(reason_for_caution(hostile.files_with(change).spec))


@pytest.mark.parametrize("name", ["long piece", "sparse ids", "long added token"])
def test_no_fast_engine_loads_an_unusual_vocabulary(name: str) -> None:
    change, reason = CAUTION[name]
    for engine in ("gigatoken", "segments"):
        assert reason in str(
            objection(hostile.files_with(change), engine, literal=True)
        )
