"""A store in a bucket: S3 and Google Cloud Storage.

Publishing is always the same: write a temporary file on this machine, read it again and
compare its sha256, then send one create-only put with checksums, which the service
carries out whole or not at all. If there is an object already, or the answer was lost
and the second try is refused, the object is read back: equal bytes are success. An
object is replaced by compare-and-swap of the version that was read.

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

_TRYING: Final = threading.Lock()

# Kinds of leftovers, which begin their names.
_SCRATCH: Final = "scratch"
_UPLOAD: Final = "upload"
_TRIAL: Final = "trial"


@final
class ObjectStore(RemoteStore, Store):
    """Objects below a URL of a bucket, read as :class:`RemoteStore` does and written
    with conditions.

    The first write of a process checks that the storage keeps conditions
    (:meth:`preflight`).
    """

    at_once = 32

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
        """Open the bytes to send, read back and compared with their hash; a
        temporary file is removed at the end.
        """
        if isinstance(put.data, bytes):
            payload = Payload.of(put.data)
            put.require_written(payload.sha256)
            yield payload
            return
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
        return list(
            in_order(
                lambda link: caught(lambda: self._copied(link)), links, self.at_once
            )
        )

    def _copied(self, link: Link) -> Outcome:
        """Copy one object inside the storage."""
        source = self._at(link.source)
        target = self._at(link.target)
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
        """Return whether copies in one request keep conditions; the first call of a
        process tries it.
        """
        client = self._bucket()
        name = f"{self._root} copies"
        with _TRYING:
            if client.in_parts and name not in client.trials:
                client.trials[name] = keeps_copies(client, self._root)
        return client.trials.get(name, True)

    def delete(self, key: str) -> None:
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
        for remote, upload in on_loop(
            self._storage().uploads(folder_of(self._root, prefix))
        ):
            key = self._key(remote.path)
            name = f"{_UPLOAD}:{upload}:{key}"
            leftovers.append(
                Leftover(name, 0, remote.modified or 0.0, dead=False, key=key)
            )
        if not prefix:
            # Objects of preflights whose process died.
            for remote in on_loop(self._client().list(self._at(PROBE), flat=True)):
                if not remote.path.endswith("/"):
                    key = self._key(remote.path)
                    name = f"{_TRIAL}:{key}"
                    leftovers.append(
                        Leftover(
                            name,
                            remote.size,
                            remote.modified or 0.0,
                            dead=False,
                            key=key,
                        )
                    )
        leftovers += [
            Leftover(
                f"{_SCRATCH}:{local.name}",
                local.bytes,
                local.modified,
                local.dead,
                local.key,
            )
            for local in scratch_of(self.url).leftovers(prefix)
        ]
        return sorted(leftovers, key=lambda leftover: leftover.name)

    def remove_leftover(self, leftover: Leftover) -> bool:
        kind, _, name = leftover.name.partition(":")
        if kind == _SCRATCH:
            return scratch_of(self.url).remove_leftover(
                Leftover(name, 0, 0.0, leftover.dead, leftover.key)
            )
        if kind == _UPLOAD:
            upload, _, key = name.partition(":")
            return on_loop(self._storage().abort(self._at(key), upload))
        if kind == _TRIAL and name.startswith(PROBE):
            exists = self.size(name) is not None
            on_loop(self._storage().delete(self._at(name)))
            return exists
        raise StoreError(
            f"{leftover.name} is neither an upload nor a temporary file; nothing was removed",
            key=leftover.name,
        )

    def _storage(self) -> BucketClient:
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
        """Return the sha256 of an object and the token of its version; None if it
        does not exist.
        """
        target = HashingTarget()
        with contextlib.suppress(NotFoundError):
            version = read_version(self._client(), self._at(key), target)
            return target.finish().sha256, version.token
        return None
