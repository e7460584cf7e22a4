"""Writes to S3 and what speaks like it, through s3fs: ``If-None-Match: *``, ``If-Match``, Content-MD5."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, cast, final

from tokenlake.errors import NotFoundError
from tokenlake.store.remote.content import Content, content_of
from tokenlake.store.remote.objects import Found, Objects, OtherObjectError, SourceChangedError
from tokenlake.store.remote.retry import HttpStatusError, Patience
from tokenlake.store.remote.url import Url
from tokenlake.store.remote.writes import AT_ONCE, Upload, Writes

_COPIED: Final = 1 << 30  # bytes that are copied at once
_Part = dict[str, Any]


@final
class S3Writes(Writes):
    """Puts, and uploads in parts, whose completion has the condition; tokens are ETags.

    A copy is one request where the service keeps the create-only condition of CopyObject, which not all do; else, and
    where it is large or replaces an object, it is an upload in parts as well.
    """

    parts = True

    def __init__(self, filesystem: Any, objects: Objects, patience: Patience) -> None:
        super().__init__(objects, patience)
        self._fs = filesystem

    async def put(self, url: Url, content: Content, over: str | None) -> None:
        md5, *more = content.md5s
        if more:
            await self._in_parts(url, over, len(content.md5s), partial(self._send, url, content))
            return
        given = {"Body": content.part(0), "ContentMD5": md5, **_condition(over)}
        await self._ask(url, partial(self._call, "put_object", url, **given), content.size)

    async def put_in_parts(self, url: Url, data: bytes, over: str | None) -> None:
        await self._in_parts(url, over, 1, partial(self._send, url, content_of(data)))

    async def copy(self, source: Url, found: Found, url: Url, over: str | None) -> None:
        count = max(-(-found.size // _COPIED), 1)
        if self.whole_copies and count == 1 and over is None:
            await self._copy_whole(source, found, url)
            return
        await self._in_parts(url, over, count, partial(self._copy, source, found, url))

    async def delete(self, url: Url) -> None:
        await self._ask(url, partial(self._call, "delete_object", url), done="deleted")

    def wrong(self, token: str) -> str:
        return "etag:" + ("0" * 32 if token != "etag:" + "0" * 32 else "1" * 32)

    async def uploads(self, url: Url) -> list[Upload]:
        found: list[Upload] = []
        marks: dict[str, str] = {}
        while True:
            asked = {"Bucket": _bucket(url), "Prefix": url.path, **marks}
            request = partial(self._fs._call_s3, "list_multipart_uploads", **asked)
            answer = await self._ask(url, request, done="listed")
            found += (
                Upload(path=one["Key"], id=one["UploadId"], begun=one["Initiated"].timestamp())
                for one in answer.get("Uploads", ())
            )
            if not answer.get("IsTruncated"):
                return found
            marks = {
                "KeyMarker": answer["NextKeyMarker"],
                "UploadIdMarker": answer.get("NextUploadIdMarker", ""),
            }

    async def abort(self, url: Url, upload: str) -> bool:
        request = partial(self._call, "abort_multipart_upload", url, UploadId=upload)
        try:
            await self._ask(url, request, done="removed")
        except NotFoundError:
            return False
        return True

    async def _in_parts(
        self, url: Url, over: str | None, count: int, send: Callable[[str, int], Awaitable[_Part]]
    ) -> None:
        """Upload parts, several at once; whatever happens, nothing of them stays unless all became the object."""
        upload = (await self._ask(url, partial(self._call, "create_multipart_upload", url)))["UploadId"]
        try:
            parts = await _together([partial(send, upload, index) for index in range(count)])
            given = {"UploadId": upload, "MultipartUpload": {"Parts": parts}, **_condition(over)}
            try:
                await self._ask(url, partial(self._complete, url, given))
            except NotFoundError:
                # The upload is gone: an earlier try has made the object of it and its answer was lost, or
                # somebody aborted it. What is there says which.
                raise OtherObjectError("its upload is gone") from None
        except BaseException:
            # Shielded: also when whoever waits for us was interrupted.
            await asyncio.shield(self._give_up(url, upload))
            raise

    async def _complete(self, url: Url, given: dict[str, Any]) -> None:
        try:
            await self._call("complete_multipart_upload", url, **given)
        except Exception as error:
            if _code(error) == "ConditionalRequestConflict":
                # S3 asks for all parts again then, after a look at what is there.
                raise OtherObjectError("another write was under way") from None
            raise

    async def _give_up(self, url: Url, upload: str) -> None:
        # What is under way is the better message, and gc sweeps the upload.
        with contextlib.suppress(Exception):
            await self.abort(url, upload)

    async def _send(self, url: Url, content: Content, upload: str, index: int) -> _Part:
        data = await asyncio.to_thread(content.part, index)
        given = {"UploadId": upload, "PartNumber": index + 1, "Body": data, "ContentMD5": content.md5s[index]}
        answer = await self._ask(url, partial(self._call, "upload_part", url, **given), len(data))
        return {"PartNumber": index + 1, "ETag": answer["ETag"]}

    async def _copy_whole(self, source: Url, found: Found, url: Url) -> None:
        given = _copied(source, found) | _condition(None)
        try:
            await self._ask(url, partial(self._call, "copy_object", url, **given))
        except NotFoundError as error:
            raise SourceChangedError(str(error)) from None
        except OtherObjectError:
            # The same status for the source's condition and the target's.
            now = await self._ask(source, partial(self.objects.stat, source), done="read")
            if now.token != found.token:
                raise SourceChangedError(f"{now.token}, read was {found.token}") from None
            raise

    async def _copy(self, source: Url, found: Found, url: Url, upload: str, index: int) -> _Part:
        start = index * _COPIED
        stop = min(start + _COPIED, found.size)
        given = {"UploadId": upload, "PartNumber": index + 1, **_copied(source, found)}
        if stop - start < found.size:
            given["CopySourceRange"] = f"bytes={start}-{stop - 1}"
        try:
            answer = await self._ask(url, partial(self._call, "upload_part_copy", url, **given))
        except (OtherObjectError, NotFoundError) as error:
            raise SourceChangedError(str(error)) from None
        return {"PartNumber": index + 1, "ETag": answer["CopyPartResult"]["ETag"]}

    async def _call(self, method: str, url: Url, **given: Any) -> Any:
        answer = await self._fs._call_s3(method, Bucket=_bucket(url), Key=url.path, **given)
        self.objects.reached = True
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 200)
        if not 200 <= status < 300:
            raise HttpStatusError(status, method)
        return answer


async def _together(requests: list[Callable[[], Awaitable[_Part]]]) -> list[_Part]:
    """Return what all requests give, in their order; after a failure none is under way any more."""
    found: list[_Part | None] = [None] * len(requests)
    left = iter(enumerate(requests))

    async def work() -> None:
        for index, request in left:
            found[index] = await request()

    workers = [asyncio.ensure_future(work()) for _ in range(AT_ONCE)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [part for part in found if part is not None]


def _code(error: BaseException) -> str:
    """Return S3's name for a failure, "" where it has none."""
    cause: BaseException | None = error
    while cause is not None:
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            return str(cast("dict[str, Any]", response).get("Error", {}).get("Code", ""))
        cause = cause.__cause__
    return ""


def _copied(source: Url, found: Found) -> dict[str, Any]:
    return {
        "CopySource": {"Bucket": _bucket(source), "Key": source.path},
        "CopySourceIfMatch": f'"{_etag(found.token)}"',
    }


def _bucket(url: Url) -> str:
    return url.root.partition("://")[2]


def _etag(token: str) -> str:
    return token.removeprefix("etag:")


def _condition(over: str | None) -> dict[str, str]:
    return {"IfNoneMatch": "*"} if over is None else {"IfMatch": f'"{_etag(over)}"'}
