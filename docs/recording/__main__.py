"""``python -m docs.recording``: build a dataset of Python's own modules, press
Ctrl-C, resume, and write the film.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from docs.recording.film import Frame, svg_of, thinned
from docs.recording.screen import Screen
from docs.recording.session import Session
from tokenlake.demo import ensure_corpus
from tokenlake.etl.tokenizers import train_bpe

TARGET: Final = Path(__file__).parents[1] / "recording.svg"
COLUMNS: Final = 100
ROWS: Final = 26
CONFIGURATION: Final = """\
datasets:
  - {name: code, data_files: corpus/code/**/*.py, type: txt, text_mode: document}
  - {name: prose, data_files: corpus/prose}
default_tokenizer: tokenizer
source: {unit_size: 1MB, splits: {train: 0.95, validation: 0.05}}
pack: {enabled: true, seq_length: 2048}
"""
COMMANDS: Final = (
    ("run library.yaml --no-prefect --workers 1", r"[2-9] of \d+ units"),
    ("run library.yaml --no-prefect --workers 1", ""),
    ("verify library --deep", ""),
    ("ls", ""),
)
"""Arguments of each command, and the progress at which Ctrl-C is pressed."""

TITLE: Final = (
    "A build that is interrupted by Ctrl-C, resumed by the same command, and verified"
)


def main() -> None:
    """Record the session."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        corpus = ensure_corpus(folder)["code"]
        texts = [path.read_text() for path in sorted(corpus.rglob("*.py"))[:200]]
        (folder / "tokenizer").mkdir()
        for file_name, contents in train_bpe(texts, vocab_size=8192).files.items():
            (folder / "tokenizer" / file_name).write_bytes(contents)
        (folder / "library.yaml").write_text(CONFIGURATION)
        screen = Screen(COLUMNS, ROWS)
        session = Session(folder, COLUMNS, ROWS)
        frames: list[Frame] = []
        for arguments, interrupt_at in COMMANDS:
            for output in session.run(arguments.split(), interrupt_at=interrupt_at):
                screen.write(output.text)
                frames.append(Frame(output.time, screen.shown()))
    TARGET.write_text(
        svg_of(thinned(frames, least=0.12, most=1.5), COLUMNS, ROWS, TITLE), "utf-8"
    )


if __name__ == "__main__":
    main()
