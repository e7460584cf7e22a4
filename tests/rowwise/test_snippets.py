"""The snippets on pre-tokenizing run as they are printed, with the import renamed
and a tokenizer of the tests.
"""

from __future__ import annotations

import json
import textwrap
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.rowwise.pipeline_support import printed
from tests.seeds import promise
from tests.tokenizers.tokenizer_samples import sentencepiece
from tokenlake import pretokenize
from tokenlake.rowwise import JsonShardedSource, TokenizedShardedSource

HUB_ID = "meta-llama/Llama-2-7b"

PRINTED = printed("pretokenization.md")


ROWS = [{"text": f"text number {i} of the snippets"} for i in range(25)]


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    files = sentencepiece().files
    settings = json.loads(files["tokenizer_config.json"]) | {
        "unk_token": "<unk>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer.json").write_bytes(files["tokenizer.json"])
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(folder)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: str) -> Path:
    """A working directory with data/*.jsonl and tokenized/*.parquet."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in ROWS)
    )
    pretokenize(ROWS, tokenizer, "./tokenized", num_shards=2, naming="shard_{index}")
    return tmp_path


def run(snippet: str, tokenizer: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(textwrap.dedent(snippet).replace(HUB_ID, tokenizer), names)
    return names


@promise(163, 188)
def test_quick_start(here: Path, tokenizer: str):
    names = run(PRINTED["quick_start"], tokenizer)
    rows = list(names["source"])
    assert len(rows) == len(ROWS)
    assert set(rows[0]) == {"input_ids", "attention_mask"}
    assert rows == list(run(PRINTED["manual_iteration"], tokenizer)["source"])


@promise(190, 191)
def test_check_format(here: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("pandas")
    names = run(PRINTED["check_format"], tokenizer)
    assert names["table"].num_rows == 12
    printed = capsys.readouterr().out
    assert "int32" in printed
    assert "attention_mask" in printed


@promise(192)
def test_decode_and_verify(
    here: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]
):
    run(PRINTED["decode_and_verify"], tokenizer)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(
        f"text number {i} of the snippets" in line for i, line in enumerate(lines)
    )


@promise(196)
def test_validate(here: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]):
    run(PRINTED["validate"], tokenizer)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "shard_0.parquet: OK (10+ examples)",
        "shard_1.parquet: OK (10+ examples)",
    ]


@pytest.mark.corpora
def test_with_real_text_and_the_real_tokenizer(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hub = shared_data / "hf" / "hub"
    (folder,) = (hub / "models--meta-llama--Llama-2-7b-chat-hf" / "snapshots").iterdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(shared_data / "corpora")
    snippet = PRINTED["quick_start"].replace("data/*.jsonl", "data/math-chat.jsonl.gz")
    rows = list(run(snippet, str(folder))["source"])
    assert len(rows) > 3000
    # BOS, once at the beginning.
    assert all(row["input_ids"][0] == 1 != row["input_ids"][1] for row in rows)
    source = TokenizedShardedSource(
        JsonShardedSource("data/math-chat.jsonl.gz"), str(folder)
    )
    assert [row["input_ids"] for row in islice(source, 500)] == [
        row["input_ids"] for row in rows[:500]
    ]
    assert all(
        len(row["attention_mask"])
        == len(row["input_ids"])
        == sum(row["attention_mask"])
        for row in rows
    )
