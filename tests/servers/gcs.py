"""Enough of Google Cloud Storage's JSON interface for gcsfs: objects, generations,
preconditions, uploads.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c

from tests.servers.base import Fault, Handler, Server

_PAGE = 1000


@dataclass(slots=True)
class GcsObject:
    """An object and its version."""

    bucket: str
    name: str
    data: bytes
    generation: int
    metadata: dict[str, Any] = field(default_factory=dict)
    modified: str = field(
        default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
    )

    def resource(self) -> dict[str, Any]:
        """Return what the interface says of the object."""
        digest = base64.b64encode(hashlib.md5(self.data).digest()).decode()
        return {
            **self.metadata,
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "bucket": self.bucket,
            "name": self.name,
            "size": str(len(self.data)),
            "generation": str(self.generation),
            "metageneration": "1",
            "etag": f"CKih{self.generation}",
            "md5Hash": digest,
            "crc32c": base64.b64encode(
                google_crc32c.Checksum(self.data).digest()
            ).decode(),
            "timeCreated": self.modified,
            "updated": self.modified,
        }


class _Interface(Handler):
    owner: GcsServer

    def serve(self) -> None:
        fault = self.begin()
        body = self.body(fault)
        parts = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        if self.command != "GET" and fault is not None and fault.refuses:
            self.answer(503, {}, b"", fault)
            return
        with self.owner.lock:
            self._route(parts.path, query, body, fault)

    def named(self, status: int, code: str) -> bytes:
        return json.dumps({"error": {"code": status, "message": code}}).encode()

    def _route(
        self, path: str, query: dict[str, str], body: bytes, fault: Fault | None
    ) -> None:
        one = re.fullmatch(r"/(?:download/)?storage/v1/b/([^/]+)/o/([^/]+)", path)
        two = re.fullmatch(
            r"/storage/v1/b/([^/]+)/o/([^/]+)/rewriteTo/b/([^/]+)/o/([^/]+)", path
        )
        if (
            self.owner.token
            and self.headers.get("Authorization") != f"Bearer {self.owner.token}"
        ):
            self._error(
                401, "Anonymous caller does not have storage.objects.get access", fault
            )
        elif path.startswith("/upload/"):
            self._upload(path, query, body, fault)
        elif two and self.command == "POST":
            self._rewrite(two, query, fault)
        elif one and self.command in ("GET", "DELETE"):
            self._object(one[1], unquote(one[2]), query, fault)
        elif found := re.fullmatch(r"/storage/v1/b/([^/]+)/o", path):
            self._list(found[1], query, fault)
        elif re.fullmatch(r"/storage/v1/b/([^/]+)", path):
            self._json(
                {"kind": "storage#bucket", "name": path.rpartition("/")[2]}, fault
            )
        else:
            self._error(404, "Not Found", fault)

    def _object(
        self, bucket: str, name: str, query: dict[str, str], fault: Fault | None
    ) -> None:
        found = self.owner.objects.get((bucket, name))
        wanted = query.get("generation")
        if found is None or (wanted and wanted != str(found.generation)):
            self._error(404, f"No such object: {bucket}/{name}", fault)
        elif not self._holds(found, query):
            self._error(412, "conditionNotMet", fault)
        elif self.command == "DELETE":
            del self.owner.objects[bucket, name]
            self.answer(204, {}, b"", fault)
        elif query.get("alt") == "media":
            self._media(found, fault)
        else:
            self._json(found.resource(), fault)

    def _media(self, found: GcsObject, fault: Fault | None) -> None:
        facts = found.resource()
        headers = {
            "x-goog-generation": str(found.generation),
            "x-goog-hash": f"crc32c={facts['crc32c']},md5={facts['md5Hash']}",
            "Content-Type": "application/octet-stream",
        }
        span = self.span(len(found.data))
        if span is None:
            self.answer(200, headers, found.data, fault)
        elif span[0] >= len(found.data):
            self._error(416, "Requested range not satisfiable", fault)
        else:
            headers["Content-Range"] = (
                f"bytes {span[0]}-{span[1] - 1}/{len(found.data)}"
            )
            self.answer(206, headers, found.data[slice(*span)], fault)

    def _list(self, bucket: str, query: dict[str, str], fault: Fault | None) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        page = min(int(query.get("maxResults", _PAGE)), _PAGE)
        items: list[dict[str, Any]] = []
        prefixes: list[str] = []
        following = None
        for name in self.owner.names(bucket, prefix, query.get("pageToken", "")):
            rest = name[len(prefix) :]
            folder = (
                prefix + rest.partition(delimiter)[0] + delimiter
                if delimiter and delimiter in rest
                else ""
            )
            if folder and folder in prefixes:
                continue
            if len(items) + len(prefixes) == page:
                following = name
                break
            if folder:
                prefixes.append(folder)
            else:
                items.append(self.owner.objects[bucket, name].resource())
        answer = {
            "kind": "storage#objects",
            "items": items,
            "prefixes": prefixes,
            "nextPageToken": following,
        }
        self._json({key: value for key, value in answer.items() if value}, fault)

    def _upload(
        self, path: str, query: dict[str, str], body: bytes, fault: Fault | None
    ) -> None:
        bucket = path.split("/b/")[1].split("/")[0]
        kind = query.get("uploadType")
        if kind == "multipart":
            boundary = self.headers["Content-Type"].partition("boundary=")[2].strip('"')
            meta, data = _related(body, boundary)
            if data is None:
                self._error(
                    400,
                    "The multipart body is damaged; it does not match its boundary: MD5",
                    fault,
                )
            else:
                self._store(bucket, meta["name"], data, meta, query, fault)
        else:
            self._store(bucket, query["name"], body, {}, query, fault)

    def _rewrite(
        self, names: re.Match[str], query: dict[str, str], fault: Fault | None
    ) -> None:
        source = self.owner.objects.get((names[1], unquote(names[2])))
        bucket, name = names[3], unquote(names[4])
        wanted = query.get("ifSourceGenerationMatch")
        if source is None or query.get(
            "sourceGeneration", str(source.generation)
        ) != str(source.generation):
            self._error(404, f"No such object: {names[1]}/{unquote(names[2])}", fault)
        elif not self._holds(self.owner.objects.get((bucket, name)), query) or (
            wanted and wanted != str(source.generation)
        ):
            self._error(412, "conditionNotMet", fault)
        elif (
            len(source.data) > self.owner.rewritten_at_once
            and "rewriteToken" not in query
        ):
            self._json(
                {
                    "kind": "storage#rewriteResponse",
                    "done": False,
                    "rewriteToken": "more",
                },
                fault,
            )
        else:
            made = self.owner.put(bucket, name, source.data)
            self._json(
                {
                    "kind": "storage#rewriteResponse",
                    "done": True,
                    "resource": made.resource(),
                },
                fault,
            )

    def _holds(self, found: GcsObject | None, query: dict[str, str]) -> bool:
        return self.owner.careless or _precondition(found, query)

    def _store(
        self,
        bucket: str,
        name: str,
        data: bytes,
        meta: dict[str, Any],
        query: dict[str, str],
        fault: Fault | None,
    ) -> None:
        digest = base64.b64encode(hashlib.md5(data).digest()).decode()
        if not self._holds(self.owner.objects.get((bucket, name)), query):
            self._error(412, "conditionNotMet", fault)
            return
        if meta.get("md5Hash", digest) != digest:
            stated = meta["md5Hash"]
            self._error(
                400,
                f'Provided MD5 hash "{stated}" doesn\'t match calculated MD5 hash "{digest}".',
                fault,
            )
            return
        self._json(
            self.owner.put(bucket, name, data, meta.get("metadata")).resource(), fault
        )

    def _json(self, value: dict[str, Any], fault: Fault | None) -> None:
        self.answer(
            200, {"Content-Type": "application/json"}, json.dumps(value).encode(), fault
        )

    def _error(self, status: int, message: str, fault: Fault | None) -> None:
        self.answer(
            status,
            {"Content-Type": "application/json"},
            self.named(status, message),
            fault,
        )


def _related(body: bytes, boundary: str) -> tuple[dict[str, Any], bytes | None]:
    """Return the two parts of a multipart/related body; None for the data of one
    that is cut or damaged.
    """
    line = b"\r\n" if b"\r\n" in body[: len(boundary) + 4] else b"\n"
    mark = b"--" + boundary.encode()
    first, separator, rest = body.removeprefix(mark + line).partition(
        line + mark + line
    )
    data, end, _ = rest.partition(2 * line)[2].rpartition(line + mark + b"--")
    try:
        return (
            (json.loads(first.partition(2 * line)[2]), data)
            if separator and end
            else ({}, None)
        )
    except ValueError:
        return {}, None


def _precondition(found: GcsObject | None, query: dict[str, str]) -> bool:
    """Whether ifGenerationMatch holds; 0 stands for no object."""
    wanted = query.get("ifGenerationMatch")
    return wanted is None or wanted == str(found.generation if found else 0)


class GcsServer(Server):
    """Objects by bucket and name.

    Attributes:
        token: an access token without which everything is refused, "" for none.
        careless: preconditions are ignored, as emulators do.
        rewritten_at_once: bytes up to which a copy is done in one request; a larger one
            takes two.
    """

    handler = _Interface

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[tuple[str, str], GcsObject] = {}
        self.token = ""
        self.careless = False
        self.rewritten_at_once = 1 << 30
        self._generation = 1_700_000_000_000_000

    def put(
        self,
        bucket: str,
        name: str,
        data: bytes,
        metadata: dict[str, Any] | None = None,
    ) -> GcsObject:
        """Store an object, as a new generation."""
        with self.lock:
            self._generation += 1
            extra = {"metadata": metadata} if metadata else {}
            found = self.objects[bucket, name] = GcsObject(
                bucket, name, data, self._generation, extra
            )
            return found

    def names(self, bucket: str, prefix: str, start: str) -> list[str]:
        """Return the names in a bucket that begin with `prefix`, sorted, from
        `start` on.
        """
        return sorted(
            name
            for where, name in self.objects
            if where == bucket and name.startswith(prefix) and name >= start
        )

    def options(self) -> dict[str, Any]:
        """Return storage_options for the server."""
        options: dict[str, Any] = {"endpoint_url": self.url, "token": "anon"}
        # Gcsfs asks Google about an access token that it is given as `token`
        if self.token:
            options["session_kwargs"] = {
                "headers": {"Authorization": {"env": "LAKE_TOKEN"}}
            }
        return options
