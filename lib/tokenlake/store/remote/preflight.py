"""A trial of what publishing rests on: that a storage refuses what must not happen.

Some services take the conditions of a request and ignore them. There two builds could overwrite one another
in silence; so each process tries once, with an object of its own, before it writes.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Final

from tokenlake.errors import NotFoundError, StoreError
from tokenlake.store.remote.filesystems import on_loop
from tokenlake.store.remote.objects import BucketClient, OtherObjectError, Payload, SourceChangedError
from tokenlake.store.remote.transfer import MemoryTarget, read_version
from tokenlake.store.remote.url import Url, url_of

PROBE: Final = "_probe-"
"""What the keys of trials begin with; no listing shows them."""

_ADVICE: Final = (
    "Two builds could overwrite one another there in silence, so nothing is written. Use a storage with conditional "
    "writes (AWS S3, Google Cloud Storage, a recent MinIO or R2; with s3fs, a recent botocore), or build into a local "
    "folder and copy it"
)


def try_out(client: BucketClient, root: Url) -> None:
    """See that a second create of a key is refused, and a swap of what is not there any more.

    Raises:
        StoreError: it is not, or the storage cannot be written to.
    """
    url = _new(root)
    first, second, third = (f"{word} {url.path}\n".encode() for word in ("first", "second", "third"))
    try:
        _put(client, url, first, None)
        _refused(client, url, Payload.of(second), None, "create-only put of a key that exists")
        if client.in_parts:
            parts = Payload.of(second, in_parts=True)
            _refused(client, url, parts, None, "create-only upload in parts to a key that exists")
        token = read_version(client, url, MemoryTarget()).token
        other = client.other_token(token)
        _refused(client, url, Payload.of(second), other, "swap of a version that does not exist")
        _put(client, url, third, token)
    except OtherObjectError:
        raise StoreError(
            f"{root}: it refused to swap the very version that is there. {_ADVICE}.", url=str(root)
        ) from None
    except NotFoundError as error:
        raise StoreError(f"{root}: it cannot be written to: {error}", url=str(root)) from None
    finally:
        _tidy(client, url)


def keeps_copies(client: BucketClient, root: Url) -> bool:
    """Say whether a create-only copy in one request is refused where there is an object, by a trial.

    Not all services that take the condition keep it; where they do not, or it cannot be tried, copies are uploads in
    parts.
    """
    source, copy = _new(root), _new(root)
    client.whole_copies = True
    try:
        _put(client, source, b"original", None)
        found = read_version(client, source, MemoryTarget())
        on_loop(client.copy(source, found, copy, None))
        on_loop(client.copy(source, found, copy, None))
    except OtherObjectError:
        return True
    except (SourceChangedError, StoreError):
        return False
    finally:
        _tidy(client, source)
        _tidy(client, copy)
    return False


def _new(root: Url) -> Url:
    return url_of(root, f"{PROBE}{secrets.token_hex(8)}")


def _put(client: BucketClient, url: Url, data: bytes, over: str | None) -> None:
    try:
        on_loop(client.put(url, Payload.of(data), over))
    except OtherObjectError:
        # Refused may mean that an earlier try went through and its answer was lost.
        found = MemoryTarget()
        read_version(client, url, found)
        if found.data != data:
            raise


def _refused(client: BucketClient, url: Url, payload: Payload, over: str | None, what: str) -> None:
    try:
        on_loop(client.put(url, payload, over))
    except OtherObjectError:
        return
    raise StoreError(
        f"{url.root}: the storage ignores conditional writes: it accepted a {what}; expected a refusal "
        f"(412). {_ADVICE}.",
        url=url.root,
    )


def _tidy(client: BucketClient, url: Url) -> None:
    """Remove the trial's object; where that fails, gc finds it."""
    with contextlib.suppress(StoreError):
        on_loop(client.delete(url))
