"""``tokenlake completion``: what makes a shell complete commands, options and the names of datasets."""

from __future__ import annotations

import sys
from typing import Literal

from rich.text import Text

from tokenlake.cli.parser import importable
from tokenlake.reports.terminal import stdout


def completion(shell: Literal["bash", "zsh", "fish"], /, *, install: bool = False) -> int:
    """Print what completes commands, options and names of datasets in a shell, or install it.

    For this shell alone: `source <(tokenlake completion bash)`, or `tokenlake completion fish | source`. For good:
    `tokenlake completion bash --install`, which writes a file and, for bash and zsh, a line that reads it at the end of
    .bashrc or .zshrc.

    Args:
        shell: Which shell.
        install: Write the file instead of printing it.
    """
    app = importable()
    if not install:
        sys.stdout.write(app.generate_completion(shell=shell))
        return 0
    path = app.install_completion(shell=shell)
    stdout().print(Text(f"{path} is written; a new {shell} completes tokenlake"))
    return 0
