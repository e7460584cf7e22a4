"""What the servers have in common: a thread, a port of their own, a log, and faults
on demand.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote

_METHODS = ("do_GET", "do_HEAD", "do_PUT", "do_POST", "do_DELETE")


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the server saw it."""

    method: str
    path: str
    headers: dict[str, str]

    @property
    def range(self) -> tuple[int, int] | None:
        """First and last byte asked for."""
        text = self.headers.get("range", "")
        first, _, last = text.removeprefix("bytes=").partition("-")
        return (int(first), int(last)) if text else None


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one request, once. They stand in :attr:`Server.faults`, and
    the first one waits for a request that it applies to.

    A request that writes (PUT, POST, DELETE) and is to be answered with `status`, or not at all (`drop`), does
    nothing on the server, unless `commits`::

        Fault(status=503, code="SlowDown", applies=writes)       slow down; nothing was written
        Fault(drop=True, applies=writes)                         the connection is cut before anything was written
        Fault(drop=True, commits=True, applies=writes)           written, and the answer is lost
        Fault(status=500, commits=True, applies=writes)          written, and the answer says it was not
        Fault(flip=True, applies=writes)                         a bit of the body flips on the way up
        Fault(short=True, applies=writes)                        half of the body gets there
        Fault(flip=True), Fault(short=True), Fault(after=100)    what is read: flipped, short but clean, truncated

    Attributes:
        status: answered instead.
        code: what `status` is called in the body of the answer, such as ``SlowDown``
            (S3 and GCS).
        after: bytes of the answer's body after which the connection is cut.
        meanwhile: done, whole, after the request came and before the server looks at
            it.
        wait: seconds before anything is answered.
        drop: the connection is cut instead of an answer.
        commits: what was asked for is done before `status` or `drop`.
        flip: one bit is another one: in the middle of the request's body, or of the
            answer's where it has none.
        short: as `flip`, with the second half missing and a Content-Length that agrees.
        applies: to which requests.
    """

    status: int | None = None
    after: int | None = None
    meanwhile: Callable[[], object] = field(default=lambda: None)
    wait: float = 0.0
    applies: Callable[[Request], bool] = field(
        default=lambda request: request.method == "GET"
    )
    code: str = ""
    drop: bool = False
    commits: bool = False
    flip: bool = False
    short: bool = False

    @property
    def refuses(self) -> bool:
        """Whether a request that writes is to do nothing."""
        return (self.status is not None or self.drop) and not self.commits

    def damaged(self, body: bytes) -> bytes:
        """Return a body as it comes out at the other end."""
        if self.flip and body:
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 0x10]) + body[middle + 1 :]
        return body[: len(body) // 2] if self.short else body


def writes(request: Request) -> bool:
    """Say whether a request changes something: all but GET and HEAD."""
    return request.method not in ("GET", "HEAD")


def large(request: Request) -> bool:
    """Say whether a request is for more than 200 kB, which no look at the head of a
    file is.
    """
    span = request.range
    return request.method == "GET" and span is not None and span[1] - span[0] > 200_000


class _Listener(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what went wrong, unless a client was killed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Server:
    """A server in a thread. `handler` answers; `log` and `faults` are for tests.

    Attributes:
        repeats: an answer that refuses says what was asked for, unquoted.
    """

    handler: type[Handler]

    def __init__(self) -> None:
        self.log: list[Request] = []
        self.repeats = False
        self.faults: deque[Fault] = deque()
        self.lock = threading.RLock()
        handler = type(
            "Handler",
            (self.handler,),
            {"owner": self, **dict.fromkeys(_METHODS, self.handler.serve)},
        )
        self._server = _Listener(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=120)

    def fault(self, request: Request) -> Fault | None:
        """Log a request; return what goes wrong with it, once."""
        with self.lock:
            self.log.append(request)
            if self.faults and self.faults[0].applies(request):
                return self.faults.popleft()
        return None

    def requests(self, method: str, part: str = "") -> list[Request]:
        """Return the logged requests of a method whose path has `part`."""
        return [one for one in self.log if one.method == method and part in one.path]


class Handler(BaseHTTPRequestHandler):
    """Logs, applies faults, and sends bodies."""

    protocol_version = "HTTP/1.1"
    # Or a body waits for the acknowledgement of its headers: 40 ms a request.
    disable_nagle_algorithm = True
    owner: Any

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing; the log is for tests."""

    def serve(self) -> None:
        """Answer a request of any method."""
        raise NotImplementedError

    def begin(self) -> Fault | None:
        """Return the fault of this request; None with `close_connection` set where
        it is answered already.
        """
        headers = {key.lower(): value for key, value in self.headers.items()}
        fault = self.owner.fault(Request(self.command, self.path, headers))
        if fault is not None:
            fault.meanwhile()
            threading.Event().wait(fault.wait)
        return fault

    def named(self, status: int, code: str) -> bytes:
        """Return the body of an answer that refuses, in the protocol's own form."""
        return b""

    def answer(
        self,
        status: int,
        headers: dict[str, str],
        body: bytes = b"",
        fault: Fault | None = None,
    ) -> None:
        """Send an answer, broken as `fault` says."""
        if fault is not None and fault.drop:
            self.cut()
            return
        if fault is not None and fault.status is not None:
            status, headers = fault.status, {}
            body = self.named(status, fault.code) if fault.code else b""
        elif fault is not None and not int(self.headers.get("Content-Length", 0)):
            body = fault.damaged(body)
        try:
            repeated = status >= 400 and self.owner.repeats
            self.send_response(status, unquote(self.path) if repeated else None)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            if fault is not None and fault.after is not None:
                self.wfile.write(body[: fault.after])
                self.wfile.flush()
                self.cut()
            else:
                self.wfile.write(body)
        except (ConnectionError, ValueError):
            self.close_connection = True

    def body(self, fault: Fault | None) -> bytes:
        """Return the body of the request as it arrives."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return body if fault is None else fault.damaged(body)

    def cut(self) -> None:
        """Close the connection."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def span(self, size: int) -> tuple[int, int] | None:
        """Return the half-open range asked for, None for the whole."""
        text = self.headers.get("Range", "")
        if not text:
            return None
        first, _, last = text.removeprefix("bytes=").partition("-")
        return int(first), min(int(last) + 1 if last else size, size)
