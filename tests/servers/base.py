"""What the servers have in common: a thread, a port of their own, a log, and faults on demand."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

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
    """What goes wrong with one answer.

    Attributes:
        status: answered instead.
        after: bytes of the body after which the connection is cut.
        wait: seconds before anything is answered.
        applies: to which requests.
    """

    status: int | None = None
    after: int | None = None
    wait: float = 0.0
    applies: Callable[[Request], bool] = field(default=lambda request: request.method == "GET")


def large(request: Request) -> bool:
    """Say whether a request is for more than 200 kB, which no look at the head of a file is."""
    span = request.range
    return request.method == "GET" and span is not None and span[1] - span[0] > 200_000


class _Listener(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what went wrong, unless a client was killed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Server:
    """A server in a thread. `handler` answers; `log` and `faults` are for tests."""

    handler: type[Handler]

    def __init__(self) -> None:
        self.log: list[Request] = []
        self.faults: deque[Fault] = deque()
        self.lock = threading.RLock()
        handler = type(
            "Handler", (self.handler,), {"owner": self, **dict.fromkeys(_METHODS, self.handler.serve)}
        )
        self._server = _Listener(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)

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
    disable_nagle_algorithm = True  # or a body waits for the acknowledgement of its headers: 40 ms a request
    owner: Any

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing; the log is for tests."""

    def serve(self) -> None:
        """Answer a request of any method."""
        raise NotImplementedError

    def begin(self) -> Fault | None:
        """Return the fault of this request; None with `close_connection` set where it is answered already."""
        headers = {key.lower(): value for key, value in self.headers.items()}
        fault = self.owner.fault(Request(self.command, self.path, headers))
        if fault is not None and fault.wait:
            threading.Event().wait(fault.wait)
        return fault

    def answer(
        self, status: int, headers: dict[str, str], body: bytes = b"", fault: Fault | None = None
    ) -> None:
        """Send an answer, broken as `fault` says."""
        if fault is not None and fault.status is not None:
            status, headers, body = fault.status, {}, b""
        try:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            if fault is not None and fault.after is not None:
                self.wfile.write(body[: fault.after])
                self.wfile.flush()
                self.close_connection = True
                self.connection.close()
            else:
                self.wfile.write(body)
        except (ConnectionError, ValueError):
            self.close_connection = True

    def span(self, size: int) -> tuple[int, int] | None:
        """Return the half-open range asked for, None for the whole."""
        text = self.headers.get("Range", "")
        if not text:
            return None
        first, _, last = text.removeprefix("bytes=").partition("-")
        return int(first), min(int(last) + 1 if last else size, size)
