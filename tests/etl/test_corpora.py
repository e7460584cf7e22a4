"""Conservation on real text: what is packed is what the reference gives, and one EOS per document."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from tokenlake.etl.runner import build_dataset

# Snapshot, BOS tokens of a document, files of 6 MB each (the reference takes its time), and documents in them.
SNAPSHOTS = {
    "gpt2": ("models--openai-community--gpt2", 0, 2, 709),
    "llama2": ("models--meta-llama--Llama-2-7b-hf", 1, 1, 354),
}


@pytest.mark.corpora
@pytest.mark.parametrize("name", SNAPSHOTS)
def test_non_padding_tokens_are_the_references_and_one_eos_per_document(name, shared_data, tmp_path):
    """Technical documents."""
    folder, bos, many, documents = SNAPSHOTS[name]
    (tokenizer,) = (shared_data / "hf" / "hub" / folder / "snapshots").iterdir()
    files = sorted((shared_data / "corpora").glob("text-*.parquet"))[:many]
    config = {
        "name": "real",
        "datasets": [
            {"name": "text", "data_files": [str(file) for file in files], "tokenizer": str(tokenizer)}
        ],
        "source": {"unit_size": "4MiB"},
        "pack": {"enabled": True, "seq_length": 2048},
        "save": {"output_dir": str(tmp_path)},
    }
    result = build_dataset(config, workers=2)
    expected = _reference_ids(tokenizer, files)
    account = result.manifest.account
    assert account.documents == len(expected) == documents
    assert account.content_packed == sum(map(len, expected))
    assert account.content_packed + account.eos + account.bos == result.manifest.totals.tokens
    assert (account.eos, account.bos) == (documents, documents * bos)
    assert _packed_ids(result.path, result.manifest.tokenizer["text"]["pad_id"], bos) == expected


def _reference_ids(tokenizer: Path, files: list[Path]) -> list[list[int]]:
    backend = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    backend.encode_special_tokens = True
    texts = [text for file in files for text in pq.read_table(file, columns=["text"])["text"].to_pylist()]
    return [found.ids for found in backend.encode_batch_fast(texts, add_special_tokens=False)]


def _packed_ids(path: str, pad: int, bos: int) -> list[list[int]]:
    """All documents in the order of the version, put together from their pieces, BOS and EOS taken off."""
    manifest = json.loads((Path(path) / "manifest.json").read_text())
    documents: list[list[np.ndarray]] = []
    for entry in manifest["files"]:
        table = pq.read_table(Path(path) / entry["path"], page_checksum_verification=True)
        for row in table.to_batches():
            ids = row["input_ids"].flatten().to_numpy().reshape(len(row), -1)
            lengths, pieces = row["segment_lengths"].to_pylist(), row["documents"].to_pylist()
            for tokens, sizes, origins in zip(ids, lengths, pieces, strict=True):
                assert (tokens[sum(sizes) :] == pad).all()
                for part, origin in zip(np.split(tokens, np.cumsum(sizes)), origins, strict=False):
                    if origin["start"] == 0:
                        documents.append([])
                    documents[-1].append(part)
    return [np.concatenate(parts)[bos:-1].tolist() for parts in documents]
