"""Objects of S3 and what speaks like it, through s3fs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, final

from tokenlake.store.remote.objects import CHUNK, Found, Objects, OtherObjectError, Page, Sink, Write, pour
from tokenlake.store.remote.retry import Failures, ShortBodyError
from tokenlake.store.remote.url import Url

_VERSION = "?versionId="


@final
class S3Objects(Objects):
    """Requests to S3. Tokens are ETags, with the version where the URL names one (``?versionId=``).

    An ETag changes with the bytes, except for an object put again with the same ones.
    """

    credentials = (
        "AWS's usual chain was asked: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the profiles in ~/.aws, the role "
        "of this container or machine. Others are given by storage_options: {key: {env: NAME}, secret: {env: NAME}}, "
        "a public bucket is read with storage_options: {anon: true}"
    )

    def __init__(self, filesystem: Any, failures: Failures) -> None:
        super().__init__(failures)
        self._fs = filesystem

    async def stat(self, url: Url) -> Found:
        answer = await self._call("head_object", url)
        return Found(
            path=url.path,
            size=answer["ContentLength"],
            token=_token(answer, url),
            modified=_seconds(answer.get("LastModified")),
        )

    async def page(self, url: Url, *, flat: bool, mark: str | None) -> Page:
        asked = {"Delimiter": "/"} if flat else {}
        if mark is not None:
            asked["ContinuationToken"] = mark
        answer = await self._fs._call_s3("list_objects_v2", Bucket=_bucket(url), Prefix=url.path, **asked)
        self.reached = True
        found = [Found(path=one["Prefix"], size=0, token="") for one in answer.get("CommonPrefixes", ())]
        found += [
            Found(
                path=one["Key"],
                size=one["Size"],
                token=_etag(one.get("ETag")),
                modified=_seconds(one.get("LastModified")),
            )
            for one in answer.get("Contents", ())
        ]
        return Page(found, answer["NextContinuationToken"] if answer.get("IsTruncated") else None)

    async def fetch(self, url: Url, sink: Sink, planned: Found) -> None:
        wanted = {"Range": f"bytes={sink.at}-{sink.stop - 1}", **_condition(planned.token)}
        answer = await self._call("get_object", url, **wanted)
        body = answer["Body"]
        try:
            _check(answer, url, sink, planned)
            while sink.left and (chunk := await body.read(CHUNK)):
                sink.put(chunk)
        finally:
            body.close()
        if sink.left:
            raise ShortBodyError(f"the body ended at byte {sink.at}, {sink.left} before its end")

    async def download(self, url: Url, write: Write, planned: Found | None) -> None:
        answer = await self._call("get_object", url, **({} if planned is None else _condition(planned.token)))
        body = answer["Body"]
        try:
            if planned is not None:
                _check_version(answer, url, planned)
            await pour(body.read, write, answer["ContentLength"], planned)
        finally:
            body.close()

    def pins(self, token: str) -> bool:
        return token.startswith("etag:")

    async def _call(self, method: str, url: Url, **arguments: Any) -> Any:
        key, _, version = url.path.partition(_VERSION)
        if version:
            arguments["VersionId"] = version
        answer = await self._fs._call_s3(method, Bucket=_bucket(url), Key=key, **arguments)
        self.reached = True
        return answer


def _bucket(url: Url) -> str:
    return url.root.partition("://")[2]


def _seconds(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()


def _etag(etag: str | None) -> str:
    return "etag:" + etag.strip('"') if etag else ""


def _token(answer: dict[str, Any], url: Url) -> str:
    version = url.path.partition(_VERSION)[2]
    return _etag(answer.get("ETag")) + (f",version:{version}" if version else "")


def _condition(token: str) -> dict[str, str]:
    etag = token.partition(",version:")[0].removeprefix("etag:")
    return {"IfMatch": f'"{etag}"'} if token.startswith("etag:") else {}


def _check_version(answer: dict[str, Any], url: Url, planned: Found) -> None:
    token = _token(answer, url)
    if planned.token.startswith("etag:") and token != planned.token:
        raise OtherObjectError(f"its version is {token}, planned was {planned.token}")


def _check(answer: dict[str, Any], url: Url, sink: Sink, planned: Found) -> None:
    _check_version(answer, url, planned)
    span, _, total = answer.get("ContentRange", "").rpartition("/")
    if total.isdigit() and int(total) != planned.size:
        raise OtherObjectError(f"it has {total} bytes, planned were {planned.size}")
    if span and span != f"bytes {sink.at}-{sink.stop - 1}":
        raise ShortBodyError(f"asked for bytes {sink.at}-{sink.stop - 1}, got {span}")
