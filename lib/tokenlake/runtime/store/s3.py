"""Objects of S3 and of compatible storages.

ETags are the conditions of requests, and MD5 sums the checks.

Requests go through the client of s3fs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, final

from tokenlake.errors import NotFoundError
from tokenlake.runtime.store import objects
from tokenlake.runtime.store.bucket_client import BucketClient
from tokenlake.runtime.store.payload import Payload
from tokenlake.runtime.store.rates import answered_in_time
from tokenlake.runtime.store.url import Url

_VERSION: Final = "?versionId="
_COPIED: Final = 1 << 30  # bytes of a part of a copy
# Requests are repeated by ObjectClient, which knows their progress; two layers would
# multiply the tries.
_CLIENT: Final = {
    "retries": {"mode": "standard", "total_max_attempts": 1},
    "max_pool_connections": 32,
}
_AT_ONCE: Final = 4  # parts of one object that are under way at once
_Part = dict[str, Any]  # number and ETag of an uploaded part


@final
class S3Client(BucketClient):
    """Requests to S3.

    Tokens are ETags, with the version if the URL names one (``?versionId=``).

    An ETag changes with the bytes; an object that is written again with the same bytes
    keeps it. Large objects are uploads in parts, whose completion has the condition. A
    copy is one request if the service keeps the create-only condition of CopyObject,
    which not all services do. Otherwise, and if it is large or replaces an object, a
    copy is an upload in parts, too.
    """

    in_parts = True
    pinned = ("etag:",)
    credentials = (
        "Credentials were searched for in the places that AWS's tools use: AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, the profiles in ~/.aws, the role of this container or machine. Give others in "
        "storage_options: {key: {env: NAME}, secret: {env: NAME}}, read a public bucket with storage_options: "
        "{anon: true}"
    )

    @classmethod
    def arguments(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        # Settings of botocore in the options replace ours.
        config = {**_CLIENT, **options.get("config_kwargs", {})}
        return {**options, "config_kwargs": config}

    async def _stat(self, url: Url) -> objects.RemoteObject:
        answer = await self._send("head_object", url)
        return _remote_object(
            url.path, answer["ContentLength"], _token(answer, url), answer
        )

    async def _page(self, url: Url, flat: bool, mark: str | None) -> objects.ListPage:
        options = {"Delimiter": "/"} if flat else {}
        if mark is not None:
            options["ContinuationToken"] = mark
        answer = await self._call(
            "list_objects_v2", Bucket=url.bucket, Prefix=url.path, **options
        )
        # Folders of the listing have only a path. Then come its objects.
        page: list[objects.RemoteObject] = []
        for folder in answer.get("CommonPrefixes", ()):
            page.append(objects.RemoteObject(path=folder["Prefix"], size=0, token=""))
        for file in answer.get("Contents", ()):
            token = _etag_token(file.get("ETag"))
            page.append(_remote_object(file["Key"], file["Size"], token, file))
        if answer.get("IsTruncated"):
            return page, answer["NextContinuationToken"]
        return page, None

    async def _fetch(
        self, url: Url, buffer: objects.RangeBuffer, planned: objects.RemoteObject
    ) -> None:
        async with answered_in_time():
            answer = await self._send(
                "get_object", url, Range=buffer.header, **_if_planned(planned)
            )
        # A damaged or wrong answer is found before its bytes are used: version, size,
        # range.
        with contextlib.closing(answer["Body"]) as body:
            _require_version(answer, url, planned)
            span, _, total = answer.get("ContentRange", "").rpartition("/")
            objects.require_size(int(total) if total.isdigit() else None, planned)
            if span and span.replace(" ", "=") != buffer.header:
                raise objects.ShortBodyError(f"asked for {buffer.header}, got {span}")
            await buffer.fill(body.read)

    async def _download(
        self, url: Url, write: objects.Write, planned: objects.RemoteObject | None
    ) -> None:
        condition = {} if planned is None else _if_planned(planned)
        async with answered_in_time():
            answer = await self._send("get_object", url, **condition)
        with contextlib.closing(answer["Body"]) as body:
            if planned is not None:
                _require_version(answer, url, planned)
            await objects.pour(body.read, write, answer["ContentLength"], planned)

    async def put(self, url: Url, payload: Payload, over: str | None) -> None:
        # A part is read when it is sent, so that only parts under way are in memory.
        async def part(upload: str, index: int) -> _Part:
            data = await asyncio.to_thread(payload.part, index)
            arguments = {"UploadId": upload, "PartNumber": index + 1}
            arguments |= {"Body": data, "ContentMD5": payload.md5s[index]}
            answer = await self._write(
                url, partial(self._send, "upload_part", url, **arguments), len(data)
            )
            return {"PartNumber": index + 1, "ETag": answer["ETag"]}

        if payload.in_parts:
            await self._in_parts(url, over, len(payload.md5s), part)
            return
        arguments = {
            "Body": payload.part(0),
            "ContentMD5": payload.md5s[0],
            **_condition(over),
        }
        await self._write(
            url, partial(self._send, "put_object", url, **arguments), payload.size
        )

    async def copy(
        self,
        source: Url,
        original: objects.RemoteObject,
        url: Url,
        over: str | None,
        *,
        in_one_request: bool = True,
    ) -> None:
        # One request copies a small object. Its condition can only be create-only.
        count = max(-(-original.size // _COPIED), 1)
        if in_one_request and count == 1 and over is None:
            arguments = _copied(source, original) | _condition(None)
            await self._copy(
                source,
                original,
                url,
                partial(self._send, "copy_object", url, **arguments),
            )
            return
        await self._in_parts(
            url, over, count, partial(self._copy_part, source, original, url)
        )

    async def delete(self, url: Url) -> None:
        await self._write(
            url, partial(self._send, "delete_object", url), done="deleted"
        )

    def other_token(self, token: str) -> str:
        zeros = "etag:" + "0" * 32
        return zeros if token != zeros else "etag:" + "1" * 32

    async def uploads(self, url: Url) -> list[tuple[objects.RemoteObject, str]]:
        uploads: list[tuple[objects.RemoteObject, str]] = []
        # Pages of the listing are marked by a key and an upload.
        marks: dict[str, str] = {}
        while True:
            arguments = {"Bucket": url.bucket, "Prefix": url.path, **marks}
            request = partial(self._call, "list_multipart_uploads", **arguments)
            answer = await self._write(url, request, done="listed")
            for upload in answer.get("Uploads", ()):
                begun = {"LastModified": upload["Initiated"]}
                uploads.append(
                    (_remote_object(upload["Key"], 0, "", begun), upload["UploadId"])
                )
            if not answer.get("IsTruncated"):
                return uploads
            marks = {
                "KeyMarker": answer["NextKeyMarker"],
                "UploadIdMarker": answer.get("NextUploadIdMarker", ""),
            }

    async def abort(self, url: Url, upload: str) -> bool:
        request = partial(self._send, "abort_multipart_upload", url, UploadId=upload)
        with contextlib.suppress(NotFoundError):
            await self._write(url, request, done="removed")
            return True
        return False

    async def _in_parts(
        self,
        url: Url,
        over: str | None,
        count: int,
        send: Callable[[str, int], Awaitable[_Part]],
    ) -> None:
        """Upload parts, several at once, and complete the upload.

        If anything fails, the upload is aborted, and no part stays.

        Args:
            url: URL of the object.
            over: Token of the version that is replaced.
            count: Number of parts.
            send: Function of the upload and the index of a part, which sends that part.
        """
        request = partial(self._send, "create_multipart_upload", url)
        upload = (await self._write(url, request))["UploadId"]

        async def complete(arguments: dict[str, Any]) -> None:
            try:
                await self._send("complete_multipart_upload", url, **arguments)
            except Exception as error:
                response: dict[str, Any] = getattr(error, "response", None) or {}
                error_code = response.get("Error", {}).get("Code")
                if error_code == "ConditionalRequestConflict":
                    # S3 wants all parts again then; first the writer looks at the
                    # object that is there.
                    raise objects.OtherObjectError(
                        "another write was in progress"
                    ) from None
                raise

        async def give_up() -> None:
            # The first error is the better message, and gc sweeps the upload.
            with contextlib.suppress(Exception):
                await self.abort(url, upload)

        try:
            sent_parts = await _together(
                [partial(send, upload, index) for index in range(count)]
            )
            arguments = {
                "UploadId": upload,
                "MultipartUpload": {"Parts": sent_parts},
                **_condition(over),
            }
            try:
                await self._write(url, partial(complete, arguments))
            except NotFoundError:
                # An earlier try made the object of the upload and its answer was lost,
                # or somebody aborted it. The object that is there says which.
                raise objects.OtherObjectError("its upload no longer exists") from None
        except BaseException:
            # Shielded: the abort must also run when the caller was interrupted.
            await asyncio.shield(give_up())
            raise

    async def _copy_part(
        self,
        source: Url,
        original: objects.RemoteObject,
        url: Url,
        upload: str,
        index: int,
    ) -> _Part:
        """Copy one part of an object, and return its number and ETag."""
        # The range is left out for a copy of all bytes, which need not have any.
        first_byte = index * _COPIED
        end_byte = min(first_byte + _COPIED, original.size)
        arguments = {
            "UploadId": upload,
            "PartNumber": index + 1,
            **_copied(source, original),
        }
        if end_byte - first_byte < original.size:
            arguments["CopySourceRange"] = f"bytes={first_byte}-{end_byte - 1}"
        request = partial(self._send, "upload_part_copy", url, **arguments)
        answer = await self._copy(source, original, url, request)
        return {"PartNumber": index + 1, "ETag": answer["CopyPartResult"]["ETag"]}

    async def _send(self, method: str, url: Url, **arguments: Any) -> Any:
        """Send a request about an object, of the version that its URL names."""
        key, _, version = url.path.partition(_VERSION)
        if version:
            arguments["VersionId"] = version
        return await self._call(method, Bucket=url.bucket, Key=key, **arguments)

    async def _call(self, method: str, **arguments: Any) -> Any:
        """Send a request with the client of s3fs, and return its answer."""
        await self.session()
        client = await self._fs.get_s3(arguments["Bucket"])
        operation = client.meta.service_model.operation_model(
            client.meta.method_to_api_mapping[method]
        )
        # Arguments of storage_options for all requests, such as the payer, if the
        # operation has them.
        settings = {**self._fs.s3_additional_kwargs, **self._fs.req_kw}
        known_names = operation.input_shape.members
        common = {
            name: value for name, value in settings.items() if name in known_names
        }
        answer = await getattr(client, method)(**common, **arguments)
        self.reached = True
        # botocore raises an error for most of these; some compatible services answer
        # oddly.
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 200)
        if not 200 <= status < 300:
            raise objects.HttpStatusError(status, method)
        return answer


async def _together(requests: list[Callable[[], Awaitable[_Part]]]) -> list[_Part]:
    """Return the results of all requests, in their order.

    After a failure the others are cancelled.
    """
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(request: Callable[[], Awaitable[_Part]]) -> _Part:
        async with turn:
            return await request()

    tasks = [asyncio.ensure_future(one(request)) for request in requests]
    # The tasks are waited for, also after a failure: none may send anything later.
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _remote_object(
    path: str, size: int, token: str, answer: dict[str, Any]
) -> objects.RemoteObject:
    """Return an object; `answer` has its time of change."""
    modified: datetime | None = answer.get("LastModified")
    seconds = None if modified is None else modified.timestamp()
    return objects.RemoteObject(path=path, size=size, token=token, modified=seconds)


def _etag_token(etag: str | None) -> str:
    """Return the token of an ETag; "" for an object without one."""
    if not etag:
        return ""
    return "etag:" + etag.strip('"')


def _token(answer: dict[str, Any], url: Url) -> str:
    """Return the token of an answer: its ETag, and the version that the URL names."""
    token = _etag_token(answer.get("ETag"))
    version = url.path.partition(_VERSION)[2]
    return f"{token},version:{version}" if version else token


def _quoted_etag(token: str) -> str:
    """Return the ETag of a token, in the quotes that the headers need."""
    etag = token.partition(",version:")[0].removeprefix("etag:")
    return f'"{etag}"'


def _if_planned(planned: objects.RemoteObject) -> dict[str, str]:
    """Return the condition of a request for a planned version."""
    if not planned.token.startswith("etag:"):
        return {}
    return {"IfMatch": _quoted_etag(planned.token)}


def _condition(over: str | None) -> dict[str, str]:
    """Return the condition of a write."""
    if over is None:
        return {"IfNoneMatch": "*"}
    return {"IfMatch": _quoted_etag(over)}


def _copied(source: Url, original: objects.RemoteObject) -> dict[str, Any]:
    """Return the arguments that name one version of the source of a copy."""
    return {
        "CopySource": {"Bucket": source.bucket, "Key": source.path},
        "CopySourceIfMatch": _quoted_etag(original.token),
    }


def _require_version(
    answer: dict[str, Any], url: Url, planned: objects.RemoteObject
) -> None:
    """Raise OtherObjectError if an answer is of another version than planned."""
    token = _token(answer, url)
    if planned.token.startswith("etag:") and token != planned.token:
        raise objects.OtherObjectError(
            f"its version is {token}, expected {planned.token}"
        )
