"""S3 as moto plays it, behind a proxy that logs and breaks answers."""

from __future__ import annotations

import http.client
import logging
from typing import Any, Self

import boto3
from moto.server import ThreadedMotoServer

from tests.servers.base import Handler, Server

KEY, SECRET = "AKIATESTTESTTESTTEST", "wJalrXUtnFEMI-not-a-real-secret-K7MDENG"


class _Proxy(Handler):
    owner: S3Server

    def serve(self) -> None:
        fault = self.begin()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        backend = http.client.HTTPConnection("127.0.0.1", self.owner.backend, timeout=30)
        try:
            headers = {key: value for key, value in self.headers.items() if key.lower() != "connection"}
            backend.request(self.command, self.path, body, headers)
            answer = backend.getresponse()
            data = answer.read()
        finally:
            backend.close()
        left_out = {"connection", "date", "server", "transfer-encoding"}
        headers = {key: value for key, value in answer.getheaders() if key.lower() not in left_out}
        if self.command != "HEAD":
            headers = {key: value for key, value in headers.items() if key.lower() != "content-length"}
        if self.owner.refuse and SECRET_MARK not in self.headers.get("Authorization", ""):
            self.answer(403, {}, _DENIED, fault)
            return
        self.answer(answer.status, headers, data, fault)


SECRET_MARK = KEY
_DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


class S3Server(Server):
    """A moto server; `client` talks to it directly, tests read through the proxy at `url`.

    Attributes:
        refuse: requests that are not signed with the right key are answered with 403.
    """

    handler = _Proxy

    def __init__(self) -> None:
        super().__init__()
        self._moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.backend = 0
        self.refuse = False

    def __enter__(self) -> Self:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._moto.start()
        self.backend = self._moto.get_host_and_port()[1]
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._moto.stop()

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
