"""Estimates of a plan: exact counts of what is read whole, and ranges of what is sampled."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builds import config_of
from tokenlake import load_config
from tokenlake.config.resolve import resolve
from tokenlake.etl import make_plan
from tokenlake.etl.plan import Estimate, estimate, sampling, total, totals_of_places


def estimate_of(config: dict[str, Any]) -> Estimate:
    return total(estimate(make_plan(resolve(load_config(config)))))


def write_lines(path: Path, lengths: list[int]) -> None:
    """Write a file with a document of so many words for each length; long documents repeat fewer words."""
    random_words = random.Random(3)
    with path.open("w") as file:
        for length in lengths:
            words = (str(random_words.randrange(10 if length > 50 else 10_000)) for _ in range(length))
            file.write(json.dumps({"text": " ".join(words)}) + "\n")


def test_what_is_read_whole_is_counted(tmp_path: Path, tokenizer_dir: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [1, 2, 300] * 40)
    (tmp_path / "b.jsonl").write_text('{"text": "no"}\n{"text": ""}\n')
    expected = estimate_of(config_of(tmp_path, tmp_path / "*.jsonl", tokenizer_dir))
    assert (expected.documents, expected.documents_margin) == (122, 0)
    assert expected.tokens_margin is not None


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled"])
def test_documents_that_grow_along_a_file_are_within_the_margin(
    order: str, tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "WHOLE_BYTES", 1 << 16)
    monkeypatch.setattr(sampling, "_WINDOW_BYTES", 1 << 13)
    lengths = list(range(1, 600))
    if order == "descending":
        lengths.reverse()
    elif order == "shuffled":
        random.Random(5).shuffle(lengths)
    write_lines(tmp_path / "a.jsonl", lengths)
    config = config_of(tmp_path, tmp_path / "a.jsonl", tokenizer_dir)
    sampled = estimate_of(config)
    monkeypatch.setattr(sampling, "WHOLE_BYTES", 1 << 30)
    counted = estimate_of(config)
    assert counted.documents == len(lengths)
    assert sampled.documents_margin is not None
    assert sampled.tokens_margin is not None
    assert 0 < sampled.documents_margin < len(lengths)
    assert abs(sampled.documents - counted.documents) <= sampled.documents_margin
    assert abs(sampled.tokens - counted.tokens) <= sampled.tokens_margin


def test_the_margin_is_the_documented_formula() -> None:
    rates = np.array([[0.02], [0.02], [0.03], [0.03]])
    [documents], [margin] = totals_of_places(rates, 4000)
    assert documents == pytest.approx(100)
    assert margin == pytest.approx(2 * 4000 * np.std(rates, ddof=1) / 2)
    assert np.isnan(totals_of_places(rates[:1], 4000)[1]).all()


def test_margins_of_sources_add_as_independent_errors() -> None:
    first = Estimate(1, 10, 1, 5, 1, documents_margin=0, tokens_margin=3, output_bytes_margin=None)
    second = Estimate(2, 20, 2, 6, 1, documents_margin=0, tokens_margin=4, output_bytes_margin=1)
    both = total({"a": first, "b": second})
    assert (both.documents, both.documents_margin) == (3, 0)
    assert (both.tokens, both.tokens_margin) == (30, 5)
    assert (both.output_bytes, both.output_bytes_margin) == (11, None)
