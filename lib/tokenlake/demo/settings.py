"""A first dataset without downloading anything: corpus, tokenizer and configuration of the demo.

``python -m tokenlake.demo`` is what `make demo` runs, everything below `.demo/`; the flows use these functions when
they are given no data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from tokenlake.config.load import load_config
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.demo.corpus import write_corpus
from tokenlake.tokenizers.reference import train_bpe

VOCABULARY: Final = 8192
_SAMPLE_BYTES: Final = 6_000_000
_SAMPLE_PER_TEXT: Final = 20_000

Report = Callable[[str], None]


def _quiet(line: str) -> None:
    """Report nothing."""


def ensure_corpus(directory: str | os.PathLike[str], report: Report = _quiet) -> dict[str, Path]:
    """Write the demo's corpus below ``directory`` unless it is there.

    Returns:
        The folder of each source: ``code`` (text files), ``prose`` (JSONL with zstd, and Parquet).
    """
    return write_corpus(Path(directory).resolve() / "corpus", report)


def ensure_tokenizer(
    directory: str | os.PathLike[str], corpus: Mapping[str, Path], report: Report = _quiet
) -> Path:
    """Train a byte-level BPE of 8,192 ids on a sample of ``corpus`` unless ``directory`` has one.

    Returns:
        The tokenizer's folder.
    """
    folder = Path(directory).resolve() / "tokenizer"
    if (folder / "tokenizer.json").is_file():
        return folder
    report(f"training a byte-level BPE of {VOCABULARY:,} ids")
    trained = train_bpe(_sample(corpus), VOCABULARY, name="demo")
    folder.mkdir(parents=True, exist_ok=True)
    # tokenizer.json last: its presence says that the folder is whole
    for name, data in sorted(trained.files.items(), key=lambda item: item[0] == "tokenizer.json"):
        partial = folder / f"{name}.partial"
        partial.write_bytes(data)
        partial.replace(folder / name)
    return folder


def demo_config(directory: str | os.PathLike[str], report: Report = _quiet) -> PipelineConfig:
    """Return the demo's configuration, with corpus and tokenizer made where they are missing."""
    return load_config(demo_settings(directory, report))


def demo_settings(
    directory: str | os.PathLike[str], report: Report = _quiet, *, trained: bool = True
) -> dict[str, Any]:
    """Return what :func:`demo_config` loads, as a person would write it in YAML.

    Args:
        trained: with a tokenizer of its own, which takes some seconds to train.
    """
    root = Path(directory).resolve()
    corpus = ensure_corpus(root, report)
    tokenizer = {"default_tokenizer": str(ensure_tokenizer(root, corpus, report))} if trained else {}
    return {
        "name": "demo",
        "datasets": [
            {"name": "code", "data_files": str(corpus["code"] / "**" / "*.py"), "type": "txt"},
            {"name": "prose", "data_files": str(corpus["prose"])},
        ],
        **tokenizer,
        # small units: the demo is small, and there should be something to watch and to resume
        "source": {"unit_size": "2MiB", "splits": {"train": 0.98, "validation": 0.02}},
        "pack": {"enabled": True, "seq_length": 1024},
        "save": {"output_dir": str(root / "artifacts")},
    }


def _sample(corpus: Mapping[str, Path]) -> Iterator[str]:
    """Beginnings of texts, an equal share of bytes from each source, spread over all of it."""
    for texts in (_code(corpus["code"]), _prose(corpus["prose"])):
        share = _SAMPLE_BYTES // 2
        total = sum(min(len(text), _SAMPLE_PER_TEXT) for text in texts)
        step = max(1, round(total / share))
        for text in texts[::step]:
            yield text[:_SAMPLE_PER_TEXT]


def _code(folder: Path) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))]


def _prose(folder: Path) -> list[str]:
    texts: list[str] = []
    for path in sorted(folder.glob("*.parquet")):
        texts += map(str, pq.read_table(path, columns=["text"])["text"].to_pylist())
    return texts
