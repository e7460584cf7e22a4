"""Objects of Google Cloud Storage, by its JSON interface.

Generations are the conditions of requests; md5Hash and CRC32C are the checksums.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any, Final, final
from urllib.parse import quote

import fsspec

from tokenlake.errors import NotFoundError
from tokenlake.runtime.store import objects
from tokenlake.runtime.store.bucket_client import BucketClient
from tokenlake.runtime.store.failures import Failures
from tokenlake.runtime.store.http import (
    REQUEST,
    require_success,
    take_range,
    timeouts,
    total_size,
)
from tokenlake.runtime.store.payload import PIECE, Payload
from tokenlake.runtime.store.rates import answered_in_time
from tokenlake.runtime.store.url import Url

# Members of an object's resource that are requested; all others would be sent in vain.
_FIELDS: Final = "name,size,generation,contentEncoding,updated"
_TYPE: Final = "application/octet-stream"


class BusyError(ConnectionError):
    """Another request for the same object is under way."""


@final
class GcsClient(BucketClient):
    """Requests with the credentials of gcsfs.

    Tokens are generations, and every request names the planned one. An object of
    whatever size is one request: a file is sent as it is read, never held in memory. So
    there is nothing unfinished that could be left.

    An object of whatever size is one request: a file is sent as it is read, never held
    in memory. So there is nothing unfinished that could be left.
    """

    pinned = ("generation:",)
    credentials = (
        "Credentials were searched for in the places that Google's tools use: GOOGLE_APPLICATION_CREDENTIALS, the "
        "login of gcloud, the account of this machine, then anonymous access. Give others in storage_options: "
        "{token: {env: NAME}} (the path of a key file, or an access token), read a public bucket with "
        "storage_options: {token: anon}"
    )

    def __init__(
        self, filesystem: Any, options: Mapping[str, Any], failures: Failures
    ) -> None:
        super().__init__(filesystem, options, failures)
        # gcsfs has the credentials and the address of the interface. Its own requests
        # hold whole objects in memory, so that they go through a session of HTTP.
        self._api: str = self._fs.base  # https://storage.googleapis.com/storage/v1/
        self._host = self._api.removesuffix("/storage/v1/")
        arguments = {
            "client_kwargs": self._fs.session_kwargs,
            "skip_instance_cache": True,
        }
        self._web: Any = fsspec.filesystem("http", **arguments)

    async def session(self) -> Any:
        self._session = await self._web.set_session()
        return self._session

    async def _stat(self, url: Url) -> objects.RemoteObject:
        return _remote_object(
            await self._json("GET", self._api + _object(url), {"fields": _FIELDS})
        )

    async def _page(self, url: Url, flat: bool, mark: str | None) -> objects.ListPage:
        fields = f"nextPageToken,prefixes,items({_FIELDS})"
        query = {"maxResults": "1000", "fields": fields, "prefix": url.path}
        if flat:
            query["delimiter"] = "/"
        if mark is not None:
            query["pageToken"] = mark
        answer = await self._json("GET", f"{self._api}b/{url.bucket}/o", query)
        # Folders of the listing have only a path. Then come its objects.
        page: list[objects.RemoteObject] = []
        for path in answer.get("prefixes", ()):
            page.append(objects.RemoteObject(path=path, size=0, token=""))
        for item in answer.get("items", ()):
            page.append(_remote_object(item))
        return page, answer.get("nextPageToken")

    async def _fetch(
        self, url: Url, buffer: objects.RangeBuffer, planned: objects.RemoteObject
    ) -> None:
        async with self._media(url, planned, {"Range": buffer.header}) as answer:
            await take_range(answer, buffer, planned)

    async def _download(
        self, url: Url, write: objects.Write, planned: objects.RemoteObject | None
    ) -> None:
        async with self._media(url, planned, {}) as answer:
            # The checksum is of the whole object, so that it is checked only here, and
            # not for ranges.
            expected_crc = _stated_hashes(answer).get("crc32c")
            checksum = None if expected_crc is None else _crc32c()

            def write_checked(data: bytes) -> None:
                if checksum is not None:
                    checksum.update(data)
                write(data)

            await objects.pour(
                answer.content.read, write_checked, total_size(answer), planned
            )
            if checksum is not None:
                crc = base64.b64encode(checksum.digest()).decode()
                if crc != expected_crc:
                    raise objects.DamagedBodyError(
                        f"its CRC32C is {crc}, the storage reports {expected_crc}"
                    )

    async def put(self, url: Url, payload: Payload, over: str | None) -> None:
        # The body has two parts: the object's properties, and its bytes. Bytes that end
        # the body early would have to hold the mark, which is random.
        mark = secrets.token_hex(16)
        properties = {
            "name": url.path,
            "md5Hash": payload.md5s[0],
            "contentType": _TYPE,
        }
        head = (
            f"--{mark}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(properties)}\r\n"
            f"--{mark}\r\nContent-Type: {_TYPE}\r\n\r\n"
        ).encode()
        tail = f"\r\n--{mark}--\r\n".encode()
        headers = {
            "Content-Type": f"multipart/related; boundary={mark}",
            "Content-Length": str(len(head) + payload.size + len(tail)),
        }

        async def body() -> AsyncGenerator[bytes]:
            yield head
            for piece_start in range(0, payload.size, PIECE):
                yield await asyncio.to_thread(payload.read, piece_start, PIECE)
            yield tail

        async def send() -> bytes:
            upload_url = f"{self._host}/upload/storage/v1/b/{url.bucket}/o"
            query = {"uploadType": "multipart", **_generation_match(over)}
            return await self._send("POST", upload_url, query, headers, body())

        await self._write(url, send, payload.size)

    async def copy(
        self,
        source: Url,
        original: objects.RemoteObject,
        url: Url,
        over: str | None,
        *,
        in_one_request: bool = True,
    ) -> None:
        # The condition names the generation of the source and that of the target.
        rewrite_url = f"{self._api}{_object(source)}/rewriteTo/{_object(url)}"
        generation = _generation(original.token)
        query = {
            "ifSourceGenerationMatch": generation,
            "sourceGeneration": generation,
            **_generation_match(over),
        }
        # A copy of a large object takes several requests. Each answer names the next
        # one.
        while True:
            answer = await self._copy(
                source,
                original,
                url,
                partial(self._json, "POST", rewrite_url, dict(query)),
            )
            if answer["done"]:
                return
            query["rewriteToken"] = answer["rewriteToken"]

    async def delete(self, url: Url) -> None:
        # An object that is gone needs no deletion.
        with contextlib.suppress(NotFoundError):
            await self._write(
                url,
                partial(self._send, "DELETE", self._api + _object(url), {}),
                done="deleted",
            )

    def other_token(self, token: str) -> str:
        return f"generation:{int(_generation(token)) + 1}"

    @asynccontextmanager
    async def _media(
        self, url: Url, planned: objects.RemoteObject | None, headers: dict[str, str]
    ) -> AsyncGenerator[Any]:
        """Request the bytes of an object, of the planned generation if it is known."""
        generation = ""
        if planned is not None and self.pins(planned.token):
            generation = _generation(planned.token)
        query = {"alt": "media"}
        if generation:
            query["ifGenerationMatch"] = generation
        # Accepting gzip keeps an object that is stored as such from being decompressed
        # on the way.
        headers = {**headers, "Accept-Encoding": "gzip"}
        download_url = f"{self._host}/download/storage/v1/{_object(url)}"
        async with self._request(
            "GET", download_url, query, headers, **REQUEST
        ) as answer:
            require_success(answer)
            self.reached = True
            # The service states the generation that it sends, also where none was
            # requested.
            sent_generation = answer.headers.get("x-goog-generation", generation)
            if generation and sent_generation != generation:
                raise objects.OtherObjectError(
                    f"its generation is {sent_generation}, expected {generation}"
                )
            yield answer

    async def _json(self, method: str, place: str, query: dict[str, str]) -> Any:
        """Send a request, and return the JSON value of its answer."""
        return json.loads(await self._send(method, place, query))

    async def _send(
        self,
        method: str,
        place: str,
        query: dict[str, str],
        headers: dict[str, str] | None = None,
        body: AsyncGenerator[bytes] | None = None,
    ) -> bytes:
        """Send a request, and return the body of its answer.

        Args:
            method: HTTP method.
            place: URL of the resource, without its query.
            query: Parameters of the query.
            headers: Headers of a request that writes; None: none, and no body.
            body: Pieces of the body; None for an empty one.
        """
        arguments: dict[str, Any] = {} if body is None else {"data": body}
        # A request that writes may wait long for the service, after the last byte was
        # sent.
        if method != "GET":
            arguments["timeout"] = timeouts(120.0)
            headers = {"Content-Length": "0"} if headers is None else headers
        async with self._request(
            method, place, query, headers or {}, **arguments
        ) as answer:
            if answer.status == 409:
                raise BusyError(f"HTTP status 409 {answer.reason}")
            # The service compares the MD5 of the bytes that came. Damaged bytes are
            # worth another try.
            answer_text = (
                await answer.text(errors="replace") if answer.status == 400 else ""
            )
            if "match" in answer_text and (
                "MD5" in answer_text or "CRC32C" in answer_text
            ):
                raise objects.DamagedBodyError(
                    "the storage received bytes that differ from those sent (MD5)"
                )
            require_success(answer)
            self.reached = True
            return await answer.read()

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        place: str,
        query: dict[str, str],
        headers: dict[str, str],
        **request_options: Any,
    ) -> AsyncGenerator[Any]:
        """Send a request with the credentials of gcsfs, and yield its answer."""
        import yarl  # comes with aiohttp

        session = await self.session()
        # The bucket's owner may want the requester to pay.
        payer = self._fs.requester_pays
        if payer:
            project = payer if isinstance(payer, str) else self._fs.project
            query = {**query, "userProject": project}
        headers = {**headers, "User-Agent": "tokenlake"}
        self._fs.credentials.apply(headers)
        arguments = {
            "timeout": timeouts(),
            **request_options,
            "params": query,
            "headers": headers,
        }
        # Encoded: %2F in an object's name must stay.
        request = session.request(method, yarl.URL(place, encoded=True), **arguments)
        if method == "GET":
            # The headers; a request that sends has patience of its own.
            async with answered_in_time():
                answer = await request
        else:
            answer = await request
        async with answer:
            yield answer


def _crc32c() -> Any:
    """Return a checksum to be updated; None without a fast one on this machine.

    Readers check hashes of their own.
    """
    try:
        import google_crc32c  # comes with gcsfs
    except ImportError:
        return None
    # The pure Python version takes longer than the download.
    if google_crc32c.implementation != "c":
        return None
    return google_crc32c.Checksum()


def _stated_hashes(answer: Any) -> dict[str, str]:
    """Return name -> base64 of the hashes in the headers of an answer."""
    hashes: dict[str, str] = {}
    for header in answer.headers.getall("x-goog-hash", []):
        for hash_pair in header.split(","):
            hash_name, _, base64_hash = hash_pair.partition("=")
            hashes[hash_name.strip()] = base64_hash
    return hashes


def _object(url: Url) -> str:
    """Return the path of an object below the interface."""
    return f"b/{url.bucket}/o/{quote(url.path, safe='')}"


def _generation(token: str) -> str:
    """Return the generation in a token."""
    return token.removeprefix("generation:")


def _generation_match(over: str | None) -> dict[str, str]:
    """Return the condition of a write: generation 0 means that no object exists."""
    return {"ifGenerationMatch": "0" if over is None else _generation(over)}


def _remote_object(item: dict[str, Any]) -> objects.RemoteObject:
    """Return an object from its JSON resource."""
    modified: float | None = None
    if "updated" in item:
        modified = datetime.fromisoformat(item["updated"]).timestamp()
    return objects.RemoteObject(
        path=item["name"],
        size=int(item.get("size", 0)),
        token=f"generation:{item['generation']}",
        packed=item.get("contentEncoding", ""),
        modified=modified,
    )
