"""A store in a bucket: S3 and Google Cloud Storage.

An object is always published by the same steps:

1. Write a temporary file on this machine, read it again and compare its sha256.
2. Send one create-only put with checksums, which the service carries out whole or not
   at all.
3. If an object exists already, or the answer was lost and the second try is refused,
   read the object back: equal bytes are success.

An object is replaced by compare-and-swap of the version that was read.

Some services accept the conditions of a request and ignore them. There two builds could
overwrite one another in silence. So each process tries conditional writes once, with an
object of its own, before it writes (``preflight.py``).
"""

from __future__ import annotations

import builtins
import contextlib
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
from tokenlake.runtime.store.downloads import read_version
from tokenlake.runtime.store.durable_files import os_errors, remove_temp
from tokenlake.runtime.store.payload import LARGE, Payload
from tokenlake.runtime.store.preflight import keeps_copies, try_out
from tokenlake.runtime.store.remote import PROBE, RemoteStore
from tokenlake.runtime.store.scratch import scratch_of
from tokenlake.runtime.store.sessions import on_loop, on_loop_to_its_end
from tokenlake.runtime.store.url import folder_of
from tokenlake.runtime.store.writes import HashingTarget, Outcome, Put, compare_and_swap

_TRYING: Final = threading.Lock()  # one trial of copies at a time in this process

# Kinds of leftovers, which begin their names.
_SCRATCH: Final = "scratch"
_UPLOAD: Final = "upload"
_TRIAL: Final = "trial"


@final
class ObjectStore(RemoteStore, Store):
    """Objects below a URL of a bucket.

    They are read as :class:`RemoteStore` does, and written with conditions.

    The first write of a process checks that the storage keeps conditions
    (:meth:`preflight`).
    """

    at_once = 32  # requests wait for the network, and take little time here

    def preflight(self) -> None:
        try_out(self._storage(), self._root)
        self._storage().trials[str(self._root)] = True

    def temp(self, prefix: str) -> Path:
        return scratch_of(self.url).temp(prefix)

    def _put(self, puts: Sequence[Put]) -> builtins.list[Outcome]:
        return list(in_order(self._put_one, puts, self.at_once))

    def _put_one(self, put: Put) -> Outcome:
        """Write one object, with its condition."""
        with os_errors("publish", put.key), self._payload(put) as payload:
            # An interrupted caller must wait for the request: a put that goes on alone
            # could appear later.
            def send(over: str | None) -> None:
                on_loop_to_its_end(self._bucket().put(self._at(put.key), payload, over))

            # A look before a large upload may find that the object is there.
            is_large = isinstance(put.data, Path) and payload.size >= LARGE
            return compare_and_swap(
                put,
                partial(self._seen, put.key),
                send,
                objects.OtherObjectError,
                look_first=put.expected is not None or is_large,
            )

    @contextlib.contextmanager
    def _payload(self, put: Put) -> Generator[Payload]:
        """Open the bytes to send, read back and compared with their hash.

        A temporary file is removed at the end.
        """
        if isinstance(put.data, bytes):
            payload = Payload.of(put.data)
            put.require_written(payload.sha256)
            yield payload
            return
        # From here on the file is ours to remove, also if it is not sent.
        scratch_of(self.url).check_temp(put.data, put.key)
        try:
            with Payload.of_file(
                put.data, in_parts=self._storage().in_parts
            ) as payload:
                put.require_written(payload.sha256)
                yield payload
        finally:
            remove_temp(put.data)

    def link_all(
        self, links: Sequence[Link]
    ) -> builtins.list[Outcome | NotFoundError | IntegrityError]:
        def copy_one(link: Link) -> Outcome | NotFoundError | IntegrityError:
            return caught(lambda: self._copied(link))

        return list(in_order(copy_one, links, self.at_once))

    def _copied(self, link: Link) -> Outcome:
        """Copy one object inside the storage."""
        source = self._at(link.source)
        target = self._at(link.target)
        # The caller may know that a version has the hash. Otherwise the source is read.
        if link.seen is not None and link.seen.token:
            version = objects.RemoteObject(
                path=link.seen.key, size=link.seen.size, token=link.seen.token
            )
        else:
            version = self._source(link)

        def look() -> tuple[str, str] | None:
            with contextlib.suppress(NotFoundError):
                # On S3 a copy has the token of its source: then its bytes need not be
                # read.
                if on_loop(self._client().stat(target)).token == version.token:
                    return link.sha256, version.token
            return self._seen(link.target)

        def send(over: str | None) -> None:
            copy = self._bucket().copy(
                source, version, target, over, in_one_request=self._keeps_copies()
            )
            on_loop_to_its_end(copy)

        try:
            return compare_and_swap(
                link.put(), look, send, objects.OtherObjectError, look_first=False
            )
        except objects.SourceChangedError as error:
            raise IntegrityError(
                f"cannot reuse {link.source} as {link.target}: it was replaced while it was copied ({error}); "
                "nothing was written. Verify the version it belongs to.",
                file=link.source,
            ) from None

    def _keeps_copies(self) -> bool:
        """Return whether copies in one request keep conditions.

        The first call of a process tries it out.
        """
        client = self._bucket()
        trial_name = f"{self._root} copies"
        with _TRYING:
            if client.in_parts and trial_name not in client.trials:
                client.trials[trial_name] = keeps_copies(client, self._root)
        return client.trials.get(trial_name, True)

    def delete(self, key: str) -> None:
        # A bucket reports no error for an object that does not exist.
        url = self._at(key)
        if self.size(key) is None:
            raise NotFoundError(
                f"cannot delete {url}: there is no such object", key=key
            )
        on_loop(self._bucket().delete(url))

    def sweep_temp(self, prefix: str) -> int:
        return scratch_of(self.url).sweep_temp(prefix)

    def leftovers(self, prefix: str) -> builtins.list[Leftover]:
        leftovers: builtins.list[Leftover] = []
        # Uploads in parts that were never completed. Their size is unknown.
        uploads = on_loop(self._storage().uploads(folder_of(self._root, prefix)))
        for remote, upload in uploads:
            object_key = self._key(remote.path)
            leftover_name = f"{_UPLOAD}:{upload}:{object_key}"
            leftovers.append(
                Leftover(
                    leftover_name, 0, remote.modified or 0.0, dead=False, key=object_key
                )
            )
        # Objects of preflights whose process died lie in the root of the store.
        if not prefix:
            for remote in on_loop(self._client().list(self._at(PROBE), flat=True)):
                if not remote.path.endswith("/"):
                    object_key = self._key(remote.path)
                    leftover_name = f"{_TRIAL}:{object_key}"
                    leftovers.append(
                        Leftover(
                            leftover_name,
                            remote.size,
                            remote.modified or 0.0,
                            dead=False,
                            key=object_key,
                        )
                    )
        # Temporary files of this machine on their way to the bucket.
        for local in scratch_of(self.url).leftovers(prefix):
            leftover_name = f"{_SCRATCH}:{local.name}"
            leftovers.append(
                Leftover(
                    leftover_name, local.bytes, local.modified, local.dead, local.key
                )
            )
        return sorted(leftovers, key=lambda leftover: leftover.name)

    def remove_leftover(self, leftover: Leftover) -> bool:
        # The name begins with the kind, and each kind is removed in its own way.
        leftover_kind, _, leftover_name = leftover.name.partition(":")
        if leftover_kind == _SCRATCH:
            return scratch_of(self.url).remove_leftover(
                Leftover(leftover_name, 0, 0.0, leftover.dead, leftover.key)
            )
        if leftover_kind == _UPLOAD:
            upload, _, key = leftover_name.partition(":")
            return on_loop(self._storage().abort(self._at(key), upload))
        if leftover_kind == _TRIAL and leftover_name.startswith(PROBE):
            exists = self.size(leftover_name) is not None
            on_loop(self._storage().delete(self._at(leftover_name)))
            return exists
        raise StoreError(
            f"{leftover.name} is neither an upload nor a temporary file; nothing was removed",
            key=leftover.name,
        )

    def _storage(self) -> BucketClient:
        """Return the storage, also before a preflight."""
        return cast("BucketClient", self._client())

    def _bucket(self) -> BucketClient:
        """Return the storage for writing, after a preflight by this process."""
        if str(self._root) not in self._storage().trials:
            self.preflight()
        return self._storage()

    def _source(self, link: Link) -> objects.RemoteObject:
        """Return the version of the source of a link, whose bytes have its hash."""

        def read() -> objects.RemoteObject:
            target = HashingTarget()
            version = read_version(self._client(), self._at(link.source), target)
            sha256 = target.finish().sha256
            if sha256 != link.sha256:
                raise link.damaged(sha256)
            return version

        # A damaged answer must not look like a damaged object.
        return looked_twice(read)

    def _seen(self, key: str) -> tuple[str, str] | None:
        """Return the sha256 of an object and the token of its version; None without one."""
        target = HashingTarget()
        with contextlib.suppress(NotFoundError):
            version = read_version(self._client(), self._at(key), target)
            return target.finish().sha256, version.token
        return None
