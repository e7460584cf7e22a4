"""A version's tables and card, from an account and a manifest made by hand."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tests.lazily import lazily
from tests.store.support import shared_store
from tokenlake import Catalog, Manifest
from tokenlake.base import file_id
from tokenlake.base.markup import code_span, one_line
from tokenlake.etl.reports import (
    dataset,
    equations,
    remarks,
    render_card,
    sources_table,
)
from tokenlake.runtime.store import Account, InputFileEntry, ShardEntry, open_store

datasets: Any = lazily("datasets")

ACCOUNT = Account(
    rows_read=13,
    filtered={"empty": 1, "excluded": 2},
    quarantined={"null_text": 1, "invalid_utf8": 0},
    normalized={"crlf": 4},
    kept=9,
    documents=9,
    tokens=1_000,
    content_packed=990,
    dropped={"truncated": 10},
    eos=9,
    pad=25,
    sequences=8,
    slots=1_024,
    special_tokens_in_text=3,
    text_bytes=4_000,
)


def _shard(split: str, unit: int) -> ShardEntry:
    return ShardEntry(
        path=f"data/{split}-{unit:05d}-00.parquet",
        split=split,
        unit=unit,
        part=0,
        bytes=700,
        sha256="ab" * 32,
        rows=4,
        tokens=499,
        documents=5,
        row_groups=(0,),
        logical={},
    )


def _manifest(*splits: str) -> Manifest:
    path = "a|b.txt"
    entry = InputFileEntry(
        source="s",
        path=path,
        size=5,
        token="sha256:" + "0" * 64,
        file_id=file_id("s", path),
    )
    return Manifest(
        kind="packed",
        dataset="demo",
        version=3,
        fingerprint="cd" * 32,
        seq_length=128,
        config={},
        tokenizer={
            "s": {
                "name": "gpt2",
                "vocab_size": 50257,
                "eos_id": 0,
                "files": {"tokenizer.json": "ef" * 32},
            }
        },
        files=tuple(_shard(split, unit) for unit, split in enumerate(splits)),
        other_files={},
        inputs=(entry,),
        accounts={"s": ACCOUNT},
        produced_by={"tokenlake": "0.1.0", "pyarrow": "26.0"},
    )


def _header(card: str) -> dict:
    _, header, _ = card.split("---\n", 2)
    return yaml.safe_load(header)


def test_equations_close_before_the_readers_eyes() -> None:
    assert dict(equations(ACCOUNT, 128)) == {
        "rows read": "13 = 9 kept + 3 filtered (1 empty, 2 excluded) + 1 quarantined (null_text)",
        "documents": "9 = 9 kept",
        "tokens": "1,000 = 990 written + 10 dropped (truncated)",
        "places in rows": "1,024 = 8 x 128 = 990 content + 9 EOS + 25 padding",
    }
    assert dict(equations(Account(), 0)) == {
        "rows read": "0 = 0 kept",
        "documents": "0 = 0 kept",
        "tokens": "0 = 0 written",
    }
    assert remarks(Account()) == []
    assert remarks(ACCOUNT) == [
        "normalized on reading: 4 crlf",
        "special-token strings inside documents: 3",
    ]


def test_tables_of_a_manifest() -> None:
    manifest = _manifest("train", "validation")
    assert dict(dataset.headline(manifest).rows) == {
        "documents": "9",
        "tokens": "998 (9 EOS) from 3.91 KiB of text",
        "sequences": "8 x 128, 97.56% full",
        "stored": "1.37 KiB in 2 shards, 11.2 bits per token",
    }
    assert [row["split"] for row in dataset.splits_table(manifest).records()] == [
        "train",
        "validation",
    ]
    assert dataset.inputs_table(manifest).records() == [
        {"source": "s", "files": 1, "bytes": 5, "example": "a|b.txt"}
    ]
    assert sources_table(manifest.accounts).records()[0]["quarantined"] == 1
    assert dataset.tokenizers_table(manifest).records()[0]["name"] == "gpt2"
    assert (
        dict(dataset.lineage_table(manifest).rows)["produced by"]
        == "pyarrow 26.0, tokenlake 0.1.0"
    )


def test_the_cards_header_globs_each_split() -> None:
    assert render_card(_manifest("train")) == render_card(_manifest("train"))
    header = _header(render_card(_manifest("train", "validation", "no")))
    [config] = header["configs"]
    assert config["config_name"] == "default"
    assert config["data_files"] == [
        {"split": "no", "path": "data/no-*.parquet"},
        {"split": "train", "path": "data/train-*.parquet"},
        {"split": "validation", "path": "data/validation-*.parquet"},
    ]
    assert header["size_categories"] == ["n<1K"]


def test_a_split_whose_name_starts_another_is_listed_by_file() -> None:
    manifest = _manifest("train", "train-long", "train")
    [config] = _header(render_card(manifest))["configs"]
    for entry in config["data_files"]:
        paths = [entry["path"]] if isinstance(entry["path"], str) else entry["path"]
        found = {
            s.path
            for s in manifest.files
            for path in paths
            if fnmatch.fnmatch(s.path, path)
        }
        assert found == {s.path for s in manifest.files if s.split == entry["split"]}


HOSTILE = [
    "a`b",
    "``",
    "a\nb\n# head",
    "<script>alert(1)</script>",
    "x | y",
    "[here](javascript:alert(1))",
    "![](http://tracker/x.png)",
    "*bold*",
    "&lt;b&gt;",
    "\\",
    "---\nlicense: mit\n---",
    " ",
    "\x1b[2J\u2028\u202e",
    "\ud800",
]
_MARKUP = {
    "html_block",
    "html_inline",
    "link_open",
    "image",
    "em_open",
    "strong_open",
    "heading_open",
}


def _tokens(card: str) -> list[tuple[str, str]]:
    """What a reader of Markdown takes for markup in a card, and the code that it
    shows.
    """
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    text = card.split("\n---\n", 1)[1]  # behind the header of YAML
    inline = [
        token
        for block in parser.parse(text)
        for token in (block, *(block.children or ()))
    ]
    return [(token.type, token.content) for token in inline if token.type in _MARKUP]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_names_of_the_data_are_no_markup_in_a_card(text: str) -> None:
    """Names of kept fields, reasons of an account and names of tokenizers come from
    files and configurations.
    """
    plain = replace(_manifest("train"), kind="tokens", seq_length=None)

    def card(text: str) -> str:
        account = replace(ACCOUNT, normalized={text: 4}, filtered={"empty": 1, text: 2})
        tokenizer = {"s": {**plain.tokenizer["s"], "name": text}}
        config = {"build": {"kept": [[text, "string"]]}, "card": {"license": text}}
        changed = replace(
            plain, accounts={"s": account}, tokenizer=tokenizer, config=config
        )
        return render_card(changed)

    assert _tokens(card(text)) == _tokens(card("plain"))
    assert card(text).count("\n") == card("plain").count("\n")
    header = _header(card(text))
    if text.isprintable():
        assert header["license"] == text
    card(text).encode()


@given(st.text())
def test_a_code_span_shows_its_text_and_nothing_else(text: str) -> None:
    [block] = [
        token
        for token in MarkdownIt("commonmark").parse(code_span(text))
        if token.type == "inline"
    ]
    [span] = block.children or []
    assert span.type == "code_inline"
    assert span.content.strip() == one_line(text).strip()


def test_a_version_without_rows_and_one_of_tokens_have_cards() -> None:
    assert "configs" not in _header(render_card(_manifest()))
    card = render_card(replace(_manifest("train"), kind="tokens", seq_length=None))
    assert "slots" not in card
    assert "Tokenized documents" in card


def test_the_card_of_a_real_version_says_how_to_read_it(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    store = shared_store(tokenizer_dir)
    manifest = Catalog(open_store(store)).manifest("small", 2)
    folder = store / "small" / "v2"
    text = (folder / "README.md").read_text()
    text = text.replace("path/to/store", str(store)).replace(
        "path/to/this/folder", str(folder)
    )
    blocks = dict.fromkeys(("python", "sql", "sh"), "")
    for kind, block in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL):
        blocks[kind] += block
    assert duckdb.sql(blocks["sql"]).fetchall() == [(manifest.totals.rows,)]
    assert blocks["sh"] == "tokenlake peek small@v2 -n 3\ntokenlake verify small@v2\n"
    space: dict[str, Any] = {}
    exec(blocks["python"], space)
    assert all(
        len(next(iter(space[name]))["input_ids"]) == 8
        for name in ("for_jax", "for_torch")
    )
    assert (
        space["pl"].read_parquet(folder / "data/train-*.parquet").height
        == space["data"].rows.rows
    )
    assert space["rows"].collect().height == manifest.totals.rows
    loaded = datasets.load_dataset(str(folder))
    assert {name: rows.num_rows for name, rows in loaded.items()} == {
        name: totals.rows for name, totals in manifest.splits.items()
    }
