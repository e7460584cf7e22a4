"""An HTTP server on loopback for a folder of pages.

::

    with serve_folder(Path("site"), port=8765) as url:
        print(url)  # http://127.0.0.1:8765/

A page that was opened from another site must not read a report through this server:

- It listens on 127.0.0.1 alone.
- It answers a request only if the `Host` header names this machine, so that a foreign
  name that resolves to 127.0.0.1 (DNS rebinding) gets no data.
- It sends files below the folder, after links are resolved. It lists no folders, and
  sends no hidden files.
"""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, final
from urllib.parse import unquote, urlsplit

from tokenlake.errors import ConfigError, NotFoundError

LOOPBACK: Final = "127.0.0.1"
"""Address of the server."""

# Types of the files that pages consist of. With `nosniff` a browser runs a script and
# applies a style sheet only if their types are right.
_CONTENT_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_IDLE_SECONDS: Final = 30  # after which a connection without a request is closed


@contextmanager
def serve_folder(path: Path, port: int = 0) -> Generator[str]:
    """Serve the files of a folder until the context ends, and return its URL.

    Args:
        path: Folder. A URL of a folder gives its ``index.html``.
        port: TCP port, 0 to 65535. Default: 0, a free port.

    Raises:
        NotFoundError: The folder does not exist.
        ConfigError: The port is in use, or may not be used.
    """
    if not path.is_dir():
        raise NotFoundError(f"{path}: there is no such folder to serve", file=str(path))
    server = _listen(path.resolve(), port)
    thread = threading.Thread(
        target=server.serve_forever, name="tokenlake-pages", daemon=True
    )
    thread.start()
    # The socket listens already: the URL works from the moment in which it is printed.
    try:
        yield f"http://{LOOPBACK}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listen(folder: Path, port: int) -> _PageServer:
    """Return a server that listens on a port.

    Raises:
        ConfigError: The port is in use, or may not be used.
    """
    try:
        return _PageServer((LOOPBACK, port), partial(_PageHandler, folder))
    # The socket checks the range of a port itself, with an error of its own.
    except OverflowError as error:
        raise ConfigError(
            f"--port {port}: expected a number from 0 to 65535", option="port"
        ) from error
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        reason = "is in use by another program"
        if error.errno == errno.EACCES:
            reason = "needs the rights of an administrator"
        raise ConfigError(
            f"--port {port}: the port {reason}. Use another one, or `--port 0` for a free one.",
            option="port",
        ) from error


@final
class _PageServer(ThreadingHTTPServer):
    """A server that ignores connections that a browser closes early.

    Its threads do not keep the program alive: Ctrl-C ends it while a browser still
    holds a connection open.
    """

    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections that a browser closed before it had everything."""


@final
class _PageHandler(BaseHTTPRequestHandler):
    """Handler that answers GET and HEAD; every other method is 501.

    Args:
        folder: Folder, with all links resolved.
        *arguments: Arguments of the base class: connection, address of the client,
            server.
    """

    # The header `Server` names neither Python nor its release.
    server_version = "tokenlake"
    sys_version = ""
    timeout = _IDLE_SECONDS

    def __init__(self, folder: Path, *arguments: Any) -> None:
        self._folder = folder
        super().__init__(*arguments)  # answers the request

    def do_GET(self) -> None:
        """Send a file."""
        self._answer(has_body=True)

    def do_HEAD(self) -> None:
        """Send the headers of a file."""
        self._answer(has_body=False)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: requests are no news to whoever opened the page."""

    def _answer(self, *, has_body: bool) -> None:
        """Send the requested file, or an error."""
        # A foreign host name that resolves to this machine (DNS rebinding) is refused
        # before any file is looked at.
        if not self._is_for_this_machine():
            self.send_error(
                HTTPStatus.FORBIDDEN, f"The host must be {LOOPBACK} or localhost"
            )
            return
        file_path = self._requested_file()
        if file_path is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            file = file_path.open("rb")
        except OSError:
            self.send_error(HTTPStatus.NOT_FOUND)
            return

        # The headers forbid all use by other sites: as a script or image, and as an
        # address in a request to them.
        with file:
            content_type = _CONTENT_TYPES.get(
                file_path.suffix, "application/octet-stream"
            )
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(file_path.stat().st_size))
            # Pages change when the report is written again.
            self.send_header("Cache-Control", "no-cache")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Cross-Origin-Resource-Policy", "same-origin")
            self.send_header("Referrer-Policy", "no-referrer")
            self.end_headers()
            if has_body:
                shutil.copyfileobj(file, self.wfile)

    def _is_for_this_machine(self) -> bool:
        """Return True if the request names this server, by a name of this machine."""
        port = self.connection.getsockname()[1]
        host = self.headers.get("Host", "").lower()
        return host in (f"{LOOPBACK}:{port}", f"localhost:{port}")

    def _requested_file(self) -> Path | None:
        """Return the path of the requested file; None if the folder has none."""
        # A URL of a folder stands for its index page, as on any server.
        url_path = unquote(urlsplit(self.path).path).lstrip("/")
        if url_path == "" or url_path.endswith("/"):
            url_path += "index.html"
        # Hidden files are never part of a report: editors and version control put them
        # beside it.
        if any(name.startswith(".") for name in url_path.split("/")):
            return None
        # Links are resolved before the comparison, so that neither `..` nor a link
        # leads out of the folder.
        try:
            file_path = (self._folder / url_path).resolve()
            is_file = file_path.is_file()
        # A name that is too long, or with a null character.
        except (OSError, ValueError):
            return None
        if not is_file or not file_path.is_relative_to(self._folder):
            return None
        return file_path
