"""A store in a folder of this machine.

An object is always published by the same steps: a temporary file in the version's folder, fsync, re-read and compare
the sha256, one create-only ``os.link``, fsync of the folder, unlink of the temporary name. A reader sees nothing or the
whole object, and of two writers of one key exactly one creates it.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, final

from tokenlake.base.threads import in_order
from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.runtime.store.base import Leftover, Link, ObjectInfo, Store, caught
from tokenlake.runtime.store.durable_files import (
    PUBLISH,
    fsync_directory,
    hash_regular,
    made_final,
    open_regular,
    os_errors,
    remove_temp,
    write_new,
)
from tokenlake.runtime.store.file_locks import is_abandoned, locked, new_temp_name
from tokenlake.runtime.store.layout import TEMP_MARK, check_key, check_size, key_problem
from tokenlake.runtime.store.writes import Outcome, Put, compare_and_swap

# Hard links that cannot be made: other file system, too many links, none at all, or the name is taken.
_NO_LINK: Final = frozenset({errno.EXDEV, errno.EMLINK, errno.EPERM, errno.ENOTSUP, errno.EEXIST})
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
        self._above = str(self._root).rstrip(os.sep)
        self._durable: set[str] = set()

    @property
    def url(self) -> str:
        return str(self._root)

    def local_path(self, key: str) -> Path:
        above = self._above
        # The root was resolved; what is below it is looked at, which is faster than resolving all of it again.
        for part in check_key(key).split("/"):
            above = f"{above}{os.sep}{part}"
            if _is_symlink(above):
                real = os.path.realpath(self._root / key)
                told = f"the key {key!r} is refused: a symlink leads it to {real}. Put the files there."
                raise StoreError(told, key=key)
        return Path(above)

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
                with contextlib.suppress(FileNotFoundError):  # removed since the folder was read
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

    def temp(self, prefix: str) -> Path:
        folder = self.local_path(prefix) if prefix else self._root
        with os_errors("write below", prefix or self.url):
            return self._new_temp(folder)

    def _new_temp(self, folder: Path, data: bytes = b"") -> Path:
        """Return a new temporary file of `data`."""
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError):  # gc removed the folder, which was empty
                self._make_durable(folder)
                path = folder / new_temp_name()
                write_new(path, data)
                return path
        raise FileNotFoundError(errno.ENOENT, "other processes remove the folder", str(folder))

    def _put(self, puts: Sequence[Put]) -> builtins.list[Outcome]:
        paths = {put.key: self.local_path(put.key) for put in puts}
        temps = {put.key: put.data for put in puts if isinstance(put.data, Path)}
        for key, temp in temps.items():
            self.check_temp(temp, key)

        def written(put: Put) -> None:
            with os_errors(PUBLISH, put.key):
                put.require_written(made_final(temps[put.key]))

        try:
            for put in puts:
                if isinstance(put.data, bytes):
                    with os_errors(PUBLISH, put.key):
                        if not _holds(paths[put.key], put):
                            temps[put.key] = self._new_temp(_temp_folder(paths[put.key], put.key), put.data)
            left = [put for put in puts if put.key in temps]  # of the others an equal object is there
            # Waiting for the disk is what takes the time, and it takes many at once in hardly more of it.
            for _ in in_order(written, left, _SYNCED):
                pass
            done: dict[str, Outcome] = {
                put.key: self._place(paths[put.key], put, temps[put.key]) for put in left
            }
            # Also after "equal": the other writer, or we before we lost its answer, may have died before that.
            self._sync(paths.values())
        finally:
            for temp in temps.values():
                remove_temp(temp)
        return [done.get(put.key, "equal") for put in puts]

    def _sync(self, paths: Iterable[Path]) -> None:
        for folder in sorted({path.parent for path in paths}):
            with os_errors("sync", str(folder)):
                self._make_durable(folder)
                fsync_directory(folder)

    def _place(self, path: Path, put: Put, temp: Path) -> Outcome:
        """Name a file that is durable, if what has its name may be replaced.

        Writers that replace or delete in one folder of this machine take turns; who creates an object takes no lock.
        A reader keeps the inode that it opened.
        """
        with os_errors(PUBLISH, put.key):
            self._make_durable(path.parent)
            if put.expected is None:
                with contextlib.suppress(FileExistsError):
                    os.link(temp, path)
                    return "created"
            with locked(path.parent):
                return compare_and_swap(
                    put,
                    lambda: _hash_of(path),
                    # Created by a link, as by those who take no lock; replaced by a new inode.
                    lambda token: os.link(temp, path) if token is None else temp.replace(path),
                    FileExistsError,
                )

    def link_all(self, links: Sequence[Link]) -> builtins.list[Outcome | NotFoundError | IntegrityError]:
        paths = [self.local_path(link.target) for link in links]
        # Small files take less time than a thread does to take them over.
        threads = min(_HASHED, sum(link.size for link in links) // _LARGE)
        whole = in_order(lambda link: caught(lambda: self._whole(link)), links, threads)
        done: builtins.list[Outcome | NotFoundError | IntegrityError] = [
            found if isinstance(found, Exception) else caught(partial(self._link, link, path, found))
            for link, path, found in zip(links, paths, whole, strict=True)
        ]
        self._sync(path for path, each in zip(paths, done, strict=True) if isinstance(each, str))
        return done

    def _whole(self, link: Link) -> os.stat_result:
        """Return which file the source of a link is; IntegrityError if it has not the hash."""
        with os_errors("reuse", link.source), open_regular(self.local_path(link.source)) as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found == link.sha256:
                return os.fstat(stream.fileno())
        raise link.damaged(found)

    def _link(self, link: Link, path: Path, whole: os.stat_result) -> Outcome:
        """Name a file that was hashed; it was durable before it got its first name."""
        source = self.local_path(link.source)
        with os_errors("reuse", link.source):
            self._make_durable(path.parent)
            try:
                os.link(source, path)
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                return self._copy(link, source, path)
            if not os.path.samestat(whole, path.lstat()):  # it was replaced meanwhile, as repair does
                self._whole(replace(link, source=link.target))
            return "created"

    def _copy(self, link: Link, source: Path, path: Path) -> Outcome:
        """Put a copy where no hard link can be made, or an object is there that may be replaced."""
        if _holds(path, link.put()):
            return "equal"
        temp = self._new_temp(_temp_folder(path, link.target))
        try:
            with open_regular(source) as stream, temp.open("wb") as copy:
                shutil.copyfileobj(stream, copy, 1 << 20)
        except BaseException:
            remove_temp(temp)
            raise
        return self._put([link.put(temp)])[0]

    def delete(self, key: str) -> None:
        path = self.local_path(key)
        # Locked: a swap must not bring back what was deleted between its two looks.
        with os_errors("delete", key), locked(path.parent):
            path.unlink()
            fsync_directory(path.parent)

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
            told = f"{leftover.name} is not a temporary file; nothing was removed"
            raise StoreError(told, key=leftover.name)
        path = (self.local_path(folder) if folder else self._root) / name
        with contextlib.suppress(NotFoundError), os_errors("remove", leftover.name):
            path.unlink()
            return True
        return False

    def remove_folder(self, prefix: str) -> bool:
        path = self.local_path(prefix)
        with contextlib.suppress(OSError):  # not empty, not there, or not ours to remove: it is no harm
            path.rmdir()
            return True
        return False

    def check_temp(self, temp: Path, key: str) -> None:
        """Raise StoreError for a file that :meth:`temp` did not make."""
        if not temp.name.startswith(TEMP_MARK) or not str(temp).startswith(self._above + os.sep):
            raise StoreError(
                f"cannot publish {temp} as {key}: not a temporary file of this store; write into temp()"
            )

    def _make_durable(self, folder: Path) -> None:
        """Make a folder and its ancestors, and their entries durable (each once per store object)."""
        name = str(folder)
        if name in self._durable and os.path.isdir(name):  # noqa: PTH112 - asked six times for each unit
            return
        if self._root in folder.parents or not folder.parent.is_dir():
            self._make_durable(folder.parent)
        folder.mkdir(exist_ok=True)
        fsync_directory(folder.parent)
        if folder == self._root:
            # A file system without locks, or without this fsync, is refused before work is done.
            with locked(folder):
                fsync_directory(folder)
        self._durable.add(name)


def _temp_folder(path: Path, key: str) -> Path:
    """Return the version's folder (or what there is of it): the same file system as the object's, at `path`."""
    return path.parents[max(0, key.count("/") - 2)]


def _holds(path: Path, put: Put) -> bool:
    """Say whether an equal object is there, for which nothing need be written."""
    found = _hash_of(path)
    return found is not None and found[0] == put.sha256


def _hash_of(path: Path) -> tuple[str, str] | None:
    """Return the hash of a file, and a token for it; None where there is none."""
    with contextlib.suppress(FileNotFoundError):
        return hash_regular(path), ""
    return None


def _is_symlink(path: str) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        return False  # nothing is there, or nobody may look; whoever opens it says so
