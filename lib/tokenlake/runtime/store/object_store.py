"""A store in a bucket: S3 and Google Cloud Storage.

Publishing, always the same: temporary file on this machine, re-read and compare sha256, one create-only put with
checksums, which the service carries out whole or not at all. Where there is an object already, or the answer
was lost and the second try is refused, it is read back: equal is success. What is replaced is replaced by
compare-and-swap of the version that was read.

Some services take the conditions of a request and ignore them. There two builds could overwrite one another in silence;
so each process tries once, with an object of its own, before it writes.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import os
import secrets
import stat
import tempfile
import threading
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, cast, final

from tokenlake.base.threads import in_order
from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.runtime.store import objects
from tokenlake.runtime.store.base import Leftover, Link, Store, caught, looked_twice
from tokenlake.runtime.store.bucket_client import BucketClient
from tokenlake.runtime.store.durable_files import os_errors, remove_temp
from tokenlake.runtime.store.local import LocalStore
from tokenlake.runtime.store.payload import LARGE, Payload
from tokenlake.runtime.store.remote import (
    PROBE,
    MemoryTarget,
    RemoteStore,
    on_loop,
    on_loop_to_its_end,
    read_version,
)
from tokenlake.runtime.store.url import Url, folder_of, url_of
from tokenlake.runtime.store.writes import HashingTarget, Outcome, Put, compare_and_swap

_TRYING: Final = threading.Lock()
_SCRATCH: Final = "scratch"
_UPLOAD: Final = "upload"
_TRIAL: Final = "trial"
_ADVICE: Final = (
    "Two builds could overwrite one another there in silence, so nothing is written. Use a storage with conditional "
    "writes (AWS S3, Google Cloud Storage, a recent MinIO or R2; with s3fs, a recent botocore), or build into a local "
    "folder and copy it"
)


@final
class ObjectStore(RemoteStore, Store):
    """Objects below a URL of a bucket, read as :class:`RemoteStore` does and written with conditions.

    The first write of a process tries out whether the storage keeps conditions (:meth:`preflight`).
    """

    at_once = 32

    def preflight(self) -> None:
        try_out(self._storage(), self._root)
        self._storage().trials[str(self._root)] = True

    def temp(self, prefix: str) -> Path:
        return scratch_of(self.url).temp(prefix)

    def _put(self, puts: Sequence[Put]) -> builtins.list[Outcome]:
        def one(put: Put) -> Outcome:
            with os_errors("publish", put.key), self._payload(put) as payload:
                # Before much is sent a look says whether it need be.
                large = isinstance(put.data, Path) and payload.size >= LARGE

                def send(over: str | None) -> None:
                    on_loop_to_its_end(self._bucket().put(self._at(put.key), payload, over))

                look_first = put.expected is not None or large
                seen = partial(self._seen, put.key)
                return compare_and_swap(put, seen, send, objects.OtherObjectError, look_first=look_first)

        return list(in_order(one, puts, self.at_once))

    @contextlib.contextmanager
    def _payload(self, put: Put) -> Generator[Payload]:
        """Read back what is sent; a temporary file is gone after."""
        if isinstance(put.data, bytes):
            payload = Payload.of(put.data)
            put.require_written(payload.sha256)
            yield payload
            return
        scratch_of(self.url).check_temp(put.data, put.key)
        try:
            with Payload.of_file(put.data, in_parts=self._storage().in_parts) as payload:
                put.require_written(payload.sha256)
                yield payload
        finally:
            remove_temp(put.data)

    def link_all(self, links: Sequence[Link]) -> builtins.list[Outcome | NotFoundError | IntegrityError]:
        return list(in_order(lambda link: caught(lambda: self._copied(link)), links, self.at_once))

    def _copied(self, link: Link) -> Outcome:
        source, target, seen = self._at(link.source), self._at(link.target), link.seen
        if seen is not None and seen.token:
            found = objects.RemoteObject(path=seen.key, size=seen.size, token=seen.token)
        else:
            found = self._source(link)

        def look() -> tuple[str, str] | None:
            with contextlib.suppress(NotFoundError):
                # On S3 a copy has the token of its source.
                if on_loop(self._client().stat(target)).token == found.token:
                    return link.sha256, found.token
            return self._seen(link.target)

        def send(over: str | None) -> None:
            client, name = self._bucket(), f"{self._root} copies"
            with _TRYING:  # whether copies in one request keep conditions
                if client.in_parts and name not in client.trials:
                    client.trials[name] = keeps_copies(client, self._root)
            whole = client.trials.get(name, True)
            on_loop_to_its_end(client.copy(source, found, target, over, whole=whole))

        try:
            return compare_and_swap(link.put(), look, send, objects.OtherObjectError, look_first=False)
        except objects.SourceChangedError as error:
            raise IntegrityError(
                f"cannot reuse {link.source} as {link.target}: it was replaced while it was copied ({error}); nothing "
                "was made. Verify the version it belongs to.",
                file=link.source,
            ) from None

    def delete(self, key: str) -> None:
        url = self._at(key)
        if self.size(key) is None:
            raise NotFoundError(f"cannot delete {url}: there is no such object", key=key)
        on_loop(self._bucket().delete(url))

    def sweep_temp(self, prefix: str) -> int:
        return scratch_of(self.url).sweep_temp(prefix)

    def leftovers(self, prefix: str) -> builtins.list[Leftover]:
        uploads = on_loop(self._storage().uploads(folder_of(self._root, prefix)))
        found = [
            Leftover(f"{_UPLOAD}:{upload}:{self._key(one.path)}", 0, one.modified or 0.0, dead=False)
            for one, upload in uploads
        ]
        # What preflights left behind whose process died.
        trials = [] if prefix else on_loop(self._client().list(self._at(PROBE), flat=True))
        found += [
            Leftover(f"{_TRIAL}:{self._key(one.path)}", one.size, one.modified or 0.0, dead=False)
            for one in trials
            if not one.path.endswith("/")
        ]
        found += [
            Leftover(f"{_SCRATCH}:{one.name}", one.bytes, one.modified, one.dead)
            for one in scratch_of(self.url).leftovers(prefix)
        ]
        return sorted(found, key=lambda one: one.name)

    def remove_leftover(self, leftover: Leftover) -> bool:
        kind, _, name = leftover.name.partition(":")
        if kind == _SCRATCH:
            return scratch_of(self.url).remove_leftover(Leftover(name, 0, 0.0, leftover.dead))
        if kind == _UPLOAD:
            upload, _, key = name.partition(":")
            return on_loop(self._storage().abort(self._at(key), upload))
        if kind == _TRIAL and name.startswith(PROBE):
            there = self.size(name) is not None
            on_loop(self._storage().delete(self._at(name)))
            return there
        told = f"{leftover.name} is neither an upload nor a temporary file; nothing was removed"
        raise StoreError(told, key=leftover.name)

    def _storage(self) -> BucketClient:
        return cast("BucketClient", self._client())

    def _bucket(self) -> BucketClient:
        """Return the storage to write to, which this process has tried out."""
        if str(self._root) not in self._storage().trials:
            self.preflight()
        return self._storage()

    def _source(self, link: Link) -> objects.RemoteObject:
        """Return which version of the source of a link has its hash."""

        def look() -> objects.RemoteObject:
            target = HashingTarget()
            found = read_version(self._client(), self._at(link.source), target)
            if (got := target.finish().sha256) != link.sha256:
                raise link.damaged(got)
            return found

        return looked_twice(look)  # a damaged answer must not look like a damaged object

    def _seen(self, key: str) -> tuple[str, str] | None:
        """Return the hash of what is there and the token of its version; None where there is nothing."""
        target = HashingTarget()
        with contextlib.suppress(NotFoundError):
            token = read_version(self._client(), self._at(key), target).token
            return target.finish().sha256, token
        return None


FOLDER_VARIABLE: Final = "TOKENLAKE_SCRATCH"
"""Environment variable: the folder for temporary files of remote stores; by default the system's temporary one."""


def scratch_of(url: str) -> LocalStore:
    """Return the folder for the store at `url`, where the environment of this process says.

    Raises:
        StoreError: it is another user's, is no folder, or cannot be written.
    """
    base = Path(os.environ.get(FOLDER_VARIABLE) or tempfile.gettempdir()).expanduser().resolve()
    ours = base / f"tokenlake-{os.geteuid()}"
    use = "temporary files of remote stores are written there"
    try:
        base.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            ours.mkdir(mode=0o700)
        found = ours.lstat()
    except OSError as error:
        how = f"Set {FOLDER_VARIABLE} to a folder of your own."
        raise StoreError(f"{ours} cannot be made: {error.strerror}; {use}. {how}") from error
    # It must be of this user alone.
    problem = ""
    if not stat.S_ISDIR(found.st_mode):
        problem = "is not a folder (a symlink, or a file)"
    elif found.st_uid != os.geteuid():
        problem = f"belongs to user {found.st_uid}, not to {os.geteuid()}"
    elif found.st_mode & 0o077:
        problem = f"may be used by others (mode {stat.S_IMODE(found.st_mode):o}, expected 700)"
    if problem:
        how = f"Remove it, or set {FOLDER_VARIABLE} to a folder of your own."
        raise StoreError(f"{ours} {problem}; {use}. {how}")
    return LocalStore(ours / hashlib.sha256(url.encode()).hexdigest()[:16])


def try_out(client: BucketClient, root: Url) -> None:
    """See that a second create of a key is refused, and a swap of what is not there any more.

    Raises:
        StoreError: it is not, or the storage cannot be written to.
    """
    url = url_of(root, f"{PROBE}{secrets.token_hex(8)}")
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
    except objects.OtherObjectError:
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
    source, copy = (url_of(root, f"{PROBE}{secrets.token_hex(8)}") for _ in range(2))
    try:
        _put(client, source, b"original", None)
        found = read_version(client, source, MemoryTarget())
        on_loop(client.copy(source, found, copy, None))
        on_loop(client.copy(source, found, copy, None))
    except objects.OtherObjectError:
        return True
    except (objects.SourceChangedError, StoreError):
        return False
    finally:
        _tidy(client, source)
        _tidy(client, copy)
    return False


def _put(client: BucketClient, url: Url, data: bytes, over: str | None) -> None:
    try:
        on_loop(client.put(url, Payload.of(data), over))
    except objects.OtherObjectError:
        # Refused may mean that an earlier try went through and its answer was lost.
        found = MemoryTarget()
        read_version(client, url, found)
        if found.data != data:
            raise


def _refused(client: BucketClient, url: Url, payload: Payload, over: str | None, what: str) -> None:
    try:
        on_loop(client.put(url, payload, over))
    except objects.OtherObjectError:
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
