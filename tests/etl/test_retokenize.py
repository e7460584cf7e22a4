"""Mixtures of versions with different tokenizers: the text of each is tokenized
again, if it is what it was.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.etl.outputs_support import (
    Built,
    Config,
    build_here,
    kill_after_a_unit,
    notes,
    settings,
    tree,
    write_jsonl,
)
from tests.tokenizers.tokenizer_samples import byte_level, save, sentencepiece
from tokenlake import Catalog, load_config, repair
from tokenlake.errors import ConfigError
from tokenlake.etl import build_dataset, planner
from tokenlake.runtime.store import open_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with ``code-tokens`` by one tokenizer, some of it held out, and
    ``web-tokens`` by another.
    """
    bytes_, blanks = (
        save(byte_level(), tmp_path / "bytes"),
        save(sentencepiece(), tmp_path / "blanks"),
    )
    for name in "ab":
        write_jsonl(tmp_path / "code" / f"{name}.jsonl", notes(80, ord(name) * 100))
    write_jsonl(tmp_path / "web.jsonl", notes(50, 9000))
    source = {"splits": {"train": 0.9, "test": 0.1}, "unit_size": 3000}
    build_here(_code(tmp_path, bytes_) | {"name": "code-tokens", "source": source})
    build_here(
        settings(tmp_path, blanks, tmp_path / "web.jsonl") | {"name": "web-tokens"}
    )
    return tmp_path / "store"


def _code(root: Path, tokenizer: Path) -> Config:
    code = settings(root, tokenizer, root / "code", eval=12, where="id % 3 <> 0")
    code["datasets"][0]["name"] = "python"
    return code


def mixture(store: Path, **code: Any) -> Config:
    return {
        "name": "mix",
        "datasets": [
            {"name": "code", "dataset": "code-tokens", "retokenize": True, **code},
            {"name": "web", "dataset": "web-tokens@v1"},
        ],
        "default_tokenizer": str(store.parent / "blanks"),
        "mix": {"stop_strategy": "all_exhausted"},
        "pack": {"enabled": True, "seq_length": 32},
        "save": {"output_dir": str(store)},
    }


def version(store: Path, name: str, number: int = 1) -> Built:
    manifest = Catalog(open_store(str(store))).manifest(name, number)
    return Built(store / name / f"v{number}", manifest)


def rows(built: Built, split: str) -> list[dict[str, Any]]:
    table = built.table(split)
    keys: Any = [("file", "ascending"), ("position", "ascending")]
    return (
        pa.Table.select(table, ["input_ids", "file", "position"])
        .sort_by(keys)
        .to_pylist()
    )


def test_text_is_tokenized_again_as_if_it_had_been_from_the_first(store: Path) -> None:
    with pytest.raises(ConfigError, match="has another tokenizer"):
        planner.plan(mixture(store, retokenize=False))
    # What was added since is left alone.
    write_jsonl(store.parent / "code" / "c.jsonl", notes(30, 4000))
    made = build_dataset(mixture(store), workers=2)
    assert build_dataset(mixture(store), workers=2).status == "exists"
    again, parent = version(store, "mix.code.tokens"), version(store, "code-tokens")
    mixed = Built(Path(made.path), made.manifest)

    (store.parent / "code" / "c.jsonl").unlink()
    direct = _code(store.parent, store.parent / "blanks")
    direct |= {"name": "direct", "tokenize": {"long_documents": "keep"}}
    direct["source"] = {"splits": {"train": 0.9, "test": 0.1}, "unit_size": 3000}
    expected = build_here(direct)
    splits = {"train", "test", "eval_python"}
    assert set(again.manifest.splits) == splits == set(parent.manifest.splits)
    for split in splits:
        assert rows(again, split) == rows(expected, split)
        same = [
            [(row["file"], row["position"]) for row in rows(each, split)]
            for each in (again, parent)
        ]
        assert same[0] == same[1]
    # The same units, so the same bytes.
    assert again.manifest.fingerprint == expected.manifest.fingerprint

    # Both are in the lineage: the version that is taken, and the inputs that were read.
    assert [f"{p.dataset}@v{p.version}" for p in again.manifest.parents] == [
        "code-tokens@v1"
    ]
    assert again.manifest.parents[0].sha256 == parent.manifest.sha256
    assert again.manifest.inputs == parent.manifest.inputs
    names = [f"{p.dataset}@v{p.version}" for p in mixed.manifest.parents]
    assert names == ["mix.code.tokens@v1", "web-tokens@v1"]
    held = {(row["file"], row["position"]) for row in rows(again, "eval_python")}
    pieces = {
        (p["file"], p["position"]) for row in mixed.rows() for p in row["documents"]
    }
    assert len(held) == 12 and pieces and not pieces & held


def test_the_same_after_a_kill_and_after_a_repair(store: Path) -> None:
    asked: dict[str, Any] = {
        **mixture(store),
        "mix": {},
        "pack": {"enabled": False},
        "name": "again",
    }
    asked["datasets"] = asked["datasets"][:1]
    kill_after_a_unit(asked, store / "again" / "v1")
    built = build_here(asked)
    other = build_here(asked | {"name": "other"})
    assert tree(built.folder / "data") == tree(other.folder / "data")
    shard = built.files()[0]
    whole = shard.read_bytes()
    shard.chmod(0o644)
    shard.write_bytes(whole[:-9])
    shutil.rmtree(store / "other")
    assert repair(str(store), "again@v1", workers=1).ok and shard.read_bytes() == whole
    # A version that was tokenized again can be, too.
    asked["datasets"] = [{"name": "code", "dataset": "again@v1", "retokenize": True}]
    asked |= {
        "name": "third",
        "default_tokenizer": str(store.parent / "bytes"),
        "tokenize": {"long_documents": "keep"},
    }
    third = build_here(asked)
    assert rows(third, "eval_python") == rows(
        version(store, "code-tokens"), "eval_python"
    )
    assert [each.dataset for each in third.manifest.parents] == ["again"]


def test_what_is_no_text_is_refused(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = mixture(store) | {"name": "packed", "mix": {}}
    packed["datasets"] = [{"name": "web", "dataset": "web-tokens@v1"}]
    build_here(packed)
    for changes, message in (
        (
            {"dataset": "packed@v1"},
            "packed@v1 was made of web-tokens@v1, and not of text",
        ),
        ({"dataset": "nothing"}, "datasets.code.dataset: .*nothing"),
        ({"where": "true"}, "got where beside dataset"),
    ):
        with pytest.raises(ConfigError, match=message):
            build_dataset(mixture(store, **changes), workers=1)
    with pytest.raises(ConfigError, match="got retokenize without dataset"):
        load_config({"datasets": [{"data_files": "x.jsonl", "retokenize": True}]})
    with pytest.raises(
        ConfigError, match=r"datasets.code.retokenize: true, but there is no tokenizer"
    ):
        planner.plan({**mixture(store), "default_tokenizer": None})


def test_what_is_gone_or_changed_is_told(store: Path) -> None:
    def refused(message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            planner.plan(asked)

    code = store.parent / "code"
    asked: Config = {**mixture(store), "mix": {}}
    asked["datasets"] = asked["datasets"][:1]
    asked["pack"] = {"enabled": False}
    write_jsonl(code / "a.jsonl", notes(3))
    refused(
        r"datasets.code.retokenize: the text of code-tokens@v1 has changed: a.jsonl of python is \d+ bytes"
    )
    (code / "a.jsonl").unlink()
    refused(r"has changed: a.jsonl of python is gone; expected")
    shutil.rmtree(code)
    refused(r"has changed: .*code.*Restore it; or build code-tokens")
    shutil.rmtree(store / "code-tokens" / "v1" / "runs")
    refused(r"no run of it recorded one; write data_files in place of dataset")
