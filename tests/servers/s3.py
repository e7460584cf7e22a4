"""S3 as moto plays it, behind a proxy that logs, breaks answers, and does what moto
leaves out.

What moto leaves out and S3 does: to refuse a body whose Content-MD5 or
``x-amz-checksum-*`` is another (400 BadDigest), a copied object or part whose source is
not the one that ``x-amz-copy-source-if-match`` names, a copy with ``If-None-Match``
over an object, and a completion with an ``If-Match`` that is another (412); to decide
on a condition and write in one step; to say when an upload was begun.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import logging
import re
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from email.message import Message
from typing import Any, Final, Self
from urllib.parse import unquote

import boto3
import google_crc32c
from moto.server import ThreadedMotoServer

from tests.servers.base import Handler, Server

KEY, SECRET = "AKIATESTTESTTESTTEST", "wJalrXUtnFEMI-not-a-real-secret-K7MDENG"
SECRET_MARK = KEY

_HOP: Final = {"connection", "expect"}
_LEFT_OUT: Final = {"connection", "date", "server", "transfer-encoding"}
_CONDITIONS: Final = {"if-match", "if-none-match", "x-amz-copy-source-if-match"}
_CHECKSUMS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "content-md5": lambda body: hashlib.md5(body).digest(),
    "x-amz-checksum-sha256": lambda body: hashlib.sha256(body).digest(),
    "x-amz-checksum-crc32": lambda body: zlib.crc32(body).to_bytes(4, "big"),
    "x-amz-checksum-crc32c": lambda body: google_crc32c.Checksum(body).digest(),
}


class _Proxy(Handler):
    owner: S3Server

    def serve(self) -> None:
        fault = self.begin()
        body = self.body(fault)
        if self.owner.refuse and SECRET_MARK not in self.headers.get(
            "Authorization", ""
        ):
            self.answer(403, {}, self.named(403, "AccessDenied"), fault)
        elif self.command in ("GET", "HEAD"):
            self.answer(*self._asked(body), fault)
        elif fault is not None and fault.refuses:
            self.answer(503, {}, b"", fault)
        elif not self._arrived_whole(body):
            self.answer(400, {}, self.named(400, "BadDigest"), fault)
        else:
            with self.owner.writing:
                answer = self._refusal() or self._asked(body)
            self.answer(*answer, fault)

    def named(self, status: int, code: str) -> bytes:
        return f"<Error><Code>{code}</Code><Message>{code}, as the test wants it</Message></Error>".encode()

    def _asked(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return moto's answer."""
        dropped = _HOP | (_CONDITIONS if self.owner.careless else set())
        headers = {
            key: value
            for key, value in self.headers.items()
            if key.lower() not in dropped
        }
        status, found, data = self.owner.ask(self.command, self.path, body, headers)
        kept = {
            key: value for key, value in found.items() if key.lower() not in _LEFT_OUT
        }
        if self.command != "HEAD":
            kept = {
                key: value
                for key, value in kept.items()
                if key.lower() != "content-length"
            }
        return status, kept, self.owner.dated(self.command, self.path, data)

    def _arrived_whole(self, body: bytes) -> bool:
        given = [
            (self.headers[name], of)
            for name, of in _CHECKSUMS.items()
            if name in self.headers
        ]
        return all(base64.b64decode(value) == of(body) for value, of in given)

    def _refusal(self) -> tuple[int, dict[str, str], bytes] | None:
        """Return the answer to a condition that moto does not know and that does not
        hold.
        """
        if self.owner.careless:
            return None
        if self._copies_over():
            return 412, {}, self.named(412, "PreconditionFailed")
        wanted = self.headers.get("x-amz-copy-source-if-match")
        place = "/" + unquote(self.headers.get("x-amz-copy-source", "")).lstrip("/")
        if wanted is None and self.command == "POST" and "uploadId=" in self.path:
            wanted, place = self.headers.get("If-Match"), self.path.partition("?")[0]
        if wanted is None:
            return None
        status, headers, _ = self.owner.ask(
            "HEAD", place, b"", {"Authorization": self.headers.get("Authorization", "")}
        )
        if status == 404:
            return 404, {}, self.named(404, "NoSuchKey")
        if (headers["ETag"] or "").strip('"') == wanted.strip('"'):
            return None
        return 412, {}, self.named(412, "PreconditionFailed")

    def _copies_over(self) -> bool:
        if (
            "x-amz-copy-source" not in self.headers
            or self.headers.get("If-None-Match") != "*"
        ):
            return False
        whose = {"Authorization": self.headers.get("Authorization", "")}
        return (
            not self.owner.forgets_copies
            and self.owner.ask("HEAD", self.path, b"", whose)[0] == 200
        )


class S3Server(Server):
    """A moto server; `client` talks to it directly, tests go through the proxy at
    `url`.

    Attributes:
        refuse: requests that are not signed with the right key are answered with 403.
        careless: conditions of writing requests are ignored, as some servers that speak
            like S3 do.
        forgets_copies: conditions of copies in one request are ignored, as services do
            that do not know them.
        writing: held while a request that writes is carried out.
    """

    handler = _Proxy

    def __init__(self) -> None:
        super().__init__()
        self._moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.backend = 0
        self.refuse = self.careless = self.forgets_copies = False
        self.writing = threading.Lock()
        self._begun: dict[str, float] = {}  # when each multipart upload was

    def __enter__(self) -> Self:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._moto.start()
        self.backend = self._moto.get_host_and_port()[1]
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._moto.stop()

    def ask(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, Message, bytes]:
        """Return what moto says."""
        backend = http.client.HTTPConnection("127.0.0.1", self.backend, timeout=30)
        try:
            backend.request(method, path, body, headers)
            answer = backend.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            backend.close()

    def dated(self, method: str, path: str, body: bytes) -> bytes:
        """Put the time at which uploads were begun into a listing of them; moto has
        them all in 2010.
        """
        if method == "POST" and (
            found := re.search(rb"<UploadId>(.*?)</UploadId>", body)
        ):
            self._begun.setdefault(found[1].decode(), time.time())
        if method != "GET" or "uploads" not in path.partition("?")[2].split("&"):
            return body
        return re.sub(rb"<Upload>.*?</Upload>", self._with_date, body, flags=re.DOTALL)

    def age_uploads(self, seconds: float) -> None:
        """Let all unfinished uploads have been begun so much earlier."""
        for upload in self._begun:
            self._begun[upload] -= seconds

    def _with_date(self, upload: re.Match[bytes]) -> bytes:
        found = re.search(rb"<UploadId>(.*?)</UploadId>", upload[0])
        begun = time.gmtime(self._begun.get(found[1].decode() if found else "", 0.0))
        text = time.strftime("<Initiated>%Y-%m-%dT%H:%M:%S.000Z</Initiated>", begun)
        return re.sub(rb"<Initiated>.*?</Initiated>", text.encode(), upload[0])

    def client(self) -> Any:
        """Return a boto3 client of the server itself."""
        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.backend}",
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )

    def options(self) -> dict[str, Any]:
        """Return storage_options for the server, with references to the credentials."""
        return {
            "endpoint_url": self.url,
            "key": {"env": "LAKE_KEY"},
            "secret": {"env": "LAKE_SECRET"},
            "client_kwargs": {"region_name": "us-east-1"},
        }
