"""A web server of files in memory, as good or as bad as a test wants it."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from urllib.parse import unquote, urlsplit

from tests.servers.base import Handler, Server


class _Files(Handler):
    owner: HttpServer

    def serve(self) -> None:
        fault = self.begin()
        owner, parts = self.owner, urlsplit(self.path)
        data = owner.files.get(unquote(parts.path).lstrip("/"))
        if self.command == "HEAD" and not owner.head:
            self.answer(405, {}, b"", fault)
        elif owner.secret and owner.secret not in (
            self.headers.get("Authorization"),
            parts.query,
        ):
            self.answer(403, {}, b"", fault)
        elif data is None:
            self.answer(404, {}, b"", fault)
        elif (etag := self.headers.get("If-Match")) and etag != _etag(data):
            self.answer(412, {}, b"", fault)
        else:
            self._send(data, fault)

    def _send(self, data: bytes, fault: object) -> None:
        headers = {
            "etag": {"ETag": _etag(data)},
            "modified": {"Last-Modified": self.owner.modified},
        }
        given = headers.get(self.owner.validator, {})
        span = self.span(len(data)) if self.owner.ranges else None
        if span is None:
            stated = self.owner.sizes.get(
                unquote(urlsplit(self.path).path).lstrip("/"), len(data)
            )
            size = {"Content-Length": str(stated)} if self.command == "HEAD" else {}
            self.answer(200, {**given, **size}, data, fault)  # type: ignore[arg-type]
        elif span[0] >= len(data):
            self.answer(416, {"Content-Range": f"bytes */{len(data)}"}, b"", fault)  # type: ignore[arg-type]
        else:
            given["Content-Range"] = f"bytes {span[0]}-{span[1] - 1}/{len(data)}"
            self.answer(206, given, data[slice(*span)], fault)  # type: ignore[arg-type]


class HttpServer(Server):
    """Files by path.

    Attributes:
        ranges, head: whether range requests and HEAD are understood.
        validator: ``etag``, ``modified`` or "" for neither.
        sizes: what HEAD says of files that it does not tell the truth about, in bytes.
        secret: an Authorization header or a query without which everything is refused,
            "" for none.
    """

    handler = _Files

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        super().__init__()
        self.files = files or {}
        self.sizes: dict[str, int] = {}
        self.ranges, self.head, self.validator, self.secret = True, True, "etag", ""
        self.modified = "Wed, 21 Oct 2026 07:28:00 GMT"


@lru_cache(maxsize=8)  # of 100 MB it would cost more than sending them
def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


class _Elsewhere(Handler):
    owner: RedirectingServer

    def serve(self) -> None:
        self.answer(302, {"Location": self.owner.target}, b"", self.begin())


class RedirectingServer(Server):
    """Has nothing of its own, and sends everybody to `target`."""

    handler = _Elsewhere

    def __init__(self) -> None:
        super().__init__()
        self.target = ""
