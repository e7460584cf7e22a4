"""Estimates of a plan: exact counts of what is read whole, and ranges of what is
sampled.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builds import config_of
from tokenlake import build_dataset, load_config
from tokenlake.config.resolve import resolve
from tokenlake.etl import make_plan
from tokenlake.etl.plan import (
    PART_BYTES,
    Estimate,
    estimate,
    sample_of,
    sampling,
    total,
    totals_of_places,
)
from tokenlake.etl.unit import TextDocuments
from tokenlake.query import loss_share
from tokenlake.runtime.store import open_store


def estimate_of(config: dict[str, Any]) -> Estimate:
    return total(estimate(make_plan(resolve(load_config(config)))))


def write_lines(path: Path, lengths: list[int]) -> None:
    """Write a file with a document of so many words for each length; long documents
    repeat fewer words.
    """
    random_words = random.Random(3)
    with path.open("w") as file:
        for length in lengths:
            words = (
                str(random_words.randrange(10 if length > 50 else 10_000))
                for _ in range(length)
            )
            file.write(json.dumps({"text": " ".join(words)}) + "\n")


def test_what_is_read_whole_is_counted(tmp_path: Path, tokenizer_dir: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [1, 2, 300] * 40)
    (tmp_path / "b.jsonl").write_text('{"text": "no"}\n{"text": ""}\n')
    expected = estimate_of(config_of(tmp_path, tmp_path / "*.jsonl", tokenizer_dir))
    assert (expected.documents, expected.documents_margin) == (122, 0)
    assert expected.tokens_margin is not None


def test_bad_records_of_the_sample_are_counted(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    write_lines(tmp_path / "a.jsonl", [5] * 98)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"text": null}\nno json\n')
    expected = estimate_of(config_of(tmp_path, tmp_path / "a.jsonl", tokenizer_dir))
    assert (expected.bad_records, expected.sampled_records) == (2, 100)


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
    assert margin == pytest.approx(2 * 4000 * np.sqrt(0.0001 / 24))
    assert np.isnan(totals_of_places(rates[:1], 4000)[1]).all()


def test_the_margin_is_the_usual_one_of_places_in_random_order() -> None:
    rates = np.random.default_rng(1).normal(5.0, 1.0, (4000, 1))
    _, [margin] = totals_of_places(rates, 1.0)
    assert margin == pytest.approx(2 * np.std(rates) / np.sqrt(4000), rel=0.05)


def test_margins_of_sources_add_as_independent_errors() -> None:
    first = Estimate(
        1, 10, 1, 5, 1, documents_margin=0, tokens_margin=3, output_bytes_margin=None
    )
    second = Estimate(
        2, 20, 2, 6, 1, documents_margin=0, tokens_margin=4, output_bytes_margin=1
    )
    both = total({"a": first, "b": second})
    assert (both.documents, both.documents_margin) == (3, 0)
    assert (both.tokens, both.tokens_margin) == (30, 5)
    assert (both.output_bytes, both.output_bytes_margin) == (11, None)


def test_long_documents_are_sampled_beyond_their_beginnings(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    # A document of 3 MB begins with words of many tokens, and goes on with words of
    # one.
    begin = " ".join(str(number) for number in range(100_000, 130_000))
    text = begin + " the" * 700_000
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}) + "\n")
    config = config_of(tmp_path, tmp_path / "a.jsonl", tokenizer_dir)
    expected = estimate_of({**config, "tokenize": {"engine": "tokenizers"}})
    built = build_dataset(config).manifest
    assert expected.documents == 1
    assert expected.tokens == pytest.approx(built.totals.tokens, rel=0.1)


def test_a_build_with_a_loss_mask_says_how_many_tokens_count(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    records = [
        {"question": "two words " * 30, "answer": f"answer {number} " * 10}
        for number in range(50)
    ]
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in records)
    )
    config = config_of(tmp_path, tmp_path / "a.jsonl", tokenizer_dir)
    config["datasets"][0]["prompt"] = {
        "template": "Q: {question}\nA: {answer}",
        "input_columns": ["question"],
        "label_column": "answer",
    }
    expected = estimate_of(config)
    manifest = build_dataset(config).manifest
    assert expected.tokens == manifest.totals.tokens
    share = loss_share(open_store(config["save"]["output_dir"]), manifest)
    assert share is not None
    assert expected.loss_tokens == share.loss_tokens
    assert 0 < share.loss_tokens < share.tokens == manifest.totals.tokens


def test_a_build_of_plain_text_has_no_share_of_the_loss(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    write_lines(tmp_path / "a.jsonl", [5, 6])
    config = config_of(tmp_path, tmp_path / "a.jsonl", tokenizer_dir)
    assert estimate_of(config).loss_tokens is None
    manifest = build_dataset(config).manifest
    assert loss_share(open_store(config["save"]["output_dir"]), manifest) is None


@given(
    texts=st.lists(st.text(alphabet="aé日 \n", max_size=60), min_size=1, max_size=40),
    most=st.integers(1, 400),
    part_bytes=st.integers(1, 64),
)
def test_a_sample_of_texts_is_parts_of_them_in_order(
    texts: list[str], most: int, part_bytes: int
) -> None:
    documents = TextDocuments(
        text=pa.array(texts, pa.large_string()),
        file=np.zeros(len(texts), np.int64),
        position=np.arange(len(texts)),
    )
    sample = sample_of(documents, most, part_bytes)
    if documents.text_bytes <= most:
        assert sample is documents
        return
    assert sample.text_bytes <= most
    assert np.all(np.diff(sample.position) >= 0)
    for text, position in zip(
        sample.text.to_pylist(), sample.position.tolist(), strict=True
    ):
        assert text in texts[position]


def test_a_sample_of_one_long_text_is_spread_over_it() -> None:
    text = "".join(f"{number:07} " for number in range(1 << 14))  # 128 KiB
    documents = TextDocuments(
        text=pa.array([text], pa.large_string()),
        file=np.zeros(1, np.int64),
        position=np.zeros(1, np.int64),
    )
    sample = sample_of(documents, 2 * PART_BYTES)
    first, second = (str(part) for part in sample.text.to_pylist())
    assert text.index(first) == len(text) // 4
    assert text.index(second) == 3 * len(text) // 4
    assert sample.position.tolist() == [0, 0]


PACKINGS: dict[str, dict[str, Any]] = {
    "greedy": {"strategy": "greedy"},
    "greedy with few pieces": {"strategy": "greedy", "max_segments": 2},
    "pool": {"strategy": "pool"},
    "first_fit": {"strategy": "first_fit"},
    "best_fit": {"strategy": "best_fit"},
    "best_fit in small windows": {"strategy": "best_fit", "window_tokens": 512},
    "a document per row": {"strategy": "best_fit", "max_segments": 1},
}


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_rows_of_a_skewed_folder_are_foreseen_for_every_strategy(
    packing: str, tmp_path: Path, tokenizer_dir: Path
) -> None:
    # Documents of about 70 tokens leave half of a row of 128 empty where they must not
    # be cut; a few are many rows long.
    write_lines(tmp_path / "a.jsonl", [20, 22, 24] * 100)
    write_lines(tmp_path / "b.jsonl", [5, 900, 6, 700])
    config = config_of(
        tmp_path,
        tmp_path / "*.jsonl",
        tokenizer_dir,
        pack=128,
        splits={"train": 0.8, "validation": 0.2},
    )
    config["pack"].update(PACKINGS[packing])
    expected = estimate_of(config)
    built = build_dataset(config).manifest.totals
    assert expected.sequences == pytest.approx(built.rows, rel=0.05)


def test_stored_rows_of_ids_stay_one_row_each(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    records = [{"input_ids": list(range(1, 2 + number % 8))} for number in range(40)]
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in records)
    )
    config = config_of(
        tmp_path,
        tmp_path / "a.jsonl",
        tokenizer_dir,
        pack=8,
        tokens={"rows": True},
    )
    assert estimate_of(config).sequences == 40
