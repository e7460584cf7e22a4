"""Record a build that is interrupted and resumed: ``python -m docs.recording``.

The dataset consists of modules and documents of Python's standard library.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from docs.recording.film import Frame, paced, svg_of
from docs.recording.screen import Screen
from docs.recording.session import Session
from tokenlake.demo import ensure_corpus
from tokenlake.etl.tokenizers import train_bpe

TARGET: Final = Path(__file__).parents[1] / "recording.svg"
"""File that is written."""

COLUMNS: Final = 100
ROWS: Final = 26
"""Size of the terminal, in characters."""

CONFIGURATION: Final = """\
datasets:
  - {name: code, data_files: corpus/code/**/*.py, type: txt, text_mode: document}
  - {name: prose, data_files: corpus/prose}
default_tokenizer: tokenizer
source: {unit_size: 1MB, splits: {train: 0.95, validation: 0.05}}
pack: {enabled: true, seq_length: 2048}
"""
"""Configuration of the build, ``library.yaml``."""

COMMANDS: Final = (
    ("run library.yaml --no-prefect --workers 1", r"[2-9] of \d+ units"),
    ("run library.yaml --no-prefect --workers 1", ""),
    ("verify library --deep", ""),
    ("ls", ""),
)
"""Arguments of each command, and a pattern of the output at which Ctrl-C is pressed.

The pattern is empty if the command ends by itself.
"""

TITLE: Final = (
    "A build that is interrupted by Ctrl-C, resumed by the same command, and verified"
)


def main() -> None:
    """Record the commands, and write the film."""
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name).resolve()
        prepare(folder)
        frames = record(folder)
    paced_frames = paced(frames, least=0.12, most=1.5)
    TARGET.write_text(svg_of(paced_frames, COLUMNS, ROWS, TITLE), "utf-8")


def prepare(folder: Path) -> None:
    """Write the texts, a tokenizer and the configuration of the build.

    Args:
        folder: Empty folder.
    """
    code_folder = ensure_corpus(folder)["code"]
    modules = sorted(code_folder.rglob("*.py"))[:200]
    texts = [path.read_text() for path in modules]
    tokenizer_folder = folder / "tokenizer"
    tokenizer_folder.mkdir()
    for name, contents in train_bpe(texts, vocab_size=8192).files.items():
        (tokenizer_folder / name).write_bytes(contents)
    (folder / "library.yaml").write_text(CONFIGURATION)


def record(folder: Path) -> list[Frame]:
    """Run the commands, and return a frame of the screen after each output.

    Args:
        folder: Folder in which the commands run.
    """
    screen = Screen(COLUMNS, ROWS)
    session = Session(folder, COLUMNS, ROWS)
    frames: list[Frame] = []
    for arguments, interrupt_at in COMMANDS:
        for output in session.run(arguments.split(), interrupt_at=interrupt_at):
            screen.write(output.text)
            frames.append(Frame(output.time, screen.rows_shown()))
    return frames


if __name__ == "__main__":
    main()
