"""Objects of Google Cloud Storage, through the session and the credentials of gcsfs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, final
from urllib.parse import quote

from tokenlake.store.remote.crc import Checked
from tokenlake.store.remote.httpanswers import REQUEST, require_success, take_range, timeouts, total_size
from tokenlake.store.remote.objects import Found, Objects, OtherObjectError, Page, Sink, Write, pour
from tokenlake.store.remote.retry import Failures
from tokenlake.store.remote.url import Url

_FIELDS = "name,size,generation,contentEncoding,updated"


@final
class GcsObjects(Objects):
    """Requests to GCS's JSON interface. Tokens are generations, and every request names the planned one."""

    credentials = (
        "Google's usual chain was asked: GOOGLE_APPLICATION_CREDENTIALS, the login of gcloud, the account of this "
        "machine, then nobody. Others are given by storage_options: {token: {env: NAME}} (the path of a key file, or "
        "an access token), a public bucket is read with storage_options: {token: anon}"
    )

    def __init__(self, filesystem: Any, failures: Failures) -> None:
        super().__init__(failures)
        self._fs = filesystem

    async def stat(self, url: Url) -> Found:
        return _found(await self._json(_object(url), {"fields": _FIELDS}))

    async def page(self, url: Url, *, flat: bool, mark: str | None) -> Page:
        asked = {
            "maxResults": "1000",
            "fields": f"nextPageToken,prefixes,items({_FIELDS})",
            "prefix": url.path,
        }
        asked |= {"delimiter": "/"} if flat else {}
        asked |= {} if mark is None else {"pageToken": mark}
        answer = await self._json(f"b/{_bucket(url)}/o", asked)
        folders = [Found(path=path, size=0, token="") for path in answer.get("prefixes", ())]
        return Page([*folders, *map(_found, answer.get("items", ()))], answer.get("nextPageToken"))

    async def fetch(self, url: Url, sink: Sink, planned: Found) -> None:
        async with self._media(url, planned, {"Range": f"bytes={sink.at}-{sink.stop - 1}"}) as answer:
            await take_range(answer, sink, planned)

    async def download(self, url: Url, write: Write, planned: Found | None) -> None:
        async with self._media(url, planned, {}) as answer:
            checked = Checked(write, answer.headers.getall("x-goog-hash", []))
            await pour(answer.content.read, checked.write, total_size(answer), planned)
            checked.finish()

    def pins(self, token: str) -> bool:
        return token.startswith("generation:")

    @asynccontextmanager
    async def _media(self, url: Url, planned: Found | None, headers: dict[str, str]) -> AsyncGenerator[Any]:
        """Ask for the bytes of an object, of the planned generation where that is known."""
        generation = planned.token.removeprefix("generation:") if planned and self.pins(planned.token) else ""
        asked = {"alt": "media"} | ({"ifGenerationMatch": generation} if generation else {})
        # Accepting gzip keeps an object that is stored as such from being decompressed on the way.
        arguments = self._arguments(asked, {**headers, "Accept-Encoding": "gzip"})
        session = await self._fs._set_session()
        address = f"{self._fs._location}/download/storage/v1/{_object(url)}"
        async with session.get(_whole(address), **arguments) as answer:
            require_success(answer)
            self.reached = True
            got = answer.headers.get("x-goog-generation", generation)
            if generation and got != generation:
                raise OtherObjectError(f"its generation is {got}, planned was {generation}")
            yield answer

    async def _json(self, path: str, asked: dict[str, str]) -> Any:
        session = await self._fs._set_session()
        async with session.get(_whole(self._fs.base + path), **self._arguments(asked, {})) as answer:
            require_success(answer)
            self.reached = True
            return await answer.json(content_type=None)

    def _arguments(self, asked: dict[str, str], headers: dict[str, str]) -> dict[str, Any]:
        arguments = dict(REQUEST) if headers else {}
        return {
            **arguments,
            "params": self._fs._get_params(asked),
            "headers": self._fs._get_headers(headers),
            "timeout": timeouts(),
        }


def _bucket(url: Url) -> str:
    return url.root.partition("://")[2]


def _object(url: Url) -> str:
    return f"b/{_bucket(url)}/o/{quote(url.path, safe='')}"


def _whole(address: str) -> Any:
    import yarl  # comes with aiohttp

    return yarl.URL(address, encoded=True)  # %2F in an object's name must stay


def _found(item: dict[str, Any]) -> Found:
    return Found(
        path=item["name"],
        size=int(item.get("size", 0)),
        token=f"generation:{item['generation']}",
        packed=item.get("contentEncoding", ""),
        modified=datetime.fromisoformat(item["updated"]).timestamp() if "updated" in item else None,
    )
