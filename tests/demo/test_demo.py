"""The demo's corpus, tokenizer and configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokenlake import demo, load_config
from tokenlake.config.resolve import resolve
from tokenlake.etl import make_plan


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo folder with a corpus that is smaller than a user's."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "PROSE_BYTES", 1_000_000)
        patch.setattr(demo, "VOCABULARY", 1024)
        patch.setattr(demo, "_SAMPLE_BYTES", 300_000)
        demo.demo_settings(folder)
    return folder


def test_the_corpus_is_real_text_of_two_kinds(root: Path) -> None:
    corpus = demo.ensure_corpus(root)
    modules = sorted(corpus["code"].rglob("*.py"))
    assert corpus["code"] / "json" / "decoder.py" in modules
    assert sum(path.stat().st_size for path in modules) > 5_000_000
    lines = (
        pa.CompressedInputStream(str(corpus["prose"] / "manuals.jsonl.zst"), "zstd")
        .read()
        .splitlines()
    )
    texts = [json.loads(line)["text"] for line in lines]
    texts += pq.read_table(corpus["prose"] / "docstrings.parquet")["text"].to_pylist()
    assert sum(map(len, texts)) >= 1_000_000
    assert len(set(texts)) == len(texts)
    assert min(map(len, texts)) >= 200


def test_what_is_there_is_not_made_again(root: Path) -> None:
    before = {
        path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()
    }
    said: list[str] = []
    demo.demo_settings(root, said.append)
    assert said == []
    assert {
        path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()
    } == before


def test_a_corpus_without_its_stamp_is_made_again(
    root: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(demo, "PROSE_BYTES", 0)
    monkeypatch.setattr(demo, "_modules", lambda folder: [Path(json.__file__)])
    (tmp_path / "corpus" / "prose").mkdir(parents=True)
    (tmp_path / "corpus" / "prose" / "half.jsonl").write_text('{"te')
    (tmp_path / "corpus" / "mine.txt").write_text("keep")
    demo.ensure_corpus(tmp_path)
    assert sorted(
        path.name for path in (tmp_path / "corpus").rglob("*") if path.is_file()
    ) == [
        "__init__.py",
        "corpus.json",
        "docstrings.parquet",
        "manuals.jsonl.zst",
        "mine.txt",
    ]
    first = (tmp_path / "corpus" / "prose" / "manuals.jsonl.zst").read_bytes()
    assert first == (root / "corpus" / "prose" / "manuals.jsonl.zst").read_bytes()


def test_the_tokenizer_is_trained_on_both_sources(root: Path) -> None:
    folder = demo.ensure_tokenizer(root, demo.ensure_corpus(root))
    assert sorted(path.name for path in folder.iterdir()) == [
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(vocabulary) == 1024
    assert {"Ġself", "Ġthe"} <= vocabulary.keys()


def test_no_tokenizer_is_trained_where_none_is_wanted(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "corpus").symlink_to(root / "corpus")
    assert "default_tokenizer" not in demo.demo_settings(tmp_path, trained=False)
    assert not (tmp_path / "tokenizer").exists()


def test_the_configuration_plans(root: Path) -> None:
    plan = make_plan(resolve(load_config(demo.demo_settings(root))))
    assert plan.build.name == "demo"
    assert Path(plan.build.store) == root / "artifacts"
    assert [source.name for source in plan.build.sources] == ["code", "prose"]
    assert len(plan.units) > 4
    assert {file.format for file in plan.inputs} == {"text", "jsonl", "parquet"}


def test_docstrings_keep_their_names(tmp_path: Path) -> None:
    module = tmp_path / "lake.py"
    module.write_text(
        '"""A lake."""\nclass Boat:\n    """Floats."""\n    def row(self):\n        """Moves."""\n'
    )
    assert (
        demo._docstrings(module, "lake")
        == "lake\n\nA lake.\n\nlake.Boat\n\nFloats.\n\nlake.Boat.row\n\nMoves."
    )
    module.write_text('"""broken')
    assert demo._docstrings(module, "lake") == ""


def test_the_tour_refuses_what_it_does_not_know(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert demo.main(["--fast"]) == 2
    assert "python -m tokenlake.demo" in capsys.readouterr().out
