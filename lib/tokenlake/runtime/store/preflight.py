"""Trials of conditional writes: whether a storage keeps the conditions of publishing.

Each trial uses an object of its own, whose key begins with ``_probe-``, and removes it.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Final

from tokenlake.errors import NotFoundError, StoreError
from tokenlake.runtime.store import objects
from tokenlake.runtime.store.bucket_client import BucketClient
from tokenlake.runtime.store.downloads import MemoryTarget, read_version
from tokenlake.runtime.store.payload import Payload
from tokenlake.runtime.store.remote import PROBE
from tokenlake.runtime.store.sessions import on_loop
from tokenlake.runtime.store.url import Url, url_of

_ADVICE: Final = (
    "Two builds could silently overwrite each other, so nothing is written. Use a storage with conditional writes "
    "(AWS S3, Google Cloud Storage, a recent MinIO or R2; with s3fs, a recent botocore), or build into a local "
    "folder and copy it"
)


def try_out(client: BucketClient, root: Url) -> None:
    """Check that a storage keeps the conditions of writes.

    1. Create an object.
    2. Create it again, in one request and in parts: both must be refused.
    3. Replace a version that does not exist: it must be refused.
    4. Replace the version that exists: it must succeed.

    Raises:
        StoreError: A condition is ignored, or the storage cannot be written to.
    """
    url = _probe_url(root)
    # Three contents, so that the object shows which write it has.
    first_data = f"first {url.path}\n".encode()
    second_data = f"second {url.path}\n".encode()
    third_data = f"third {url.path}\n".encode()
    try:
        # 1. Create the object.
        _put(client, url, first_data, None)
        # 2. Create it again.
        _require_refusal(
            client,
            url,
            Payload.of(second_data),
            None,
            "create-only put of a key that exists",
        )
        if client.in_parts:
            payload_in_parts = Payload.of(second_data, in_parts=True)
            _require_refusal(
                client,
                url,
                payload_in_parts,
                None,
                "create-only upload in parts to a key that exists",
            )
        # 3. Replace a version that does not exist.
        token = read_version(client, url, MemoryTarget()).token
        other = client.other_token(token)
        _require_refusal(
            client,
            url,
            Payload.of(second_data),
            other,
            "compare-and-swap of a version that does not exist",
        )
        # 4. Replace the version that exists.
        _put(client, url, third_data, token)
    except objects.OtherObjectError:
        raise StoreError(
            f"{root}: it refused a compare-and-swap of the existing version. {_ADVICE}.",
            url=str(root),
        ) from None
    except NotFoundError as error:
        raise StoreError(
            f"{root}: it cannot be written to: {error}", url=str(root)
        ) from None
    finally:
        _remove(client, url)


def keeps_copies(client: BucketClient, root: Url) -> bool:
    """Return whether the storage refuses a create-only copy over an existing object.

    The copy is one request.

    Not all services that accept this condition keep it. If they do not, or it cannot be
    tried, copies are uploads in parts.
    """
    source = _probe_url(root)
    copy = _probe_url(root)
    # The first copy creates the object, the second one must be refused.
    try:
        _put(client, source, b"original", None)
        version = read_version(client, source, MemoryTarget())
        on_loop(client.copy(source, version, copy, None))
        on_loop(client.copy(source, version, copy, None))
    except objects.OtherObjectError:
        return True
    except (objects.SourceChangedError, StoreError):
        return False
    finally:
        _remove(client, source)
        _remove(client, copy)
    return False


def _probe_url(root: Url) -> Url:
    """Return the URL of a new trial object."""
    return url_of(root, f"{PROBE}{secrets.token_hex(8)}")


def _put(client: BucketClient, url: Url, data: bytes, over: str | None) -> None:
    """Write an object that the storage must accept."""
    try:
        on_loop(client.put(url, Payload.of(data), over))
    except objects.OtherObjectError:
        # An earlier try may have succeeded, and its answer was lost.
        target = MemoryTarget()
        read_version(client, url, target)
        if target.data != data:
            raise


def _require_refusal(
    client: BucketClient, url: Url, payload: Payload, over: str | None, action: str
) -> None:
    """Write an object that the storage must refuse; StoreError if it accepts it."""
    try:
        on_loop(client.put(url, payload, over))
    except objects.OtherObjectError:
        return
    raise StoreError(
        f"{url.root}: the storage ignores conditional writes: it accepted a {action}; expected a refusal "
        f"(412). {_ADVICE}.",
        url=url.root,
    )


def _remove(client: BucketClient, url: Url) -> None:
    """Remove the object of a trial; if that fails, gc finds it."""
    with contextlib.suppress(StoreError):
        on_loop(client.delete(url))
