"""A bucket on loopback that answers late: ``FOLDER MILLISECONDS``, where each folder in
FOLDER is a bucket.

It speaks as much of S3 as a reader asks: HEAD, GET with ranges, and listings of up to a
page. It prints its port and ends when its standard input does. ``GET /?requests`` says
how many requests there were, itself left out.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

_RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")
_DATE: Final = "Thu, 01 Jan 2026 00:00:00 GMT"


class Bucket(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    root = Path()
    seconds = 0.0
    asked = count()
    seen = 0

    def do_GET(self) -> None:
        """Answer with an object, a part of it, or a listing."""
        url = urlsplit(self.path)
        query = parse_qs(url.query, keep_blank_values=True)
        if "requests" in query:
            return self._answer(200, str(Bucket.seen).encode())
        Bucket.seen = next(Bucket.asked) + 1
        time.sleep(self.seconds)
        path = self.root / unquote(url.path).lstrip("/")
        if "list-type" in query:
            return self._answer(
                200, _listing(path, query["prefix"][0], query.get("delimiter", [""])[0])
            )
        if not path.is_file():
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        return self._object(path)

    do_HEAD = do_GET  # noqa: N815 (what the class of the standard library calls)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _object(self, path: Path) -> None:
        size = path.stat().st_size
        found = _RANGE.match(self.headers.get("Range", ""))
        begin = int(found[1]) if found else 0
        end = min(int(found[2] or size - 1) + 1 if found else size, size)
        with path.open("rb") as file:
            file.seek(begin)
            body = file.read(end - begin)
        span = {"Content-Range": f"bytes {begin}-{end - 1}/{size}"} if found else {}
        self._answer(
            206 if found else 200,
            body,
            {"ETag": _etag(path), "Last-Modified": _DATE, **span},
        )

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {
            **(headers or {}),
            "Content-Length": str(len(body)),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _etag(path: Path) -> str:
    return f'"{hashlib.md5(str(path).encode()).hexdigest()}"'


def _listing(bucket: Path, prefix: str, delimiter: str) -> bytes:
    files = sorted(
        str(path.relative_to(bucket)) for path in bucket.rglob("*") if path.is_file()
    )
    keys = [key for key in files if key.startswith(prefix)]
    inside = {
        key: key[len(prefix) :].partition(delimiter)[1] if delimiter else ""
        for key in keys
    }
    folders = {
        prefix + key[len(prefix) :].partition(delimiter)[0] + delimiter
        for key in keys
        if inside[key]
    }
    found = "".join(
        f"<Contents><Key>{key}</Key><Size>{(bucket / key).stat().st_size}</Size><ETag>{_etag(bucket / key)}</ETag>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for key in keys
        if not inside[key]
    ) + "".join(
        f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>"
        for folder in sorted(folders)
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()


def main(folder: str, milliseconds: str) -> None:
    """Serve until standard input ends."""
    Bucket.root, Bucket.seconds = Path(folder), float(milliseconds) / 1e3
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
