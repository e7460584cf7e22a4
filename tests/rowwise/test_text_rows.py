"""Text files as rows, by every way to read them; and what truncation leaves out of
rows of tokens.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tokenlake as tl
from tests.etl.outputs_support import build_here
from tests.rowwise.pipeline_support import write_jsonl, written
from tests.seeds import promise
from tests.tokenizers.tokenizer_samples import sentencepiece
from tokenlake.easydel import FilesShardedSource

LINES = [f"line {number} of the text" for number in range(50)]
DATA = "\ufeff" + "\n\n".join(LINES[:20]) + "\r\n" + "\n".join(LINES[20:])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(sentencepiece(), tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "texts"
    place.mkdir()
    (place / "a.txt").write_bytes(DATA.encode())
    (place / "b.txt.gz").write_bytes(gzip.compress(DATA.encode()))
    return place


def texts(rows: Any) -> list[str]:
    return [next(iter(row.values())) for row in rows]


SOURCES: dict[str, Callable[[str, dict[str, Any]], Any]] = {
    "TextShardedSource": lambda files, options: tl.TextShardedSource(files, **options),
    "FilesShardedSource": lambda files, options: (
        FilesShardedSource(files)
        if not options
        else tl.create_source({"data_files": files, **options})
    ),
    "create_source": lambda files, options: tl.create_source(
        {"data_files": files, **options}
    ),
    "create_source, type": lambda files, options: tl.create_source(
        tl.DatasetConfig(data_files=files, type="txt", content_field="line", **options)
    ),
    "Pipeline": lambda files, options: (
        tl.create_pipeline([{"data_files": files, **options}]).source().build()
    ),
    "Pipeline, type": lambda files, options: (
        tl.Pipeline.from_config(
            tl.PipelineConfig(
                datasets=[tl.DatasetConfig(data_files=files, type="txt", **options)]
            )
        )
        .source()
        .build()
    ),
}


@promise(26)
@pytest.mark.parametrize("road", SOURCES)
def test_each_line_of_a_text_file_that_is_not_empty_is_a_row(
    folder: Path, road: str
) -> None:
    assert texts(SOURCES[road](f"{folder}/*", {})) == LINES * 2
    assert texts(SOURCES[road](f"{folder}/a.txt", {"text_mode": "lines"})) == LINES
    (document,) = texts(SOURCES[road](f"{folder}/a.txt", {"text_mode": "document"}))
    assert document.startswith(LINES[0]) and document.endswith(LINES[-1])


@promise(26)
def test_texts_of_a_mixture_are_lines_too(folder: Path) -> None:
    inform = tl.TextDatasetInform(data_files=f"{folder}/a.txt", content_field="text")
    mixture = tl.DatasetMixture(informs=[inform], streaming=False)
    assert sorted(texts(tl.build_dataset(mixture))) == sorted(LINES)


@promise(26)
@pytest.mark.parametrize("road", ["pipeline", "tokenize_and_save", "pretokenize"])
def test_each_line_of_a_text_file_is_tokenized_by_itself(
    folder: Path, tokenizer: str, tmp_path: Path, road: str
) -> None:
    expected = list(
        tl.batched_tokenize_iterator([{"text": line} for line in LINES], tokenizer)
    )
    files, out = f"{folder}/a.txt", tmp_path / "out"
    if road == "pipeline":
        made = (
            tl.create_pipeline([{"data_files": files}], default_tokenizer=tokenizer)
            .source()
            .tokenize()
        )
        rows = list(made.build())
    else:
        write = tl.tokenize_and_save if road == "tokenize_and_save" else tl.pretokenize
        stats = write(files, tokenizer, out, "jsonl")
        assert (stats.num_examples, stats.num_cut, stats.num_dropped_tokens) == (
            50,
            0,
            0,
        )
        rows = list(tl.JsonShardedSource(stats.output_paths))
    assert [list(row["input_ids"]) for row in rows] == [
        row["input_ids"] for row in expected
    ]


def test_a_kept_row_is_of_the_mode_it_was_made_in(
    folder: Path, tokenizer: str, tmp_path: Path
) -> None:
    """The mode is part of the name by which tokens are found again."""
    counts: list[int] = []
    for mode in ({}, {"text_mode": "document"}, {"text_mode": "lines"}):
        dataset = {
            "data_files": f"{folder}/a.txt",
            "cache_path": str(tmp_path / "kept"),
            **mode,
        }
        made = (
            tl.create_pipeline([dataset], default_tokenizer=tokenizer)
            .source()
            .tokenize()
        )
        counts.append(len(list(made.build())))
    assert counts == [50, 1, 50]


def test_a_build_takes_a_file_for_one_document_unless_it_is_asked_for_lines(
    folder: Path, tokenizer: str, tmp_path: Path
) -> None:
    config = {
        "default_tokenizer": tokenizer,
        "datasets": [{"data_files": f"{folder}/a.txt", "name": "a"}],
        "save": {"output_dir": str(tmp_path / "store")},
    }
    assert build_here(config | {"name": "documents"}).manifest.totals.documents == 1
    config["datasets"][0]["text_mode"] = "lines"
    assert build_here(config | {"name": "lines"}).manifest.totals.documents == 50


def long_rows(tmp_path: Path) -> str:
    """Two rows of one word, and one that is much longer than both."""
    return str(
        write_jsonl(
            tmp_path / "rows.jsonl",
            [{"text": "a"}, {"text": "b " * 300}, {"text": "c"}],
        )
    )


@pytest.mark.parametrize(
    "road", ["source", "iterator", "pipeline", "pretokenize", "tokenize_and_save"]
)
def test_truncation_that_cuts_more_than_it_keeps_says_how_much(
    tokenizer: str, tmp_path: Path, road: str
) -> None:
    config = tl.TokenizerConfig(name_or_path=tokenizer, max_length=20)
    files, out = long_rows(tmp_path), tmp_path / "out"
    whole = sum(
        len(row["input_ids"])
        for row in tl.TokenizedShardedSource(tl.JsonShardedSource(files), tokenizer)
    )
    told = r"[0-9]+ of [0-9]+ tokens were left out, .* 1 of 3 documents are longer than max_length \(20\)"
    with pytest.warns(RuntimeWarning, match=told):
        if road == "source":
            source = tl.TokenizedShardedSource(tl.JsonShardedSource(files), config)
            rows = list(source)
            assert source.truncated.dropped == whole - sum(
                len(row["input_ids"]) for row in rows
            )
            assert (source.truncated.cut, source.truncated.documents) == (1, 3)
        elif road == "iterator":
            list(tl.batched_tokenize_iterator(tl.JsonShardedSource(files), config))
        elif road == "pipeline":
            list(
                tl.create_pipeline([{"data_files": files, "tokenizer": config}])
                .source()
                .tokenize()
                .build()
            )
        else:
            given = (
                files if road == "tokenize_and_save" else tl.JsonShardedSource(files)
            )
            stats = (
                tl.tokenize_and_save if road == "tokenize_and_save" else tl.pretokenize
            )(given, config, out)
            kept = sum(
                len(row["input_ids"])
                for row in tl.ParquetShardedSource(stats.output_paths)
            )
            assert (stats.num_cut, stats.num_dropped_tokens) == (1, whole - kept)


def test_truncation_that_keeps_most_is_counted_and_no_warning(
    tokenizer: str, tmp_path: Path
) -> None:
    rows = [{"text": "word " * 20} for _ in range(9)] + [{"text": "word " * 40}]
    config = tl.TokenizerConfig(name_or_path=tokenizer, max_length=30)
    source = tl.TokenizedShardedSource(
        tl.JsonShardedSource(write_jsonl(tmp_path / "rows.jsonl", rows)), config
    )
    assert len(list(source)) == 10
    assert source.truncated.cut == 1 and 0 < source.truncated.dropped < 50


def test_long_documents_that_are_left_out_whole_are_told_too(
    tokenizer: str, tmp_path: Path
) -> None:
    dataset = {"data_files": long_rows(tmp_path), "long_documents": "drop"}
    config = tl.TokenizerConfig(name_or_path=tokenizer, max_length=20)
    with pytest.warns(RuntimeWarning, match="1 of 3 documents are longer"):
        made = (
            tl.create_pipeline([dataset], default_tokenizer=config).source().tokenize()
        )
        assert len(list(made.build())) == 2
