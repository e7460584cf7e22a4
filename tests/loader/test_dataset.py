"""A version, opened: rows by number, names and places that it may be asked for by."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tokenlake as tl
from tests.loader.support import LENGTH
from tests.tokenizers.tokenizer_samples import sentencepiece
from tokenlake.errors import ConfigError, NotFoundError, StoreError


def test_rows_by_number_are_the_stored_ones(ds: tl.Dataset):
    stored = np.array(ds.read(0, len(ds))["input_ids"].to_pylist(), np.int32)
    assert (ds[:]["input_ids"] == stored).all()
    assert (ds[3]["input_ids"] == stored[3]).all()
    assert (ds[-1]["input_ids"] == stored[-1]).all()
    assert (ds[10:2:-3]["input_ids"] == stored[10:2:-3]).all()
    some = np.array([5, 5, 0, len(ds) - 1])
    assert (ds.take(some, ["input_ids"])["input_ids"] == stored[some]).all()
    assert (
        set(ds[0])
        == set(ds.columns)
        == {"input_ids", "segment_ids", "positions", "loss_mask"}
    )
    assert ds[4:4]["positions"].shape == (0, LENGTH)
    with pytest.raises(
        IndexError, match=f"has {len(ds)} rows; there is no row {len(ds)}"
    ):
        ds[len(ds)]
    with pytest.raises(ConfigError, match="has rows 0 to"):
        ds.take([len(ds)])


def test_segments_say_what_they_are_and_where_they_come_from(ds: tl.Dataset):
    row = ds[7]
    documents, texts = ds.documents(7), ds.decode(7)
    assert [
        int((row["segment_ids"] == n + 1).sum()) for n in range(len(documents))
    ] == [document["length"] for document in documents]
    assert len(texts) == len(documents) > 1
    assert all(document["path"] == "notes.jsonl" for document in documents)
    whole = ds.tokenizer.decode(row["input_ids"].tolist(), skip_special_tokens=False)
    assert whole.startswith(texts[0])


def test_the_size_of_the_vocabulary_needs_no_tokenizer(
    ds: tl.Dataset, monkeypatch: pytest.MonkeyPatch
):
    size = 1 + max(json.loads(sentencepiece().json_bytes)["model"]["vocab"].values())
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert ds.vocab_size == size


def test_vocabularies_of_different_sizes_have_no_common_size(
    ds: tl.Dataset, monkeypatch: pytest.MonkeyPatch
):
    sizes = {"a": {"vocab_size": 300}, "b": {"vocab_size": 400}}
    monkeypatch.setattr(type(ds), "manifest", replace(ds.manifest, tokenizer=sizes))
    with pytest.raises(
        ConfigError, match=r"vocabularies of different sizes \(a 300, b 400\)"
    ):
        _ = ds.vocab_size
    monkeypatch.setattr(type(ds), "manifest", replace(ds.manifest, tokenizer={}))
    with pytest.raises(
        NotFoundError, match="does not record the size of its vocabulary"
    ):
        _ = ds.vocab_size


def test_a_dataset_says_what_it_is(ds: tl.Dataset):
    assert repr(ds) == f"Dataset(plain@v1/train: {len(ds)} rows x {LENGTH}, packed)"
    assert ds.schema == ds.rows.read(0).schema
    assert ds.seq_length == LENGTH
    assert ds.name == "plain@v1/train"


def test_kinds_without_one_length_give_what_is_stored(texts: tl.Dataset):
    assert texts[3]["input_ids"] == texts.read(3, 4).to_pylist()[0]["input_ids"]
    assert texts.decode(3)[0].strip()
    with pytest.raises(
        ConfigError,
        match=r"kind tokens, which has no rows of one length; pack it first: .*texts@v1",
    ):
        texts[0:2]


def test_the_many_ways_to_name_a_version(
    ds: tl.Dataset, monkeypatch: pytest.MonkeyPatch
):
    root = Path(ds.store.url)
    monkeypatch.chdir(root)
    for where, name in (
        (f"{root}/plain", None),
        (f"{root}/plain@v1", None),
        (f"{root}/plain@1", None),
        (f"{root}/plain/v1", None),
        (f"{root}/plain/v1/", None),
        (root / "plain", None),
        (root, "plain"),
        (str(root), "plain@v1"),
        ("plain", None),
        (f"file://{root}/plain", None),
    ):
        assert tl.open(where, name, split="train").name == "plain@v1/train"
    assert tl.open(root, "plain", split="validation").split == "validation"
    assert tl.open(root, "plain").split == "train"


def test_what_is_not_there_is_said_with_what_is(ds: tl.Dataset, tmp_path: Path):
    root = ds.store.url
    for where, error, message in (
        (f"{root}/plian", NotFoundError, "did you mean plain"),
        (f"{root}/plain@v7", NotFoundError, "v7"),
        (f"{root}/Plain!", StoreError, "Plain!"),
        (
            str(tmp_path / "none" / "plain"),
            NotFoundError,
            f"{tmp_path} has no folder 'none'$",
        ),
        (
            f"{root}s/plain",
            NotFoundError,
            f"there is no store {root}s: .*; did you mean .*{root}",
        ),
        (
            root,
            NotFoundError,
            rf"{root} is a store, not a dataset; it has .*plain.*tl\.open\('{root}/",
        ),
        (f"{root}/", NotFoundError, "is a store, not a dataset"),
        (f"file://{root}", NotFoundError, "is a store, not a dataset"),
    ):
        with pytest.raises(error, match=message):
            tl.open(where)
    with pytest.raises(
        ConfigError, match="has no split 'test'; expected one of train, validation"
    ):
        tl.open(root, "plain", split="test")
    other = tmp_path / "store"
    shutil.copytree(f"{root}/plain/v1", other / "plain" / "v1")
    manifest = other / "plain" / "v1" / "manifest.json"
    manifest.chmod(0o644)
    manifest.write_bytes(manifest.read_bytes().replace(b'"train"', b'"brain"', 1))
    with pytest.raises(tl.TokenlakeError):
        tl.open(other, "plain")


def test_opening_reads_the_manifest_alone(ds: tl.Dataset, tmp_path: Path):
    shutil.copytree(ds.store.url, tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "plain" / "v1" / "data")
    opened = tl.open(tmp_path / "store", "plain", split="train")
    assert len(opened) == len(ds)
    assert (
        tl.DataLoader(opened, 8)
        .plan.rows([tl.DataLoader(opened, 8).plan.batch(3)], np.arange)[0]
        .row.size
        == 8
    )


def test_a_trainer_needs_no_package_of_the_build_side(ds: tl.Dataset):
    script = (
        "import sys, tokenlake as tl\n"
        f"ds = tl.open({ds.store.url!r}, 'plain', split='train')\n"
        "print(sum(batch['input_ids'].shape[0] for batch in tl.DataLoader(ds, 8)) == len(ds))\n"
        "heavy = {'prefect', 'transformers', 'tokenizers', 'gigatoken', 'awkward', 'polars', 'duckdb', 'pydantic',\n"
        "         'yaml', 'jax', 'torch', 'grain', 'datasets', 'pandas', 'orjson', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    env = os.environ | {"PYTHONPATH": str(Path(tl.__file__).parents[1])}
    out = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=env,
    )
    assert out.stdout.split() == ["True", "[]"]
