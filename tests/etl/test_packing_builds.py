"""Builds with every strategy: nothing lost, verified deeply, the same bytes whoever
builds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.etl.outputs_support import (
    Config,
    build_here,
    documents_of,
    notes,
    settings,
    tree,
    write_jsonl,
)
from tests.text.chat_samples import CHATML, conversation, speaking, write
from tokenlake.etl.packing import STRATEGIES
from tokenlake.etl.tokenizers import Encoder
from tokenlake.etl.tokenizers import encoder as encoder_module
from tokenlake.etl.unit import text as unit_module

LONG = "word " * 40 + "words und so weiter, " * 100


@pytest.fixture
def config(tmp_path: Path, tokenizer_dir: Path) -> Config:
    """Three files, each a unit of its own, with a long document each; windows of
    eight rows.
    """
    for index in range(3):
        records = [
            *notes(60, 100 * index),
            {"text": LONG, "id": -index},
            *notes(20, 100 * index + 60),
        ]
        write_jsonl(tmp_path / "in" / f"{index}.jsonl", records)
    found = settings(tmp_path, tokenizer_dir, tmp_path / "in")
    return {
        **found,
        "source": {"unit_size": 4000},
        "pack": {"enabled": True, "seq_length": 32, "window_tokens": 256},
    }


def packing(config: Config, **options: Any) -> Config:
    return {**config, "pack": {**config["pack"], **options}}


def test_every_strategy_keeps_every_token_and_counts_every_slot(config: Config) -> None:
    greedy = build_here(config)
    expected = documents_of(greedy.rows())
    assert len(expected) == 243
    for strategy in STRATEGIES:
        built = build_here(
            packing(config, strategy=strategy, shuffle_packed=True, max_segments=4)
        )
        account = built.manifest.account
        assert documents_of(built.rows()) == expected
        assert (account.documents, account.eos) == (243, 243)
        assert account.content_packed == greedy.manifest.account.content_packed
        assert (
            account.slots
            == 32 * len(built.rows())
            == account.content_packed + account.eos + account.pad
        )
        assert built.manifest.totals.documents == 243
        assert max(len(row["segment_lengths"]) for row in built.rows()) <= 4


def test_shuffling_moves_rows_only_and_another_seed_moves_them_elsewhere(
    config: Config,
) -> None:
    ordered, first, second = (
        build_here(
            {**packing(config, strategy="best_fit", shuffle_packed=on), "seed": seed}
        )
        for on, seed in ((False, None), (True, 1), (True, 2))
    )
    rows = [
        [row["input_ids"] for row in built.rows()] for built in (ordered, first, second)
    ]
    assert rows[0] != rows[1] != rows[2]
    assert sorted(rows[0]) == sorted(rows[1]) == sorted(rows[2])


def test_a_unit_keeps_its_rows_when_another_comes_before_it(
    config: Config, tmp_path: Path
) -> None:
    given = packing(config, strategy="best_fit")
    first = build_here(given)
    write_jsonl(tmp_path / "in" / "00.jsonl", notes(80, 900))
    second = build_here(given)
    fresh = build_here({**given, "save": {"output_dir": str(tmp_path / "fresh")}})
    assert {entry.sha256 for entry in first.manifest.files} < {
        entry.sha256 for entry in second.manifest.files
    }
    assert [entry.sha256 for entry in second.manifest.files] == [
        entry.sha256 for entry in fresh.manifest.files
    ]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_document_encoded_piece_by_piece_gives_the_same_bytes(
    config: Config, tmp_path: Path, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(
        tmp_path / "in" / "1.jsonl",
        [*notes(9), {"text": LONG * 6}, *notes(9, 9), {"text": LONG * 7}],
    )
    config["source"] |= {"splits": {"train": 0.5, "other": 0.5}}
    given = packing(config, strategy=strategy)
    whole = build_here(given)
    monkeypatch.setattr(unit_module, "_LONG_BYTES", 1000)
    monkeypatch.setattr(encoder_module, "PIECE_BYTES", 64)
    encode_long, made = Encoder.encode_long, []
    monkeypatch.setattr(
        Encoder,
        "encode_long",
        lambda *args: made.append(encode_long(*args)) or made[-1],
    )
    pieces = build_here({**given, "save": {"output_dir": str(tmp_path / "other")}})
    assert tree(pieces.folder) == tree(whole.folder)
    assert sum(found is not None for found in made) == 2


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_further_pieces_of_split_documents_count_on(
    config: Config, strategy: str
) -> None:
    config["tokenize"] = {"max_length": 40, "long_documents": "split"}
    built = build_here(packing(config, strategy=strategy))
    account = built.manifest.account
    assert account.documents == len(documents_of(built.rows())) == 243
    assert account.normalized["long_documents_split"] >= 3
    assert account.eos > 243


def test_splits_and_files_are_packed_each_by_itself(config: Config) -> None:
    split = {
        **packing(config, strategy="best_fit"),
        "save": {**config["save"], "num_shards": 3},
    }
    split["source"] = {"splits": {"train": 0.7, "test": 0.3}}
    built = build_here(split)
    assert [len(built.files(name)) for name in ("train", "test")] == [3, 3]
    train, test = documents_of(built.rows()), documents_of(built.rows("test"))
    assert not train.keys() & test.keys()
    assert len(train) + len(test) == 243


def test_the_stored_column_of_segment_ids_has_zeros_at_every_rows_end(
    config: Config,
) -> None:
    built = build_here(
        packing(config, strategy="first_fit", store_segment_ids=True, max_segments=2)
    )
    padded = 0
    for row in built.rows():
        lengths = row["segment_lengths"]
        expected = [
            number + 1 for number, length in enumerate(lengths) for _ in range(length)
        ]
        padded += len(expected) < 32
        assert row["segment_ids"] == expected + [0] * (32 - len(expected))
    assert padded > 10


@pytest.mark.parametrize("strategy", ["pool", "best_fit"])
def test_what_assistants_say_bears_loss_wherever_it_lies(
    tmp_path: Path, strategy: str
) -> None:
    tokenizer = write(speaking(CHATML), tmp_path / "tokenizer")
    talks = [conversation(seed, turns=1 + seed % 3) for seed in range(40)]
    data = write_jsonl(
        tmp_path / "in" / "chat.jsonl", [{"messages": talk} for talk in talks]
    )
    given: Config = settings(tmp_path, tokenizer, data)
    given["tokenize"] = {"max_length": 100_000}
    alone = build_here(given)
    built = build_here(
        {
            **given,
            "name": "packed",
            "pack": {"enabled": True, "seq_length": 128, "strategy": strategy},
        }
    )
    eos = built.manifest.tokenizer["s"]["eos_id"]
    ids, masks = documents_of(built.rows()), documents_of(built.rows(), "loss_mask")
    assert len(ids) == 40
    for row in alone.rows():
        where = row["file"], row["position"]
        assert ids[where] == [*row["input_ids"], eos]
        assert masks[where][:-1] == row["loss_mask"]
    for row in built.rows():
        assert not any(row["loss_mask"][sum(row["segment_lengths"]) :])
