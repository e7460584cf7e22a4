"""A trial of what publishing rests on: that a storage refuses what must not happen.

Some services take the conditions of a request and ignore them. There two builds could overwrite one another
in silence; so each process tries once, with an object of its own, before it writes.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Final

from tokenlake.errors import NotFoundError, StoreError
from tokenlake.store.remote.content import content_of
from tokenlake.store.remote.filesystems import on_loop
from tokenlake.store.remote.objects import OtherObjectError, SourceChangedError
from tokenlake.store.remote.retry import Patience
from tokenlake.store.remote.seeing import Kept, see
from tokenlake.store.remote.url import Url, url_of
from tokenlake.store.remote.writes import Writes

PROBE: Final = "_probe-"
"""What the keys of trials begin with; no listing shows them."""

_ADVICE: Final = (
    "Two builds could overwrite one another there in silence, so nothing is written. Use a storage with conditional "
    "writes (AWS S3, Google Cloud Storage, a recent MinIO or R2; with s3fs, a recent botocore), or build into a local "
    "folder and copy it"
)


def try_out(writes: Writes, root: Url, patience: Patience) -> None:
    """See that a second create of a key is refused, and a swap of what is not there any more.

    Raises:
        StoreError: it is not, or the storage cannot be written to.
    """
    url = url_of(root, f"{PROBE}{secrets.token_hex(8)}")
    first, second, third = (f"{word} {url.path}\n".encode() for word in ("first", "second", "third"))
    try:
        _put(writes, url, patience, first, None)
        _refused(writes, url, second, None, "a create-only put of a key that was there was accepted")
        if writes.parts:
            _refused(
                writes,
                url,
                second,
                None,
                "a create-only upload in parts to a key that was there was accepted",
                in_parts=True,
            )
        token = see(writes.objects, url, patience, Kept()).token
        _refused(
            writes, url, second, writes.wrong(token), "a swap of a version that was not there was accepted"
        )
        _put(writes, url, patience, third, token)
    except OtherObjectError:
        raise StoreError(
            f"{root}: a swap of exactly the version that was there was refused. {_ADVICE}.", url=str(root)
        ) from None
    except NotFoundError as error:
        raise StoreError(f"{root}: it cannot be written to: {error}", url=str(root)) from None
    finally:
        _tidy(writes, url)


def keeps_copies(writes: Writes, root: Url, patience: Patience) -> bool:
    """Say whether a create-only copy in one request is refused where there is an object, by a trial.

    Not all services that take the condition keep it; where they do not, or it cannot be tried, copies are uploads in
    parts.
    """
    source, copy = (url_of(root, f"{PROBE}{secrets.token_hex(8)}") for _ in range(2))
    writes.whole_copies = True
    try:
        _put(writes, source, patience, b"original", None)
        found = see(writes.objects, source, patience, Kept())
        on_loop(writes.copy(source, found, copy, None))
        on_loop(writes.copy(source, found, copy, None))
    except OtherObjectError:
        return True
    except (SourceChangedError, StoreError):
        return False
    finally:
        _tidy(writes, source)
        _tidy(writes, copy)
    return False


def _put(writes: Writes, url: Url, patience: Patience, data: bytes, over: str | None) -> None:
    try:
        on_loop(writes.put(url, content_of(data), over))
    except OtherObjectError:
        # Refused may mean that an earlier try went through and its answer was lost.
        found = Kept()
        see(writes.objects, url, patience, found)
        if found.data != data:
            raise


def _refused(
    writes: Writes, url: Url, data: bytes, over: str | None, otherwise: str, *, in_parts: bool = False
) -> None:
    try:
        if in_parts:
            on_loop(writes.put_in_parts(url, data, over))
        else:
            on_loop(writes.put(url, content_of(data), over))
    except OtherObjectError:
        return
    raise StoreError(
        f"{url.root}: the storage does not keep the conditions of a store: {otherwise}; expected a refusal "
        f"(412). {_ADVICE}.",
        url=url.root,
    )


def _tidy(writes: Writes, url: Url) -> None:
    """Remove the trial's object; where that fails, gc finds it."""
    with contextlib.suppress(StoreError):
        on_loop(writes.delete(url))
