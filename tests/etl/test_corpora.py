"""Conservation on real text: what is packed is what the reference gives, and one EOS
per document.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.tokenizer_reference import ReferenceTokenizer
from tokenlake.etl import build_dataset

# Snapshot, and BOS tokens of a document.
SNAPSHOTS = {
    "gpt2": ("models--openai-community--gpt2", 0),
    "llama2": ("models--meta-llama--Llama-2-7b-hf", 1),
}
ROWS = 150  # 2.5 MB: the reference takes its time


@pytest.mark.corpora
@pytest.mark.parametrize("name", SNAPSHOTS)
def test_non_padding_tokens_are_the_references_and_one_eos_per_document(
    name, shared_data, tmp_path
):
    """Technical documents."""
    folder, bos = SNAPSHOTS[name]
    (tokenizer,) = (shared_data / "hf" / "hub" / folder / "snapshots").iterdir()
    file = min((shared_data / "corpora").glob("text-*.parquet"))
    config = {
        "name": "real",
        "datasets": [
            {
                "name": "text",
                "data_files": str(file),
                "tokenizer": str(tokenizer),
                "num_rows": ROWS,
            }
        ],
        "source": {"unit_size": "1MiB"},
        "pack": {"enabled": True, "seq_length": 2048},
        "save": {"output_dir": str(tmp_path)},
    }
    result = build_dataset(config, workers=2)
    expected = _reference_ids(tokenizer, file)
    account = result.manifest.account
    assert account.documents == len(expected) == ROWS
    assert account.content_packed == sum(map(len, expected))
    assert (
        account.content_packed + account.eos + account.bos
        == result.manifest.totals.tokens
    )
    assert (account.eos, account.bos) == (ROWS, ROWS * bos)
    assert (
        _packed_ids(result.path, result.manifest.tokenizer["text"]["pad_id"], bos)
        == expected
    )


def _reference_ids(tokenizer: Path, file: Path) -> list[list[int]]:
    backend = ReferenceTokenizer.of_folder(tokenizer, literal=True)
    texts = pq.read_table(file, columns=["text"])["text"].slice(0, ROWS).to_pylist()
    return [
        found.ids for found in backend.encode_batch(texts, add_special_tokens=False)
    ]


def _packed_ids(path: str, pad: int, bos: int) -> list[list[int]]:
    """All documents in the order of the version, put together from their pieces, BOS
    and EOS taken off.
    """
    manifest = json.loads((Path(path) / "manifest.json").read_text())
    documents: list[list[np.ndarray]] = []
    for entry in manifest["files"]:
        table = pq.read_table(
            Path(path) / entry["path"], page_checksum_verification=True
        )
        for row in table.to_batches():
            ids = row["input_ids"].flatten().to_numpy().reshape(len(row), -1)
            lengths, pieces = (
                row["segment_lengths"].to_pylist(),
                row["documents"].to_pylist(),
            )
            for tokens, sizes, origins in zip(ids, lengths, pieces, strict=True):
                assert (tokens[sum(sizes) :] == pad).all()
                for part, origin in zip(
                    np.split(tokens, np.cumsum(sizes)), origins, strict=False
                ):
                    if origin["start"] == 0:
                        documents.append([])
                    documents[-1].append(part)
    return [np.concatenate(parts)[bos:-1].tolist() for parts in documents]
