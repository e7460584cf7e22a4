"""A tokenizer in a process of its own gives what it gives in this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenizer_guard import hostile
from tests.tokenizer_reference import needs_stages
from tests.tokenizers import tokenizer_samples as samples
from tokenlake.errors import MissingExtraError, TokenizerError
from tokenlake.runtime.tokenizer_guard import (
    BoundedTokenizer,
    ProcessLimits,
    open_tokenizer,
)

tokenizers: Any = pytest.importorskip("tokenizers")


def bounded(change: Any = lambda spec: None, **limits: int) -> BoundedTokenizer:
    data = hostile.files_with(change).json_bytes
    return BoundedTokenizer("mine", data, "a test asks for it", ProcessLimits(**limits))


@pytest.fixture(scope="module")
def sentencepiece() -> Iterator[BoundedTokenizer]:
    tokenizer = BoundedTokenizer(
        "mine", samples.sentencepiece().json_bytes, "a test asks for it"
    )
    yield tokenizer
    tokenizer.close()


@needs_stages
@given(
    st.lists(
        st.text(max_size=20) | st.sampled_from(["<s>a</s>", "\u00e9\U0001f600 x"]),
        max_size=4,
    ),
    st.booleans(),
)
def test_ids_offsets_and_texts_are_those_of_the_tokenizer(
    sentencepiece: BoundedTokenizer, texts: list[str], around: bool
) -> None:
    expected = open_tokenizer("mine", samples.sentencepiece().json_bytes)
    for literal in (True, False):
        sentencepiece.encode_special_tokens = expected.encode_special_tokens = literal
        fast = sentencepiece.encode_batch_fast(texts, add_special_tokens=around)
        placed = sentencepiece.encode_batch(texts, add_special_tokens=around)
        wanted = expected.encode_batch(texts, add_special_tokens=around)
        assert [encoding.ids for encoding in fast] == [
            encoding.ids for encoding in wanted
        ]
        for encoding, other in zip(placed, wanted, strict=True):
            assert encoding.ids == other.ids
            assert encoding.offsets == other.offsets
            assert encoding.special_tokens_mask == other.special_tokens_mask
            for skip in (True, False):
                text = expected.decode(other.ids, skip_special_tokens=skip)
                assert sentencepiece.decode(other.ids, skip_special_tokens=skip) == text


@needs_stages
def test_its_tokens_and_stages_are_those_of_the_tokenizer(
    sentencepiece: BoundedTokenizer,
) -> None:
    expected = open_tokenizer("mine", samples.sentencepiece().json_bytes)
    assert sentencepiece.token_to_id("</s>") == expected.token_to_id("</s>") == 2
    assert sentencepiece.token_to_id("no token") is None
    assert sentencepiece.id_to_token(1) == "<s>"
    assert sentencepiece.get_vocab_size() == expected.get_vocab_size()
    assert sentencepiece.to_str() == expected.to_str()
    assert sentencepiece.normalizer is not None
    assert sentencepiece.normalizer.normalize_str(
        "a b"
    ) == expected.normalizer.normalize_str("a b")
    assert sentencepiece.pre_tokenizer is None
    plain = bounded()
    assert plain.normalizer is None
    assert plain.pre_tokenizer is not None
    byte_level = open_tokenizer("mine", samples.byte_level().json_bytes).pre_tokenizer
    assert plain.pre_tokenizer.pre_tokenize_str("a bc") == byte_level.pre_tokenize_str(
        "a bc"
    )


def test_a_harmless_tokenizer_runs_in_this_process() -> None:
    assert isinstance(
        open_tokenizer("mine", samples.byte_level().json_bytes), tokenizers.Tokenizer
    )


@needs_stages
def test_too_much_time_ends_the_process_and_the_next_request_starts_another() -> None:
    # Just below the number of steps that Oniguruma allows, at very many places.
    tokenizer = bounded(
        lambda spec: spec.update(pre_tokenizer=samples.split_stage("(x+)+$")),
        seconds=0,
        bytes_per_second=1 << 30,
    )
    with pytest.raises(
        TokenizerError, match=r"encoding took more than 0 seconds of a processor"
    ):
        tokenizer.encode(("x" * 19 + "y") * 200)
    assert tokenizer.encode("words").ids


def test_too_large_an_answer_is_refused() -> None:
    tokenizer = bounded(output=0, output_per_byte=2)
    with pytest.raises(TokenizerError, match=r"encoding gave more than 0 MiB"):
        tokenizer.encode("qzqz")
    with pytest.raises(TokenizerError, match=r"decoding gave more than 0 MiB"):
        tokenizer.decode([256] * 4)


@pytest.mark.parametrize("number", [-1, 1 << 40])
def test_ids_that_no_token_can_have_are_an_error(number: int) -> None:
    with pytest.raises(
        TokenizerError, match=r"^tokenizer 'mine': decoding: OverflowError"
    ):
        bounded().decode([number])


def test_a_process_that_somebody_ends_is_replaced() -> None:
    tokenizer = bounded()
    server: Any = tokenizer._process  # pyright: ignore[reportPrivateUsage]
    os.kill(server._process.pid, signal.SIGKILL)
    with pytest.raises(TokenizerError, match="ended its process by SIGKILL"):
        tokenizer.encode("a")
    assert tokenizer.encode("a").ids


def test_it_ends_with_its_tokenizer() -> None:
    tokenizer = bounded()
    server: Any = tokenizer._process  # pyright: ignore[reportPrivateUsage]
    ended: subprocess.Popen[bytes] = server._process
    del tokenizer, server
    assert ended.returncode == -signal.SIGKILL


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tokenlake.runtime.tokenizer_guard.process.find_spec", lambda name: None
    )
    with pytest.raises(MissingExtraError, match="pip install"):
        bounded()


def test_it_reads_nothing_of_the_working_directory(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(5)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert sys.path
    assert bounded().encode("a").ids
