"""Command line of the programs that encode JSON Lines."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments of a program.

    Attributes:
        input: Folder of .jsonl files.
        tokenizer: Folder of the tokenizer.
        eos: End-of-sequence token.
        output: Empty folder for the output.
        workers: Number of worker processes.
        id_bytes: Bytes per id in raw output: 2 if all ids of the vocabulary fit,
            otherwise 4.
    """

    input: Path
    tokenizer: Path
    eos: str
    output: Path
    workers: int
    id_bytes: int

    @property
    def files(self) -> list[Path]:
        """Input files, in order."""
        return sorted(self.input.glob("*.jsonl"))


def parse() -> Arguments:
    """Parse ``INPUT TOKENIZER EOS OUTPUT WORKERS ID_BYTES``."""
    parser = argparse.ArgumentParser()
    for name in ("input", "tokenizer", "eos", "output", "workers", "id_bytes"):
        parser.add_argument(name)
    arguments = parser.parse_args()
    return Arguments(
        input=Path(arguments.input),
        tokenizer=Path(arguments.tokenizer),
        eos=arguments.eos,
        output=Path(arguments.output),
        workers=int(arguments.workers),
        id_bytes=int(arguments.id_bytes),
    )
