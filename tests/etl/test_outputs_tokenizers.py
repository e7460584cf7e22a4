"""Each source its own tokenizer and settings, where that makes sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.etl.outputs_support import build_here, notes, settings, write_jsonl
from tests.tokenizer_files import copy_wrapping
from tests.tokenizer_reference import ReferenceTokenizer
from tokenlake import load_config
from tokenlake.base import file_id
from tokenlake.cli.app import main
from tokenlake.config.resolve import resolve
from tokenlake.errors import BadRecordError, ConfigError, NotAvailableError
from tokenlake.etl import make_plan
from tokenlake.etl.tokenizers import train_bpe


@pytest.fixture(scope="module")
def other_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another small tokenizer, with a vocabulary of its own."""
    folder = tmp_path_factory.mktemp("other")
    for name, data in train_bpe(
        [__doc__ or "", *(row["text"] for row in notes(99))], vocab_size=300
    ).files.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def config(tmp_path: Path, tokenizer_dir: Path, other_dir: Path) -> dict[str, Any]:
    write_jsonl(tmp_path / "a.jsonl", notes(20))
    write_jsonl(tmp_path / "b.jsonl", notes(20, 20))
    made = settings(tmp_path, tokenizer_dir, tmp_path / "a.jsonl")
    made["datasets"].append(
        {
            "name": "t",
            "data_files": str(tmp_path / "b.jsonl"),
            "tokenizer": str(other_dir),
        }
    )
    return made


def ids(folder: Path, text: str) -> list[int]:
    return ReferenceTokenizer.of_folder(folder, literal=True).encode(text).ids


def test_unpacked_rows_have_the_ids_of_their_sources_tokenizer(
    config, tokenizer_dir, other_dir, capsys
):
    built = build_here(config)
    of_file = {
        file_id("s", "a.jsonl"): tokenizer_dir,
        file_id("t", "b.jsonl"): other_dir,
    }
    texts = [row["text"] for row in notes(40)]
    assert [row["input_ids"] for row in built.rows()] == [
        ids(of_file[row["file"]], text)
        for row, text in zip(built.rows(), texts, strict=True)
    ]
    assert len(list((built.folder / "tokenizer").iterdir())) == 2
    assert (
        built.manifest.tokenizer["s"]["files"] != built.manifest.tokenizer["t"]["files"]
    )
    store = config["save"]["output_dir"]
    assert (
        main(["peek", "set", "-n", "2", "--row", "19", "--json", "--store", store]) == 0
    )
    shown = json.loads(capsys.readouterr().out)
    assert [row["segments"][0]["text"] for row in shown] == texts[19:21]


def test_packed_rows_of_different_tokenizers_are_an_error(config):
    config["pack"] = {"enabled": True, "seq_length": 32}
    with pytest.raises(
        ConfigError,
        match=r"datasets\.t\.tokenizer: .* differs from the tokenizer .* need one tokenizer",
    ):
        make_plan(resolve(load_config(config)))
    config["datasets"][1]["tokenizer"] = config["default_tokenizer"]
    assert build_here(config).manifest.account.documents == 40


def test_packed_rows_of_one_tokenizer_under_two_names_are_none(
    config, tokenizer_dir, tmp_path
):
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in tokenizer_dir.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    config["pack"] = {"enabled": True, "seq_length": 32}
    config["datasets"][1]["tokenizer"] = str(copy)
    assert build_here(config).manifest.account.documents == 40


def test_one_tokenizer_may_put_eos_in_one_source_and_leave_it_to_packing_in_another(
    config, tokenizer_dir, tmp_path
):
    folder = copy_wrapping(tokenizer_dir, tmp_path / "closing", after=["<|endoftext|>"])
    eos = ReferenceTokenizer.of_folder(folder).token_id("<|endoftext|>")
    config["pack"] = {"enabled": True, "seq_length": 32}
    for dataset, special in zip(config["datasets"], (True, False), strict=True):
        dataset["tokenizer"] = {
            "name_or_path": str(folder),
            "add_special_tokens": special,
        }
    planned = make_plan(resolve(load_config(config))).tokenizers
    assert (planned["s"].append_eos, planned["t"].append_eos) == (False, True)
    built = build_here(config)
    accounts = built.manifest.accounts
    assert (accounts["s"].eos, accounts["s"].eos_existing) == (20, 20)
    assert (accounts["t"].eos, accounts["t"].eos_existing) == (20, 0)
    flat = [token for row in built.rows() for token in row["input_ids"]]
    assert flat.count(eos) == 40 + built.manifest.account.pad


def test_the_nearest_tokenizer_and_limit_are_used(config, tokenizer_dir, other_dir):
    """Dataset before stage before pipeline; a tokenizer's own limit before the
    stage's.
    """
    config["default_tokenizer"] = "nobody/needs-this"
    config["tokenize"] = {"default_tokenizer": str(tokenizer_dir), "max_length": 9}
    config["datasets"][1]["tokenizer"] = {
        "name_or_path": str(other_dir),
        "max_length": 5,
    }
    built = build_here(config)
    texts = [row["text"] for row in notes(40)]
    found = [row["input_ids"] for row in built.rows()]
    assert found[:20] == [ids(tokenizer_dir, text)[:9] for text in texts[:20]]
    assert found[20:] == [ids(other_dir, text)[:5] for text in texts[20:]]
    assert {len(row) for row in found[20:]} == {5}
    dropped = {
        name: account.dropped["truncated"]
        for name, account in built.manifest.accounts.items()
    }
    assert dropped["t"] == sum(
        max(0, len(ids(other_dir, text)) - 5) for text in texts[20:]
    )
    assert dropped["s"] > 0


def test_long_documents_and_special_tokens_are_each_sources_own(
    config, tmp_path, tokenizer_dir
):
    rows = [{"text": "end <|endoftext|> of it"}, {"text": "a much longer text, " * 9}]
    for name in "ab":
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    config["tokenize"] = {"max_length": 20}
    first, second = config["datasets"]
    second["tokenizer"] = config["default_tokenizer"]
    second |= {"special_tokens_in_text": "encode", "long_documents": "drop"}
    first["long_documents"] = "keep"
    built = build_here(config)
    found = [row["input_ids"] for row in built.rows()]
    eos = ReferenceTokenizer.of_folder(tokenizer_dir).token_id("<|endoftext|>")
    assert [eos in row for row in found] == [False, False, True]
    assert [len(row) > 20 for row in found] == [False, True, False]
    assert built.manifest.accounts["t"].filtered
    assert not built.manifest.accounts["s"].filtered
    first["special_tokens_in_text"] = "fail"
    with pytest.raises(BadRecordError, match="special_token_in_text"):
        build_here(config)


def test_further_options_of_a_tokenizer_are_the_one_that_holds_anyway(config):
    config["datasets"][0]["tokenizer_kwargs"] = {"use_fast": True}
    config["datasets"][1]["tokenizer_kwargs"] = {"use_fast": False, "revision": "main"}
    with pytest.raises(
        NotAvailableError,
        match=r"datasets\.t\.tokenizer_kwargs: a mapping with 'use_fast', 'revision'",
    ):
        resolve(load_config(config))
    config["datasets"][1]["tokenizer_kwargs"] = {"revision": "main"}
    with pytest.raises(
        NotAvailableError,
        match=r"'revision' is not available in a build; instead: .*\(use_fast: true\)",
    ):
        resolve(load_config(config))
    config["datasets"][1]["tokenizer_kwargs"] = {}
    assert build_here(config).manifest.account.documents == 40
