"""Writes to Google Cloud Storage's JSON interface: generations as conditions, md5Hash as the checksum."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Final, final
from urllib.parse import quote

from tokenlake.errors import NotFoundError
from tokenlake.store.remote.content import PIECE, Content
from tokenlake.store.remote.httpanswers import require_success, timeouts
from tokenlake.store.remote.objects import Found, Objects, SourceChangedError
from tokenlake.store.remote.retry import Patience
from tokenlake.store.remote.url import Url
from tokenlake.store.remote.writes import Writes

_TYPE: Final = "application/octet-stream"


class DamagedBodyError(ConnectionError):
    """The storage got other bytes than were sent."""


class BusyError(ConnectionError):
    """Another request for the same object is under way."""


@final
class GcsWrites(Writes):
    """One request for each object, of whatever size: a file is sent as it is read, never held in memory.

    So there is nothing unfinished that could be left. Tokens are generations.
    """

    def __init__(self, filesystem: Any, objects: Objects, patience: Patience) -> None:
        super().__init__(objects, patience)
        self._fs = filesystem

    async def put(self, url: Url, content: Content, over: str | None) -> None:
        await self._ask(url, partial(self._put, url, content, over), content.size)

    async def copy(self, source: Url, found: Found, url: Url, over: str | None) -> None:
        place = f"{self._fs.base}{_object(source)}/rewriteTo/{_object(url)}"
        generation = _generation(found.token)
        asked = {"ifSourceGenerationMatch": generation, "sourceGeneration": generation, **_condition(over)}
        while True:
            answer = await self._ask(url, partial(self._copied, source, found, place, dict(asked)))
            if answer["done"]:
                return
            asked["rewriteToken"] = answer["rewriteToken"]

    async def delete(self, url: Url) -> None:
        with contextlib.suppress(NotFoundError):
            await self._ask(
                url, partial(self._send, "DELETE", self._fs.base + _object(url), {}), done="deleted"
            )

    def wrong(self, token: str) -> str:
        return f"generation:{int(_generation(token)) + 1}"

    async def _put(self, url: Url, content: Content, over: str | None) -> Any:
        place = f"{self._fs._location}/upload/storage/v1/b/{_bucket(url)}/o"
        mark = secrets.token_hex(16)  # bytes that end the body early would have to hold it
        about = {"name": url.path, "md5Hash": content.md5s[0], "contentType": _TYPE}
        head = (
            f"--{mark}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(about)}\r\n"
            f"--{mark}\r\nContent-Type: {_TYPE}\r\n\r\n"
        ).encode()
        tail = f"\r\n--{mark}--\r\n".encode()
        headers = {
            "Content-Type": f"multipart/related; boundary={mark}",
            "Content-Length": str(len(head) + content.size + len(tail)),
        }
        asked = {"uploadType": "multipart", **_condition(over)}
        return await self._send("POST", place, asked, headers, _body(head, content, tail))

    async def _copied(self, source: Url, found: Found, place: str, asked: dict[str, str]) -> Any:
        try:
            return json.loads(await self._send("POST", place, asked))
        except Exception as error:
            # The same status for the source's condition and the target's.
            if getattr(error, "status", None) not in (404, 412):
                raise
            try:
                now = await self.objects.stat(source)
            except Exception as gone:
                if getattr(gone, "status", None) != 404:
                    raise
                raise SourceChangedError("it is gone") from None
            if now.token != found.token:
                raise SourceChangedError(f"{now.token}, read was {found.token}") from None
            raise

    async def _send(
        self,
        method: str,
        place: str,
        asked: dict[str, str],
        headers: dict[str, str] | None = None,
        body: AsyncGenerator[bytes] | None = None,
    ) -> bytes:
        import yarl  # comes with aiohttp

        session = await self._fs._set_session()
        arguments: dict[str, Any] = {
            "params": self._fs._get_params(asked),
            "headers": self._fs._get_headers({"Content-Length": "0"} if headers is None else headers),
            "timeout": timeouts(120.0),
        }
        if body is not None:
            arguments["data"] = body
        async with session.request(method, yarl.URL(place, encoded=True), **arguments) as answer:
            if answer.status == 409:
                raise BusyError(f"HTTP status 409 {answer.reason}")
            if answer.status == 400:
                _refuse_damaged(await answer.text(errors="replace"))
            require_success(answer)
            self.objects.reached = True
            return await answer.read()


async def _body(head: bytes, content: Content, tail: bytes) -> AsyncGenerator[bytes]:
    yield head
    for start in range(0, content.size, PIECE):
        yield await asyncio.to_thread(content.read, start, PIECE)
    yield tail


def _refuse_damaged(text: str) -> None:
    """Raise if an answer says that the checksum is another one, which is worth another try."""
    if "match" in text and ("MD5" in text or "CRC32C" in text):
        raise DamagedBodyError("the storage got other bytes than were sent (MD5)")


def _bucket(url: Url) -> str:
    return url.root.partition("://")[2]


def _object(url: Url) -> str:
    return f"b/{_bucket(url)}/o/{quote(url.path, safe='')}"


def _generation(token: str) -> str:
    return token.removeprefix("generation:")


def _condition(over: str | None) -> dict[str, str]:
    return {"ifGenerationMatch": "0" if over is None else _generation(over)}
