"""Server of slow buckets on loopback: ``FOLDER MILLISECONDS``.

Each folder in FOLDER is a bucket, and every answer takes MILLISECONDS. The server
supports the part of S3 that a reader needs: HEAD, GET with ranges, and listings of up
to a page. It prints its port and ends with its standard input. ``GET /?requests``
returns the number of requests so far, without requests of this kind.
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
_LISTED_DATE: Final = "2026-01-01T00:00:00.000Z"
_NO_SUCH_KEY: Final = b"<Error><Code>NoSuchKey</Code></Error>"


class Bucket(BaseHTTPRequestHandler):
    """Handler of the requests of a connection.

    Attributes:
        root: Folder of the buckets.
        seconds: Time of every answer.
        counter: Numbers of the requests. `next` is atomic, so that threads need no
            lock.
        requests: Number of requests so far.
    """

    protocol_version = "HTTP/1.1"
    root = Path()
    seconds = 0.0
    counter = count(1)
    requests = 0

    def do_GET(self) -> None:
        """Answer with an object, a part of it, or a listing."""
        # The count of requests has no latency, and does not count itself.
        url = urlsplit(self.path)
        query = parse_qs(url.query, keep_blank_values=True)
        if "requests" in query:
            self._answer(200, str(Bucket.requests).encode())
            return
        Bucket.requests = next(Bucket.counter)
        time.sleep(self.seconds)
        # The first part of a path is the bucket: a folder of the root.
        path = self.root / unquote(url.path).lstrip("/")
        if "list-type" in query:
            prefix = query["prefix"][0]
            delimiter = query.get("delimiter", [""])[0]
            self._answer(200, _listing(path, prefix, delimiter))
        elif path.is_file():
            self._answer_object(path)
        else:
            self._answer(404, _NO_SUCH_KEY)

    do_HEAD = do_GET  # noqa: N815 (the name that the standard library calls)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def _answer_object(self, path: Path) -> None:
        """Answer with a file, or with the requested range of it."""
        status = 200
        file_size = path.stat().st_size
        begin = 0
        end = file_size
        headers = {"ETag": _etag(path), "Last-Modified": _DATE}
        requested_range = _RANGE.match(self.headers.get("Range", ""))
        if requested_range:
            status = 206
            begin = int(requested_range[1])
            if requested_range[2]:
                # The last byte of a range is included.
                end = min(int(requested_range[2]) + 1, file_size)
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{file_size}"
        with path.open("rb") as file:
            file.seek(begin)
            body = file.read(end - begin)
        self._answer(status, body, headers)

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        """Send an answer, without its body if the request was HEAD."""
        self.send_response(status)
        for header, value in (headers or {}).items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _etag(path: Path) -> str:
    """Return an ETag, which depends on the path alone."""
    return f'"{hashlib.md5(str(path).encode()).hexdigest()}"'


def _listing(bucket: Path, prefix: str, delimiter: str) -> bytes:
    """Return the listing of the keys with a prefix.

    Args:
        bucket: Folder of the bucket.
        prefix: Prefix of the keys.
        delimiter: Delimiter of folders; keys that contain it after the prefix are
            listed as one folder. Empty: all keys are listed.
    """
    # S3 lists keys in the order of their bytes, and folders once.
    files = [path for path in bucket.rglob("*") if path.is_file()]
    keys = sorted(str(path.relative_to(bucket)) for path in files)
    contents: list[str] = []
    folders: set[str] = set()
    for key in keys:
        if not key.startswith(prefix):
            continue
        relative_key = key.removeprefix(prefix)
        if delimiter and delimiter in relative_key:
            folders.add(prefix + relative_key.partition(delimiter)[0] + delimiter)
            continue
        path = bucket / key
        contents.append(
            f"<Contents><Key>{key}</Key><Size>{path.stat().st_size}</Size><ETag>{_etag(path)}</ETag>"
            f"<LastModified>{_LISTED_DATE}</LastModified></Contents>"
        )
    for folder in sorted(folders):
        contents.append(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>")
    listing = "".join(contents)
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{listing}</ListBucketResult>".encode()


def main(folder: str, milliseconds: str) -> None:
    """Serve until the end of standard input.

    Args:
        folder: Folder of the buckets.
        milliseconds: Time of every answer.
    """
    Bucket.root = Path(folder)
    Bucket.seconds = float(milliseconds) / 1e3
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
