"""Pages that a command serves to browsers of this machine until Ctrl-C."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, TypeAlias
from urllib.parse import quote

from cyclopts import Parameter, validators

from tokenlake.cli.console import note
from tokenlake.etl.reports import serve_folder
from tokenlake.etl.reports.terminal import stdout

DEFAULT_PORT: Final = 8765
"""Port of the server, if the user names none."""

Port: TypeAlias = Annotated[
    int,
    Parameter(
        metavar="PORT",
        help=f"Port of --serve; 0 for a free one. Default: {DEFAULT_PORT}.",
        validator=validators.Number(gte=0, lte=65_535),
    ),
]


def serve_until_interrupt(folder: Path, port: int, page: str = "") -> int:
    """Serve a folder on loopback, print the URL of a page, and wait for Ctrl-C.

    Args:
        folder: Folder to serve.
        port: Port, or 0 for a free one.
        page: Name of the page in the folder. Default: its ``index.html``.

    Returns:
        Exit code: 0, because Ctrl-C is the usual end.
    """
    # A browser may be faster than this thread: Ctrl-C is the usual end from the first
    # moment on.
    with suppress(KeyboardInterrupt), serve_folder(folder, port) as url:
        # The URL is the last output: whoever has read it may press Ctrl-C at once.
        note("Ctrl-C ends the server")
        stdout().print(f"{url}{quote(page)}", soft_wrap=True)
        # The server is a thread: this one waits for the interrupt.
        threading.Event().wait()
    return 0
