"""Builds of the same texts by a fast engine and by the reference."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tests.builds import config_of
from tests.tokenizers import tokenizer_samples as samples
from tokenlake.etl import build_dataset
from tokenlake.etl.tokenizers import TokenizerFiles


def check_same_bytes(engine: str, tokenizer: TokenizerFiles, folder: Path) -> None:
    """Check that a build by an engine has the Parquet files of a build by the
    reference, byte for byte.

    Args:
        engine: Name of the engine.
        tokenizer: Tokenizer of both builds.
        folder: Empty folder for the builds.
    """
    saved = samples.save(tokenizer, folder / "tokenizer")
    texts = folder / "in.jsonl"
    texts.write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in samples.training_texts())
    )
    hashes: dict[str, dict[str, str]] = {}
    for name in (engine, "tokenizers"):
        config = config_of(folder / name, texts, saved, pack=128) | {
            "tokenize": {"tokenizer_backend": name}
        }
        version = Path(build_dataset(config, workers=1).path)
        hashes[name] = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in version.glob("data/*.parquet")
        }
        (record,) = (
            json.loads(path.read_text()) for path in version.glob("ledger/*.json")
        )
        assert record["engine"] == name
    assert hashes[engine] == hashes["tokenizers"] != {}
