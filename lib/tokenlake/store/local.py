"""A store in a folder of this machine.

Publishing, always the same: temporary file in the version's folder, fsync, re-read and compare sha256, one
create-only ``os.link``, fsync of the folder, unlink of the temporary name. A reader sees nothing or all, and
of two writers of one key exactly one creates it.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, final

from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.store.base import Leftover, Link, ObjectInfo, Orphan, Outcome, Store, caught
from tokenlake.store.compare_and_swap import (
    bytes_of,
    hash_of,
    judge_create,
    judge_replace,
    judge_swap,
    put_file,
)
from tokenlake.store.layout import TEMP_MARK, check_key, check_size, key_problem
from tokenlake.store.local_files import (
    HashingFile,
    fsync_directory,
    hash_regular,
    is_abandoned,
    locked,
    make_durable,
    make_final,
    new_temp_name,
    open_regular,
    os_errors,
    remove_temp,
)
from tokenlake.threads import in_order

# Hard links that cannot be made: other file system, too many links, none at all.
_NO_LINK: Final = frozenset({errno.EXDEV, errno.EMLINK, errno.EPERM, errno.ENOTSUP})
_SYNCED: Final = 8  # files that wait for the disk at a time
_HASHED: Final = 4  # files that are hashed at a time
_LARGE: Final = 16 << 20  # bytes that are worth a thread
_TRIES: Final = 8  # an object that vanishes between "exists" and read-back is created again, but not for ever


@final
class LocalStore(Store):
    """Objects as read-only files below ``root``; symlinks below it are refused, not followed."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).expanduser().resolve()
        if self._root.exists() and not self._root.is_dir():
            raise StoreError(f"the store {self._root} is a file; expected a folder (it is made when missing)")
        self._durable: set[Path] = set()

    @property
    def url(self) -> str:
        return str(self._root)

    def local_path(self, key: str) -> Path:
        path, above = self._root / check_key(key), str(self._root).rstrip(os.sep)
        # The root was resolved; what is below it is looked at, which is faster than resolving all of it again.
        for part in key.split("/"):
            above = f"{above}{os.sep}{part}"
            if _is_symlink(above):
                real = os.path.realpath(path)
                raise StoreError(
                    f"the key {key!r} is refused: a symlink leads it to {real}. Put the files there.", key=key
                )
        return path

    def read(self, key: str) -> bytes:
        with self.open(key) as stream, os_errors("read", key):
            check_size(key, os.fstat(stream.fileno()).st_size)
            return stream.read()

    def open(self, key: str, *, size: int | None = None, sha256: str | None = None) -> BinaryIO:
        path = self.local_path(key)
        with os_errors("open", key):
            return open_regular(path)

    def size(self, key: str) -> int | None:
        path = self.local_path(key)
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for entry in self._entries(prefix):
            key = f"{prefix}/{entry.name}" if prefix else entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from self.list(key)
            elif not entry.name.startswith(TEMP_MARK):
                found = entry.stat(follow_symlinks=False)
                yield ObjectInfo(key, found.st_size, found.st_mtime)

    def list_dirs(self, prefix: str) -> builtins.list[str]:
        return sorted(entry.name for entry in self._entries(prefix) if entry.is_dir(follow_symlinks=False))

    def _entries(self, prefix: str) -> builtins.list[os.DirEntry[str]]:
        folder = self.local_path(prefix) if prefix else self._root
        try:
            with os_errors("list", prefix or self.url), os.scandir(folder) as found:
                # The order of whole keys, as an object store lists them: "a-b/x" before "a/x".
                return sorted(found, key=lambda entry: entry.name + "/" * entry.is_dir(follow_symlinks=False))
        except NotFoundError:
            return []

    def put_new(self, key: str, data: bytes, *, replace_orphan: Orphan = False) -> Outcome:
        self.local_path(key)
        temp, sha256 = self._written(key, data)
        return self.publish(temp, key, sha256, replace_orphan=replace_orphan)

    def _written(self, key: str, data: bytes) -> tuple[Path, str]:
        temp = self.temp(_temp_prefix(key))
        try:
            with HashingFile(temp) as sink:
                sink.write(data)
        except BaseException:
            remove_temp(temp)
            raise
        return temp, sink.sha256

    def temp(self, prefix: str) -> Path:
        folder = self.local_path(prefix) if prefix else self._root
        with os_errors("write below", prefix or self.url):
            for _ in range(_TRIES):
                with contextlib.suppress(FileNotFoundError):  # gc removed the folder, which was empty
                    return self._new_temp(folder)
            return self._new_temp(folder)

    def _new_temp(self, folder: Path) -> Path:
        self._make_durable(folder)
        path = folder / new_temp_name()
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        return path

    def publish(self, temp: Path, key: str, sha256: str, *, replace_orphan: Orphan = False) -> Outcome:
        return self._put(
            temp, key, sha256, "publish", lambda path: self._create(temp, path, key, sha256, replace_orphan)
        )

    def _put(self, temp: Path, key: str, sha256: str, action: str, put: Callable[[Path], Outcome]) -> Outcome:
        """Use a written temporary file, after reading it back; its name is gone after."""
        path = self.local_path(key)
        self.check_temp(temp, key)
        try:
            with os_errors(action, key):
                _require_written(temp, key, sha256)
                self._make_durable(path.parent)
                return put(path)
        finally:
            remove_temp(temp)

    def _create(
        self,
        temp: Path,
        path: Path,
        key: str,
        sha256: str,
        replace_orphan: Orphan,
        sync: Callable[[Path], object] = fsync_directory,
    ) -> Outcome:
        self._make_durable(path.parent)
        try:
            os.link(temp, path)
        except FileExistsError:
            return put_file(temp, path, key, hash_of, judge_create(key, sha256, replace_orphan), sync)
        sync(path.parent)
        return "created"

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        written: builtins.list[tuple[str, Path, str]] = []
        folders: set[Path] = set()
        try:
            for key, data in objects.items():
                written.append((key, *self._written(key, data)))
            # Waiting for the disk is what takes the time, and it takes many at once in hardly more of it.
            for _ in in_order(lambda one: _finish(*one), written, _SYNCED):
                pass
            for key, temp, sha256 in written:
                with os_errors("publish", key):
                    self._create(temp, self.local_path(key), key, sha256, False, folders.add)
            _fsync_all(folders)
        finally:
            for _, temp, _ in written:
                remove_temp(temp)

    def link(
        self,
        src_key: str,
        dst_key: str,
        sha256: str,
        *,
        seen: ObjectInfo | None = None,
        replace_orphan: Orphan = False,
    ) -> Outcome:
        self.local_path(dst_key)
        link = Link(source=src_key, target=dst_key, size=0, sha256=sha256)
        return self._link(link, self._whole(link), replace_orphan, fsync_directory)

    def link_all(
        self, links: Sequence[Link], replace_orphan: Callable[[Link], bool]
    ) -> builtins.list[NotFoundError | IntegrityError | None]:
        folders: set[Path] = set()
        # Small files take less time than a thread does to take them over.
        threads = min(_HASHED, sum(link.size for link in links) // _LARGE)
        whole = in_order(lambda link: caught(lambda: self._whole(link)), links, threads)

        def one(link: Link, found: os.stat_result | NotFoundError | IntegrityError) -> None:
            if isinstance(found, Exception):
                raise found
            self._link(link, found, lambda: replace_orphan(link), folders.add)

        done = [caught(partial(one, link, found)) for link, found in zip(links, whole, strict=True)]
        _fsync_all(folders)
        return done

    def _whole(self, link: Link) -> os.stat_result:
        """Return which file the source of a link is; IntegrityError if it has not the hash."""
        with os_errors("reuse", link.source), open_regular(self.local_path(link.source)) as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found == link.sha256:
                return os.fstat(stream.fileno())
        raise IntegrityError(
            f"cannot reuse {link.source} as {link.target}: its sha256 is {found}, expected {link.sha256}. "
            "Verify the version it belongs to; without reuse the unit is built again.",
            file=link.source,
        )

    def _link(
        self,
        link: Link,
        whole: os.stat_result,
        replace_orphan: Orphan,
        sync: Callable[[Path], object],
    ) -> Outcome:
        """Name a file that was hashed; it was durable before it got its first name."""
        source, path = self.local_path(link.source), self.local_path(link.target)
        with os_errors("reuse", link.source):
            self._make_durable(path.parent)
            try:
                os.link(source, path)
            except OSError as error:
                if error.errno not in _NO_LINK and error.errno != errno.EEXIST:
                    raise
                return self._copy(link, source, path, replace_orphan, sync)
            if not os.path.samestat(whole, path.lstat()):  # it was replaced meanwhile, as repair does
                self._whole(replace(link, source=link.target))
            sync(path.parent)
            return "created"

    def _copy(
        self,
        link: Link,
        source: Path,
        path: Path,
        replace_orphan: Orphan,
        sync: Callable[[Path], object],
    ) -> Outcome:
        temp = self.temp(_temp_prefix(link.target))
        try:
            temp.unlink()
            _link_or_copy(source, temp)
            _require_written(temp, link.target, link.sha256)
            return self._create(temp, path, link.target, link.sha256, replace_orphan, sync)
        finally:
            remove_temp(temp)

    def delete(self, key: str) -> None:
        path = self.local_path(key)
        # Locked: a swap must not bring back what was deleted between its two looks.
        with os_errors("delete", key), locked(path.parent):
            path.unlink()
            fsync_directory(path.parent)

    def sweep_temp(self, prefix: str) -> int:
        folder, swept = self.local_path(prefix) if prefix else self._root, 0
        for entry in self._entries(prefix):
            if is_abandoned(entry.name):
                with os_errors("sweep", prefix or self.url):
                    (folder / entry.name).unlink(missing_ok=True)
                swept += 1
        return swept

    def swap(self, key: str, data: bytes, expected: bytes | None) -> Outcome:
        self.local_path(key)
        temp, sha256 = self._written(key, data)
        judge = judge_swap(key, data, expected)
        return self._put(
            temp,
            key,
            sha256,
            "replace",
            lambda path: put_file(temp, path, key, bytes_of, judge, fsync_directory),
        )

    def replace(self, temp: Path, key: str, sha256: str, found: str | None) -> Outcome:
        judge = judge_replace(key, sha256, found)
        return self._put(
            temp,
            key,
            sha256,
            "replace",
            lambda path: put_file(temp, path, key, hash_of, judge, fsync_directory),
        )

    def leftovers(self, prefix: str) -> builtins.list[Leftover]:
        found: builtins.list[Leftover] = []
        for entry in self._entries(prefix):
            name = f"{prefix}/{entry.name}" if prefix else entry.name
            if entry.is_dir(follow_symlinks=False):
                found += self.leftovers(name) if key_problem(name) is None else ()
            elif entry.name.startswith(TEMP_MARK):
                with contextlib.suppress(FileNotFoundError):  # published or swept meanwhile
                    facts = entry.stat(follow_symlinks=False)
                    found.append(Leftover(name, facts.st_size, facts.st_mtime, is_abandoned(entry.name)))
        return found

    def remove_leftover(self, leftover: Leftover) -> bool:
        folder, _, name = leftover.name.rpartition("/")
        if not name.startswith(TEMP_MARK):
            raise StoreError(
                f"{leftover.name} is not a temporary file; nothing was removed", key=leftover.name
            )
        path = (self.local_path(folder) if folder else self._root) / name
        try:
            with os_errors("remove", leftover.name):
                path.unlink()
        except NotFoundError:
            return False
        return True

    def remove_folder(self, prefix: str) -> bool:
        path = self.local_path(prefix)
        try:
            path.rmdir()
        except OSError:  # not empty, not there, or not ours to remove: an empty folder is no harm
            return False
        return True

    def check_temp(self, temp: Path, key: str) -> None:
        """Raise StoreError for a file that :meth:`temp` did not make."""
        if not temp.name.startswith(TEMP_MARK) or not temp.parent.is_relative_to(self._root):
            raise StoreError(
                f"cannot publish {temp} as {key}: not a temporary file of this store; write into temp()"
            )

    def _make_durable(self, folder: Path) -> None:
        """Make a folder and its ancestors, and their entries durable (each once per store object)."""
        if folder in self._durable and folder.is_dir():
            return
        if folder != self._root:
            self._make_durable(folder.parent)
        make_durable(folder)
        if folder == self._root:
            with locked(
                folder
            ):  # a file system without locks, or without this fsync, is refused before work is done
                fsync_directory(folder)
        self._durable.add(folder)


def _temp_prefix(key: str) -> str:
    """Return the version's folder (or what there is of it): the same file system as the object's."""
    return "/".join(key.split("/")[:-1][:2])


def _finish(key: str, temp: Path, sha256: str) -> None:
    with os_errors("publish", key):
        _require_written(temp, key, sha256)


def _fsync_all(folders: Iterable[Path]) -> None:
    for folder in sorted(folders):
        with os_errors("sync", str(folder)):
            fsync_directory(folder)


def _require_written(temp: Path, key: str, sha256: str) -> None:
    """Make a written file durable, and see that it is what was written."""
    make_final(temp)
    if (found := hash_regular(temp)) != sha256:
        raise StoreError(
            f"{key}: read back is not what was written: sha256 {found}, expected {sha256}. "
            "Nothing was published. Check the disk and the memory of this machine.",
            key=key,
        )


def _is_symlink(path: str) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        return False  # nothing is there, or nobody may look; whoever opens it says so


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        with open_regular(source) as stream, target.open("xb") as copy:
            shutil.copyfileobj(stream, copy, 1 << 20)
