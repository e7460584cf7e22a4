"""The command line that all programs here share."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Arguments:
    """Read `input` (folder of .jsonl), encode with `tokenizer` (folder), write below
    `output` (empty).
    """

    input: Path
    tokenizer: Path
    eos: str
    output: Path
    workers: int
    id_bytes: int
    """Bytes of an id in raw output: 2 where all ids of the vocabulary fit, else 4."""

    @property
    def files(self) -> list[Path]:
        """The input files, in order."""
        return sorted(self.input.glob("*.jsonl"))


def parse() -> Arguments:
    """From sys.argv: INPUT TOKENIZER EOS OUTPUT WORKERS ID_BYTES."""
    parser = argparse.ArgumentParser()
    for name in ("input", "tokenizer", "eos", "output", "workers", "id_bytes"):
        parser.add_argument(name)
    given = parser.parse_args()
    return Arguments(
        Path(given.input),
        Path(given.tokenizer),
        given.eos,
        Path(given.output),
        int(given.workers),
        int(given.id_bytes),
    )
