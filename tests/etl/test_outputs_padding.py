"""Attention masks and padding of unpacked rows."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.etl.outputs_support import build_here, settings, write_jsonl
from tests.store.support import copy_store
from tokenlake import load_config
from tokenlake.cli.app import main
from tokenlake.config.resolve import resolve
from tokenlake.errors import ConfigError
from tokenlake.etl import make_plan
from tokenlake.etl.integrity import RowCheck, RowRules
from tokenlake.etl.unit import Padding, RowGroups
from tokenlake.query import read_sequences
from tokenlake.runtime import open_writer
from tokenlake.runtime.store import open_store

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=40)


@given(
    LENGTHS,
    st.sampled_from(["max_length", "longest"]),
    st.sampled_from(["left", "right"]),
)
def test_padding_lays_each_document_at_one_end_of_its_row(lengths, kind, side):
    padding = Padding(kind, 12, side, -1)
    each = np.array(lengths, np.int64)
    ids = np.arange(each.sum(), dtype=np.int32)
    sizes = padding.sizes(each)
    out, mask = padding.apply(ids, each, sizes)
    rows = np.split(out, np.cumsum(sizes)[:-1])
    marks = np.split(mask, np.cumsum(sizes)[:-1])
    assert [len(row) for row in rows] == [
        max(n, 12 if kind == "max_length" else max(lengths)) for n in lengths
    ]
    for row, mark, document in zip(
        rows, marks, np.split(ids, np.cumsum(each)[:-1]), strict=True
    ):
        assert row[mark == 1].tolist() == document.tolist()
        assert set(row[mark == 0].tolist()) <= {-1}
        ones = mark if side == "right" else mark[::-1]
        assert ones.tolist() == sorted(ones.tolist(), reverse=True)


@given(
    LENGTHS,
    st.sampled_from(["none", "max_length", "longest"]),
    st.lists(st.integers(1, 40), max_size=5),
)
def test_row_groups_are_full_and_do_not_depend_on_the_pieces_they_come_in(
    lengths, kind, cuts
):
    padding = Padding(kind, 12, "right", 0)
    edges = sorted({0, *(cut for cut in cuts if cut < len(lengths)), len(lengths)})

    def groups(pieces: list[list[int]]) -> list[list[int]]:
        found, filling = [[]], RowGroups(padding, 100)
        for piece in pieces:
            while piece:
                taken, full = filling.take(np.array(piece, np.int64))
                found[-1] += piece[:taken]
                piece = piece[taken:]
                if full:
                    found.append([])
                    filling.clear()
        return [group for group in found if group]

    whole, pieces = (
        groups([lengths]),
        groups([lengths[a:b] for a, b in pairwise(edges)]),
    )
    assert (
        [n for group in whole for n in group]
        == lengths
        == [n for group in pieces for n in group]
    )
    assert kind == "none" or whole == pieces
    # The next document would have made every full group too large.
    if kind == "longest":
        assert all(max(group) * len(group) <= 100 for group in whole)
        assert all(
            max(*group, after[0]) * (len(group) + 1) > 100
            for group, after in pairwise(whole)
            if max(group) * len(group) < 100
        )


def notes(count: int) -> list[dict[str, Any]]:
    """Records of different lengths, in which every character can be the last."""
    return [
        {"text": f"note {i}: " + "the quick brown fox " * (i % 5)} for i in range(count)
    ]


@pytest.fixture
def config(tmp_path: Path, tokenizer_dir: Path) -> dict[str, Any]:
    return settings(
        tmp_path, tokenizer_dir, write_jsonl(tmp_path / "a.jsonl", notes(40))
    )


def with_tokenizer(config: dict[str, Any], **options: Any) -> dict[str, Any]:
    tokenizer = {"name_or_path": config["default_tokenizer"], **options}
    return config | {"datasets": [config["datasets"][0] | {"tokenizer": tokenizer}]}


def test_a_mask_is_stored_where_it_is_asked_for(config):
    plain = build_here(config)
    assert "attention_mask" not in plain.table().schema.names
    assert (
        "attention_mask"
        not in build_here(with_tokenizer(config, return_attention_mask=False))
        .table()
        .schema.names
    )
    masked = build_here(with_tokenizer(config, return_attention_mask=True))
    table = masked.table()
    assert table.schema.names == ["input_ids", "attention_mask", "file", "position"]
    assert str(table.schema.field("attention_mask").type.value_type) == "int32"
    for row, before in zip(masked.rows(), plain.rows(), strict=True):
        assert row["input_ids"] == before["input_ids"]
        assert row["attention_mask"] == [1] * len(row["input_ids"])
    assert masked.manifest.account.pad == 0
    assert "`attention_mask`" in (masked.folder / "README.md").read_text()


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("kind", ["max_length", "longest"])
def test_padded_rows_hold_the_documents_and_the_account_counts_the_padding(
    config, tokenizer_dir, monkeypatch, kind, side
):
    monkeypatch.setattr("tokenlake.etl.unit.sink.group_tokens", lambda files: 300)
    plain = build_here(config | {"name": "plain"})
    options = {"padding": kind, "max_length": 25} | (
        {"padding_side": side} if side else {}
    )
    built = build_here(with_tokenizer(config, **options))
    cut = min(25, max(len(row["input_ids"]) for row in plain.rows()))
    pad_id = built.manifest.tokenizer["s"]["pad_id"]
    for row, before in zip(built.rows(), plain.rows(), strict=True):
        document = (
            before["input_ids"][:cut]
            if kind == "max_length"
            else before["input_ids"][:25]
        )
        padding = [pad_id] * (len(row["input_ids"]) - len(document))
        expected = padding + document if side == "left" else document + padding
        assert row["input_ids"] == expected
        assert [bit for bit in row["attention_mask"] if bit] == [1] * len(document)
    lengths = [len(row["input_ids"]) for row in built.rows()]
    if kind == "max_length":
        assert set(lengths) == {25}
    else:
        groups = pq.ParquetFile(built.files()[0])
        for index in range(groups.num_row_groups):
            rows = groups.read_row_group(index).to_pylist()
            longest = max(sum(row["attention_mask"]) for row in rows)
            assert {len(row["input_ids"]) for row in rows} == {longest}
        assert groups.num_row_groups > 1
    account = built.manifest.account
    assert account.pad == sum(lengths) - built.manifest.totals.tokens > 0
    assert built.manifest.totals.tokens == account.content_packed


def test_the_side_is_the_tokenizers_where_none_is_named(
    config, tokenizer_dir, tmp_path
):
    left = tmp_path / "left"
    left.mkdir()
    for file in tokenizer_dir.iterdir():
        (left / file.name).write_bytes(file.read_bytes())
    own = json.loads((left / "tokenizer_config.json").read_text())
    (left / "tokenizer_config.json").write_text(
        json.dumps(own | {"padding_side": "left"})
    )
    config["default_tokenizer"] = str(left)
    found = build_here(with_tokenizer(config, padding="max_length", max_length=200))
    assert {row["attention_mask"][-1] for row in found.rows()} == {1}
    assert {row["attention_mask"][0] for row in found.rows()} == {0}
    right = build_here(
        with_tokenizer(
            config, padding="max_length", max_length=200, padding_side="right"
        )
    )
    assert {row["attention_mask"][0] for row in right.rows()} == {1}
    assert found.manifest.fingerprint != right.manifest.fingerprint


def test_long_documents_that_are_kept_are_longer_than_their_padding(config):
    built = build_here(
        with_tokenizer(config, padding="max_length", max_length=10, truncation=False)
    )
    lengths = {len(row["input_ids"]) for row in built.rows()}
    assert min(lengths) == 10
    assert max(lengths) > 10


def test_a_mask_of_one_source_is_a_column_of_all(config, tmp_path):
    write_jsonl(tmp_path / "b.jsonl", notes(5))
    made = with_tokenizer(config, padding="max_length", max_length=99)
    made["datasets"].append({"name": "t", "data_files": str(tmp_path / "b.jsonl")})
    rows = build_here(made).rows()
    assert {len(row["input_ids"]) for row in rows[:40]} == {99}
    assert all(
        row["attention_mask"] == [1] * len(row["input_ids"]) for row in rows[40:]
    )


def test_padding_changes_the_identity_and_its_absence_does_not(config):
    def fingerprint(**options: Any) -> str:
        return make_plan(
            resolve(load_config(with_tokenizer(config, **options)))
        ).fingerprint

    plain = make_plan(resolve(load_config(config))).fingerprint
    assert (
        fingerprint()
        == fingerprint(padding=False)
        == fingerprint(return_attention_mask=False)
        == plain
    )
    others = [
        fingerprint(return_attention_mask=True),
        fingerprint(padding="longest"),
        fingerprint(padding="max_length"),
        fingerprint(padding="max_length", padding_side="left"),
        fingerprint(padding="max_length", truncation=False),
        fingerprint(padding="max_length", truncation=False, max_length=77),
    ]
    assert len({plain, *others}) == 7


@pytest.mark.parametrize(
    ("options", "pack", "match"),
    [
        (
            {"padding": "longest"},
            True,
            r"tokenizer\.padding: 'longest' is for unpacked documents",
        ),
        (
            {"padding": "longest", "return_attention_mask": False},
            False,
            "only the mask identifies",
        ),
        (
            {"padding_side": "left"},
            False,
            "padding_side: 'left', but nothing is padded",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_errors(config, options, pack, match):
    with pytest.raises(ConfigError, match=match):
        resolve(
            load_config(with_tokenizer(config, **options) | {"pack": {"enabled": pack}})
        )


def test_a_tokenizer_without_padding_and_eos_cannot_pad(
    config, tokenizer_dir, tmp_path
):
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "tokenizer.json").write_bytes(
        (tokenizer_dir / "tokenizer.json").read_bytes()
    )
    config["default_tokenizer"] = str(bare)
    with pytest.raises(
        ConfigError, match="names neither a padding token nor an EOS token"
    ):
        make_plan(resolve(load_config(with_tokenizer(config, padding="longest"))))


@pytest.mark.parametrize("side", ["left", "right"])
def test_peek_shows_the_document_without_its_padding(config, capsys, side):
    built = build_here(
        with_tokenizer(config, padding="max_length", max_length=80, padding_side=side)
    )
    store = config["save"]["output_dir"]
    (sequence,) = read_sequences(open_store(store), built.manifest, None, 7, 1)
    assert (len(sequence.segments), sequence.padding) == (
        1,
        80 - len(sequence.segments[0].ids),
    )
    assert (
        main(["peek", "set", "-n", "1", "--row", "7", "--json", "--store", store]) == 0
    )
    (row,) = json.loads(capsys.readouterr().out)
    assert row["segments"][0]["text"] == notes(8)[7]["text"]


MASKS = {
    "a value for every id": [[1, 1, 0], [1, 1]],
    "1 or 0": [[2, 2, 2], [1, 1, 1]],
    "at least one id that is not padding": [[0, 0, 0], [1, 1, 1]],
    "padding at one end of the row": [[1, 0, 1], [0, 1, 1]],
}


@pytest.mark.parametrize("expected", MASKS)
def test_a_wrong_mask_is_found(config, expected):
    built = build_here(with_tokenizer(config, padding="max_length", max_length=30))
    table = built.table().slice(0, 2)
    rules = RowRules.of(built.manifest)

    def faults(masks: list[list[int]]) -> set[str]:
        columns = table.to_pydict() | {
            "input_ids": [[5, 6, 7], [5, 6, 7]],
            "attention_mask": masks,
        }
        check = RowCheck(rules)
        check.add(type(table).from_pydict(columns, schema=table.schema))
        return {fault[1] for fault in check.faults.values()}

    assert faults(MASKS[expected]) == {expected}
    assert faults([[1, 1, 0], [0, 0, 1]]) == set()


def test_verify_deep_counts_what_is_not_padding(config, tmp_path, capsys):
    """The account's tokens are those of the masks: one bit more and it does not
    close.
    """
    built = build_here(with_tokenizer(config, padding="max_length", max_length=80))
    store = copy_store(Path(config["save"]["output_dir"]), tmp_path / "copy")
    path = store / built.files()[0].relative_to(config["save"]["output_dir"])
    table = pq.read_table(path)
    masks = table["attention_mask"].to_pylist()
    masks[0][sum(masks[0])] = 1
    changed = table.to_pydict() | {"attention_mask": masks}
    with open_writer(str(path), table.schema) as writer:
        writer.write_table(type(table).from_pydict(changed, schema=table.schema))
    check = RowCheck(RowRules.of(built.manifest))
    check.add(pq.read_table(path))
    assert check.tokens == built.manifest.totals.tokens + 1
    assert main(["verify", "set", "--deep", "--store", str(store)]) == 3
    assert built.manifest.files[0].path in capsys.readouterr().out
