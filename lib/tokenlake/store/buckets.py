"""Objects of S3 and what speaks like it, and of Google Cloud Storage, with conditions and checksums.

S3 goes through the client of s3fs: ETags and MD5 sums. Google Cloud Storage is asked by its JSON interface: generations
as conditions, md5Hash and CRC32C as checksums.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any, Final, final
from urllib.parse import quote

import fsspec

from tokenlake.errors import NotFoundError
from tokenlake.store import objects
from tokenlake.store.client import BucketClient, Failures
from tokenlake.store.http import REQUEST, require_success, take_range, timeouts, total_size
from tokenlake.store.rates import answered_in_time

_VERSION: Final = "?versionId="
_COPIED: Final = 1 << 30  # bytes that are copied at once
# We send each request again ourselves, with a look at what has already come; two layers would multiply.
_CLIENT: Final = {"retries": {"mode": "standard", "total_max_attempts": 1}, "max_pool_connections": 32}
_AT_ONCE: Final = 4  # parts of one object that are under way at once
_Part = dict[str, Any]


@final
class S3Client(BucketClient):
    """Requests to S3. Tokens are ETags, with the version where the URL names one (``?versionId=``).

    An ETag changes with the bytes, except for an object put again with the same ones. Large objects are uploads in
    parts, whose completion has the condition. A copy is one request where the service keeps the create-only condition
    of CopyObject, which not all do; else, and where it is large or replaces an object, it is an upload in parts too.
    """

    in_parts = True
    pinned = ("etag:",)
    credentials = (
        "Credentials were looked up where AWS's tools look: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the profiles "
        "in ~/.aws, the role of this container or machine. Others are given by storage_options: {key: {env: NAME}, "
        "secret: {env: NAME}}, "
        "a public bucket is read with storage_options: {anon: true}"
    )

    @classmethod
    def arguments(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        return {**options, "config_kwargs": {**_CLIENT, **options.get("config_kwargs", {})}}

    async def _stat(self, url: objects.Url) -> objects.RemoteObject:
        answer = await self._send("head_object", url)
        return _found(url.path, answer["ContentLength"], _token(answer, url), answer)

    async def _page(self, url: objects.Url, flat: bool, mark: str | None) -> objects.ListPage:
        asked = {"Delimiter": "/"} if flat else {}
        if mark is not None:
            asked["ContinuationToken"] = mark
        answer = await self._call("list_objects_v2", Bucket=url.bucket, Prefix=url.path, **asked)
        folders, files = answer.get("CommonPrefixes", ()), answer.get("Contents", ())
        found = [objects.RemoteObject(path=one["Prefix"], size=0, token="") for one in folders]
        found += [_found(one["Key"], one["Size"], _etag_token(one.get("ETag")), one) for one in files]
        return found, (answer["NextContinuationToken"] if answer.get("IsTruncated") else None)

    async def _fetch(
        self, url: objects.Url, buffer: objects.RangeBuffer, planned: objects.RemoteObject
    ) -> None:
        async with answered_in_time():
            answer = await self._send("get_object", url, Range=buffer.header, **_planned(planned))
        with contextlib.closing(answer["Body"]) as body:
            _require_version(answer, url, planned)
            span, _, total = answer.get("ContentRange", "").rpartition("/")
            objects.require_size(int(total) if total.isdigit() else None, planned)
            if span and span.replace(" ", "=") != buffer.header:
                raise objects.ShortBodyError(f"asked for {buffer.header}, got {span}")
            await buffer.fill(body.read)

    async def _download(
        self, url: objects.Url, write: objects.Write, planned: objects.RemoteObject | None
    ) -> None:
        async with answered_in_time():
            answer = await self._send("get_object", url, **({} if planned is None else _planned(planned)))
        with contextlib.closing(answer["Body"]) as body:
            if planned is not None:
                _require_version(answer, url, planned)
            await objects.pour(body.read, write, answer["ContentLength"], planned)

    async def put(self, url: objects.Url, payload: objects.Payload, over: str | None) -> None:
        async def part(upload: str, index: int) -> _Part:
            data = await asyncio.to_thread(payload.part, index)
            own = {"UploadId": upload, "PartNumber": index + 1}
            own |= {"Body": data, "ContentMD5": payload.md5s[index]}
            answer = await self._write(url, partial(self._send, "upload_part", url, **own), len(data))
            return {"PartNumber": index + 1, "ETag": answer["ETag"]}

        if payload.in_parts:
            await self._in_parts(url, over, len(payload.md5s), part)
            return
        given = {"Body": payload.part(0), "ContentMD5": payload.md5s[0], **_condition(over)}
        await self._write(url, partial(self._send, "put_object", url, **given), payload.size)

    async def copy(
        self,
        source: objects.Url,
        found: objects.RemoteObject,
        url: objects.Url,
        over: str | None,
        *,
        whole: bool = True,
    ) -> None:
        count = max(-(-found.size // _COPIED), 1)
        if whole and count == 1 and over is None:
            given = _copied(source, found) | _condition(None)
            await self._copy(source, found, url, partial(self._send, "copy_object", url, **given))
            return
        await self._in_parts(url, over, count, partial(self._copy_part, source, found, url))

    async def delete(self, url: objects.Url) -> None:
        await self._write(url, partial(self._send, "delete_object", url), done="deleted")

    def other_token(self, token: str) -> str:
        return "etag:" + ("0" * 32 if token != "etag:" + "0" * 32 else "1" * 32)

    async def uploads(self, url: objects.Url) -> list[tuple[objects.RemoteObject, str]]:
        found: list[tuple[objects.RemoteObject, str]] = []
        marks: dict[str, str] = {}
        while True:
            asked = {"Bucket": url.bucket, "Prefix": url.path, **marks}
            request = partial(self._call, "list_multipart_uploads", **asked)
            answer = await self._write(url, request, done="listed")
            found += (
                (_found(one["Key"], 0, "", {"LastModified": one["Initiated"]}), one["UploadId"])
                for one in answer.get("Uploads", ())
            )
            if not answer.get("IsTruncated"):
                return found
            upload = answer.get("NextUploadIdMarker", "")
            marks = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": upload}

    async def abort(self, url: objects.Url, upload: str) -> bool:
        request = partial(self._send, "abort_multipart_upload", url, UploadId=upload)
        with contextlib.suppress(NotFoundError):
            await self._write(url, request, done="removed")
            return True
        return False

    async def _in_parts(
        self, url: objects.Url, over: str | None, count: int, send: Callable[[str, int], Awaitable[_Part]]
    ) -> None:
        """Upload parts, several at once; whatever happens, nothing of them stays unless all became the object."""
        upload = (await self._write(url, partial(self._send, "create_multipart_upload", url)))["UploadId"]

        async def complete(given: dict[str, Any]) -> None:
            try:
                await self._send("complete_multipart_upload", url, **given)
            except Exception as error:
                response: dict[str, Any] = getattr(error, "response", None) or {}
                if response.get("Error", {}).get("Code") == "ConditionalRequestConflict":
                    # S3 asks for all parts again then, after a look at what is there.
                    raise objects.OtherObjectError("another write was under way") from None
                raise

        async def give_up() -> None:
            # What is under way is the better message, and gc sweeps the upload.
            with contextlib.suppress(Exception):
                await self.abort(url, upload)

        try:
            parts = await _together([partial(send, upload, index) for index in range(count)])
            given = {"UploadId": upload, "MultipartUpload": {"Parts": parts}, **_condition(over)}
            try:
                await self._write(url, partial(complete, given))
            except NotFoundError:
                # The upload is gone: an earlier try has made the object of it and its answer was lost, or
                # somebody aborted it. What is there says which.
                raise objects.OtherObjectError("its upload is gone") from None
        except BaseException:
            # Shielded: also when whoever waits for us was interrupted.
            await asyncio.shield(give_up())
            raise

    async def _copy_part(
        self, source: objects.Url, found: objects.RemoteObject, url: objects.Url, upload: str, index: int
    ) -> _Part:
        start = index * _COPIED
        stop = min(start + _COPIED, found.size)
        given = {"UploadId": upload, "PartNumber": index + 1, **_copied(source, found)}
        if stop - start < found.size:
            given["CopySourceRange"] = f"bytes={start}-{stop - 1}"
        request = partial(self._send, "upload_part_copy", url, **given)
        answer = await self._copy(source, found, url, request)
        return {"PartNumber": index + 1, "ETag": answer["CopyPartResult"]["ETag"]}

    async def _send(self, method: str, url: objects.Url, **given: Any) -> Any:
        key, _, version = url.path.partition(_VERSION)
        if version:
            given["VersionId"] = version
        return await self._call(method, Bucket=url.bucket, Key=key, **given)

    async def _call(self, method: str, **given: Any) -> Any:
        await self.session()
        client = await self._fs.get_s3(given["Bucket"])
        operation = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[method])
        # What storage_options say of all requests, such as who pays, where the operation knows it.
        usual = {**self._fs.s3_additional_kwargs, **self._fs.req_kw}
        known = {name: value for name, value in usual.items() if name in operation.input_shape.members}
        answer = await getattr(client, method)(**known, **given)
        self.reached = True
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 200)
        if not 200 <= status < 300:
            raise objects.HttpStatusError(status, method)
        return answer


async def _together(requests: list[Callable[[], Awaitable[_Part]]]) -> list[_Part]:
    """Return what all requests give, in their order; after a failure none is under way any more."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(request: Callable[[], Awaitable[_Part]]) -> _Part:
        async with turn:
            return await request()

    tasks = [asyncio.ensure_future(one(request)) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _found(path: str, size: int, token: str, answer: dict[str, Any]) -> objects.RemoteObject:
    time: datetime | None = answer.get("LastModified")
    return objects.RemoteObject(path=path, size=size, token=token, modified=time and time.timestamp())


def _etag_token(etag: str | None) -> str:
    return "etag:" + etag.strip('"') if etag else ""


def _token(answer: dict[str, Any], url: objects.Url) -> str:
    version = url.path.partition(_VERSION)[2]
    return _etag_token(answer.get("ETag")) + (f",version:{version}" if version else "")


def _quoted(token: str) -> str:
    return f'"{token.partition(",version:")[0].removeprefix("etag:")}"'


def _planned(planned: objects.RemoteObject) -> dict[str, str]:
    return {"IfMatch": _quoted(planned.token)} if planned.token.startswith("etag:") else {}


def _condition(over: str | None) -> dict[str, str]:
    return {"IfNoneMatch": "*"} if over is None else {"IfMatch": _quoted(over)}


def _copied(source: objects.Url, found: objects.RemoteObject) -> dict[str, Any]:
    return {
        "CopySource": {"Bucket": source.bucket, "Key": source.path},
        "CopySourceIfMatch": _quoted(found.token),
    }


def _require_version(answer: dict[str, Any], url: objects.Url, planned: objects.RemoteObject) -> None:
    token = _token(answer, url)
    if planned.token.startswith("etag:") and token != planned.token:
        raise objects.OtherObjectError(f"its version is {token}, expected {planned.token}")


_FIELDS: Final = "name,size,generation,contentEncoding,updated"
_TYPE: Final = "application/octet-stream"


class BusyError(ConnectionError):
    """Another request for the same object is under way."""


@final
class GcsClient(BucketClient):
    """Requests with the credentials of gcsfs. Tokens are generations, and every request names the planned one.

    An object of whatever size is one request: a file is sent as it is read, never held in memory. So there is nothing
    unfinished that could be left.
    """

    pinned = ("generation:",)
    credentials = (
        "Credentials were looked up where Google's tools look: GOOGLE_APPLICATION_CREDENTIALS, the login of gcloud, "
        "the account of this machine, then anonymous access. Others are given by storage_options: {token: {env: NAME}} "
        "(the path of a key file, or an access token), a public bucket is read with storage_options: {token: anon}"
    )

    def __init__(self, filesystem: Any, options: Mapping[str, Any], failures: Failures) -> None:
        super().__init__(filesystem, options, failures)
        self._api: str = self._fs.base  # https://storage.googleapis.com/storage/v1/
        self._host = self._api.removesuffix("/storage/v1/")
        given = {"client_kwargs": self._fs.session_kwargs, "skip_instance_cache": True}
        self._web: Any = fsspec.filesystem("http", **given)

    async def session(self) -> Any:
        self._session = await self._web.set_session()
        return self._session

    async def _stat(self, url: objects.Url) -> objects.RemoteObject:
        return _of_item(await self._json("GET", self._api + _object(url), {"fields": _FIELDS}))

    async def _page(self, url: objects.Url, flat: bool, mark: str | None) -> objects.ListPage:
        fields = f"nextPageToken,prefixes,items({_FIELDS})"
        asked = {"maxResults": "1000", "fields": fields, "prefix": url.path}
        asked |= {"delimiter": "/"} if flat else {}
        asked |= {} if mark is None else {"pageToken": mark}
        answer = await self._json("GET", f"{self._api}b/{url.bucket}/o", asked)
        folders = [objects.RemoteObject(path=path, size=0, token="") for path in answer.get("prefixes", ())]
        return [*folders, *map(_of_item, answer.get("items", ()))], answer.get("nextPageToken")

    async def _fetch(
        self, url: objects.Url, buffer: objects.RangeBuffer, planned: objects.RemoteObject
    ) -> None:
        async with self._media(url, planned, {"Range": buffer.header}) as answer:
            await take_range(answer, buffer, planned)

    async def _download(
        self, url: objects.Url, write: objects.Write, planned: objects.RemoteObject | None
    ) -> None:
        async with self._media(url, planned, {}) as answer:
            hashes = ",".join(answer.headers.getall("x-goog-hash", [])).split(",")
            stated = {name.strip(): value for name, _, value in (each.partition("=") for each in hashes)}
            crc = _crc32c() if "crc32c" in stated else None

            def checked(data: bytes) -> None:
                if crc is not None:
                    crc.update(data)
                write(data)

            await objects.pour(answer.content.read, checked, total_size(answer), planned)
            got = None if crc is None else base64.b64encode(crc.digest()).decode()
            if got not in (None, stated.get("crc32c")):
                raise objects.DamagedBodyError(f"its CRC32C is {got}, the storage says {stated['crc32c']}")

    async def put(self, url: objects.Url, payload: objects.Payload, over: str | None) -> None:
        mark = secrets.token_hex(16)  # bytes that end the body early would have to hold it
        about = {"name": url.path, "md5Hash": payload.md5s[0], "contentType": _TYPE}
        head = (
            f"--{mark}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(about)}\r\n"
            f"--{mark}\r\nContent-Type: {_TYPE}\r\n\r\n"
        ).encode()
        tail = f"\r\n--{mark}--\r\n".encode()
        headers = {
            "Content-Type": f"multipart/related; boundary={mark}",
            "Content-Length": str(len(head) + payload.size + len(tail)),
        }

        async def body() -> AsyncGenerator[bytes]:
            yield head
            for start in range(0, payload.size, objects.PIECE):
                yield await asyncio.to_thread(payload.read, start, objects.PIECE)
            yield tail

        async def send() -> bytes:
            place = f"{self._host}/upload/storage/v1/b/{url.bucket}/o"
            asked = {"uploadType": "multipart", **_generation_match(over)}
            return await self._send("POST", place, asked, headers, body())

        await self._write(url, send, payload.size)

    async def copy(
        self,
        source: objects.Url,
        found: objects.RemoteObject,
        url: objects.Url,
        over: str | None,
        *,
        whole: bool = True,
    ) -> None:
        place = f"{self._api}{_object(source)}/rewriteTo/{_object(url)}"
        generation = _generation(found.token)
        asked = {
            "ifSourceGenerationMatch": generation,
            "sourceGeneration": generation,
            **_generation_match(over),
        }
        while True:
            answer = await self._copy(source, found, url, partial(self._json, "POST", place, dict(asked)))
            if answer["done"]:
                return
            asked["rewriteToken"] = answer["rewriteToken"]

    async def delete(self, url: objects.Url) -> None:
        with contextlib.suppress(NotFoundError):
            await self._write(
                url, partial(self._send, "DELETE", self._api + _object(url), {}), done="deleted"
            )

    def other_token(self, token: str) -> str:
        return f"generation:{int(_generation(token)) + 1}"

    @asynccontextmanager
    async def _media(
        self, url: objects.Url, planned: objects.RemoteObject | None, headers: dict[str, str]
    ) -> AsyncGenerator[Any]:
        """Ask for the bytes of an object, of the planned generation where that is known."""
        generation = _generation(planned.token) if planned and self.pins(planned.token) else ""
        asked = {"alt": "media"} | ({"ifGenerationMatch": generation} if generation else {})
        # Accepting gzip keeps an object that is stored as such from being decompressed on the way.
        headers = {**headers, "Accept-Encoding": "gzip"}
        place = f"{self._host}/download/storage/v1/{_object(url)}"
        async with self._request("GET", place, asked, headers, **REQUEST) as answer:
            require_success(answer)
            self.reached = True
            got = answer.headers.get("x-goog-generation", generation)
            if generation and got != generation:
                raise objects.OtherObjectError(f"its generation is {got}, expected {generation}")
            yield answer

    async def _json(self, method: str, place: str, asked: dict[str, str]) -> Any:
        return json.loads(await self._send(method, place, asked))

    async def _send(
        self,
        method: str,
        place: str,
        asked: dict[str, str],
        headers: dict[str, str] | None = None,
        body: AsyncGenerator[bytes] | None = None,
    ) -> bytes:
        given: dict[str, Any] = {} if body is None else {"data": body}
        if method != "GET":
            given["timeout"] = timeouts(120.0)
            headers = {"Content-Length": "0"} if headers is None else headers
        async with self._request(method, place, asked, headers or {}, **given) as answer:
            if answer.status == 409:
                raise BusyError(f"HTTP status 409 {answer.reason}")
            text = await answer.text(errors="replace") if answer.status == 400 else ""
            if "match" in text and ("MD5" in text or "CRC32C" in text):  # which is worth another try
                raise objects.DamagedBodyError("the storage got other bytes than were sent (MD5)")
            require_success(answer)
            self.reached = True
            return await answer.read()

    @asynccontextmanager
    async def _request(
        self, method: str, place: str, asked: dict[str, str], headers: dict[str, str], **given: Any
    ) -> AsyncGenerator[Any]:
        import yarl  # comes with aiohttp

        session = await self.session()
        if payer := self._fs.requester_pays:
            asked = {**asked, "userProject": payer if isinstance(payer, str) else self._fs.project}
        headers = {**headers, "User-Agent": "tokenlake"}
        self._fs.credentials.apply(headers)
        arguments = {"timeout": timeouts(), **given, "params": asked, "headers": headers}
        # Encoded: %2F in an object's name must stay.
        request = session.request(method, yarl.URL(place, encoded=True), **arguments)
        if method == "GET":
            async with answered_in_time():  # the headers; what is sent has patience of its own
                answer = await request
        else:
            answer = await request
        async with answer:
            yield answer


def _crc32c() -> Any:
    """Return a checksum to be updated; None without a fast one on this machine: readers check hashes of their own."""
    try:
        import google_crc32c  # comes with gcsfs
    except ImportError:
        return None
    return google_crc32c.Checksum() if google_crc32c.implementation == "c" else None


def _object(url: objects.Url) -> str:
    return f"b/{url.bucket}/o/{quote(url.path, safe='')}"


def _generation(token: str) -> str:
    return token.removeprefix("generation:")


def _generation_match(over: str | None) -> dict[str, str]:
    return {"ifGenerationMatch": "0" if over is None else _generation(over)}


def _of_item(item: dict[str, Any]) -> objects.RemoteObject:
    return objects.RemoteObject(
        path=item["name"],
        size=int(item.get("size", 0)),
        token=f"generation:{item['generation']}",
        packed=item.get("contentEncoding", ""),
        modified=datetime.fromisoformat(item["updated"]).timestamp() if "updated" in item else None,
    )
