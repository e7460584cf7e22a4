"""A store in a folder of this machine.

An object is always published by the same steps:

1. Write a temporary file in the version's folder.
2. Make it durable (fsync), read it again and compare its sha256.
3. Give it its name by one create-only ``os.link``.
4. Make the folder durable, and remove the temporary name.

A reader sees nothing or the whole object, and of two writers of one key exactly one
creates it.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

# Errors of hard links that cannot be made: other file system, too many links, none at
# all, or the name is taken.
_NO_LINK: Final = frozenset(
    {errno.EXDEV, errno.EMLINK, errno.EPERM, errno.ENOTSUP, errno.EEXIST}
)
_SYNCED: Final = 8  # files that wait for the disk at a time
_HASHED: Final = 4  # files that are hashed at a time
_LARGE: Final = 16 << 20  # bytes that are worth a thread
_TRIES: Final = 8  # tries to create a file in a folder that other processes remove


@final
class LocalStore(Store):
    """Objects as read-only files below a folder.

    Symlinks below it are refused, not followed.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).expanduser().resolve()
        if self._root.exists() and not self._root.is_dir():
            raise StoreError(
                f"the store {self._root} is a file; expected a folder (a missing one is created)"
            )
        # Prefix of the paths of all objects. Of the root "/" it is empty.
        self._above = str(self._root).rstrip(os.sep)
        # Folders that this store has made durable, each once.
        self._durable: set[str] = set()

    @property
    def url(self) -> str:
        return str(self._root)

    def local_path(self, key: str) -> Path:
        # The root is resolved already. Checking each part below it is faster than
        # resolving the whole path.
        path = self._above
        for path_part in check_key(key).split("/"):
            path = f"{path}{os.sep}{path_part}"
            if _is_symlink(path):
                real_path = os.path.realpath(self._root / key)
                raise StoreError(
                    f"the key {key!r} is refused: a symlink points to {real_path}. Put the files there.",
                    key=key,
                )
        return Path(path)

    def read(self, key: str) -> bytes:
        with self.open(key) as stream, os_errors("read", key):
            check_size(key, os.fstat(stream.fileno()).st_size)
            return stream.read()

    def open(
        self, key: str, *, size: int | None = None, sha256: str | None = None
    ) -> BinaryIO:
        path = self.local_path(key)
        with os_errors("open", key):
            return open_regular(path)

    def size(self, key: str) -> int | None:
        # Symlinks and folders are no objects, so lstat.
        path = self.local_path(key)
        try:
            file_status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return file_status.st_size if stat.S_ISREG(file_status.st_mode) else None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        # Entries come in the order of keys, and a folder at its place among them.
        for entry in self._entries(prefix):
            object_key = _joined_key(prefix, entry.name)
            if entry.is_dir(follow_symlinks=False):
                yield from self.list(object_key)
            elif not entry.name.startswith(TEMP_MARK):
                # Removed since the folder was read.
                with contextlib.suppress(FileNotFoundError):
                    file_status = entry.stat(follow_symlinks=False)
                    links = file_status.st_nlink
                    inode = ""
                    if links > 1:
                        inode = f"{file_status.st_dev}:{file_status.st_ino}"
                    yield ObjectInfo(
                        object_key,
                        file_status.st_size,
                        file_status.st_mtime,
                        links=links,
                        inode=inode,
                    )

    def list_dirs(self, prefix: str) -> builtins.list[str]:
        names: builtins.list[str] = []
        for entry in self._entries(prefix):
            if entry.is_dir(follow_symlinks=False):
                names.append(entry.name)
        return sorted(names)

    def _entries(self, prefix: str) -> builtins.list[os.DirEntry[str]]:
        """Return the entries of a folder in the order of keys.

        A folder that does not exist has none.
        """
        folder = self._folder(prefix)
        try:
            with os_errors("list", prefix or self.url), os.scandir(folder) as entries:
                return sorted(entries, key=_key_order)
        except NotFoundError:
            return []

    def _folder(self, prefix: str) -> Path:
        """Return the folder of a prefix; "" is the root of the store."""
        if not prefix:
            return self._root
        return self.local_path(prefix)

    def temp(self, prefix: str) -> Path:
        folder = self._folder(prefix)
        with os_errors("write below", prefix or self.url):
            return self._new_temp(folder)

    def _new_temp(self, folder: Path, data: bytes = b"") -> Path:
        """Create a temporary file with some bytes, and return its path."""
        for _ in range(_TRIES):
            # Gc removed the folder, which was empty.
            with contextlib.suppress(FileNotFoundError):
                self._make_durable(folder)
                path = folder / new_temp_name()
                write_new(path, data)
                return path
        raise FileNotFoundError(
            errno.ENOENT, "other processes remove the folder", str(folder)
        )

    def _put(self, puts: Sequence[Put]) -> builtins.list[Outcome]:
        # Paths are checked before anything is written, and temporary files that are not
        # ours are refused.
        paths = {put.key: self.local_path(put.key) for put in puts}
        temps: dict[str, Path] = {}
        for put in puts:
            if isinstance(put.data, Path):
                self.check_temp(put.data, put.key)
                temps[put.key] = put.data

        def make_final(put: Put) -> None:
            with os_errors(PUBLISH, put.key):
                put.require_written(made_final(temps[put.key]))

        # Steps 1 to 4 of the module docstring, for all objects together.
        outcomes: dict[str, Outcome] = {}
        try:
            self._write_temps(puts, paths, temps)
            # The puts without a temporary file find an equal object.
            written = [put for put in puts if put.key in temps]
            # Waiting for the disk takes the time, and the disk takes many files at once
            # in hardly more of it.
            for _ in in_order(make_final, written, _SYNCED):
                pass
            for put in written:
                outcomes[put.key] = self._place(paths[put.key], put, temps[put.key])
            # Also after "equal": the other writer, or an earlier try of ours, may have
            # died before this step.
            self._sync(paths.values())
        finally:
            for temp in temps.values():
                remove_temp(temp)
        return [outcomes.get(put.key, "equal") for put in puts]

    def _write_temps(
        self, puts: Sequence[Put], paths: Mapping[str, Path], temps: dict[str, Path]
    ) -> None:
        """Write the bytes of puts to temporary files, and add the files to `temps`.

        A put that finds an equal object needs no file.
        """
        for put in puts:
            if isinstance(put.data, bytes):
                path = paths[put.key]
                with os_errors(PUBLISH, put.key):
                    if not _holds(path, put):
                        temps[put.key] = self._new_temp(
                            _temp_folder(path, put.key), put.data
                        )

    def _sync(self, paths: Iterable[Path]) -> None:
        """Make the folders of some files durable, with their entries."""
        # Each folder once, in a fixed order.
        for folder in sorted({path.parent for path in paths}):
            with os_errors("sync", str(folder)):
                self._make_durable(folder)
                fsync_directory(folder)

    def _place(self, path: Path, put: Put, temp: Path) -> Outcome:
        """Give a durable file its name, if an object with this name may be replaced.

        Writers that replace or delete in one folder of this machine take turns;
        creating an object takes no lock. A reader keeps the inode that it opened.
        """
        with os_errors(PUBLISH, put.key):
            # An object that is created takes no lock: a hard link is atomic, and fails
            # if the name is taken.
            self._make_durable(path.parent)
            if put.expected is None:
                with contextlib.suppress(FileExistsError):
                    os.link(temp, path)
                    return "created"

            # Everything else is a compare-and-swap. Between its look and its rename the
            # folder is locked.
            def send(token: str | None) -> None:
                if token is None:
                    os.link(temp, path)  # create-only, as by writers that take no lock
                else:
                    temp.replace(path)  # a new inode

            with locked(path.parent):
                return compare_and_swap(
                    put, lambda: _hash_of(path), send, FileExistsError
                )

    def link_all(
        self, links: Sequence[Link]
    ) -> builtins.list[Outcome | NotFoundError | IntegrityError]:
        paths = [self.local_path(link.target) for link in links]
        # Hash the sources. For small files a thread takes more time than it saves.
        threads = min(_HASHED, sum(link.size for link in links) // _LARGE)
        sources = in_order(
            lambda link: caught(lambda: self._hashed_source(link)), links, threads
        )
        results: builtins.list[Outcome | NotFoundError | IntegrityError] = []
        # Links are made one after another, in the order of the request.
        linked_paths: builtins.list[Path] = []
        for link, path, source in zip(links, paths, sources, strict=True):
            if isinstance(source, Exception):
                results.append(source)
                continue
            result = caught(partial(self._link, link, path, source))
            results.append(result)
            if isinstance(result, str):
                linked_paths.append(path)
        self._sync(linked_paths)
        return results

    def _hashed_source(self, link: Link) -> os.stat_result:
        """Return the status of the source file of a link, after checking its hash.

        Raises:
            IntegrityError: The file has another hash.
        """
        with (
            os_errors("reuse", link.source),
            open_regular(self.local_path(link.source)) as stream,
        ):
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            if sha256 == link.sha256:
                return os.fstat(stream.fileno())
        raise link.damaged(sha256)

    def _link(self, link: Link, path: Path, hashed: os.stat_result) -> Outcome:
        """Give a hashed file a second name.

        It was durable before it got its first one.
        """
        source = self.local_path(link.source)
        with os_errors("reuse", link.source):
            self._make_durable(path.parent)
            try:
                os.link(source, path)
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                return self._copy(link, source, path)
            is_hashed_file = os.path.samestat(hashed, path.lstat())
            if not is_hashed_file:
                # The source was replaced meanwhile, as repair does.
                self._hashed_source(replace(link, source=link.target))
            return "created"

    def _copy(self, link: Link, source: Path, path: Path) -> Outcome:
        """Publish a copy of a file that cannot be linked.

        This is also the way for a target that exists and may be replaced.
        """
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
        # Locked: a swap must not bring back an object that was deleted between its two
        # looks.
        with os_errors("delete", key), locked(path.parent):
            path.unlink()
            fsync_directory(path.parent)

    def leftovers(self, prefix: str) -> builtins.list[Leftover]:
        # Temporary files lie beside the objects, in folders with safe names.
        leftovers: builtins.list[Leftover] = []
        for entry in self._entries(prefix):
            entry_key = _joined_key(prefix, entry.name)
            if entry.is_dir(follow_symlinks=False):
                if key_problem(entry_key) is None:
                    leftovers += self.leftovers(entry_key)
            elif entry.name.startswith(TEMP_MARK):
                # Published or swept meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    file_status = entry.stat(follow_symlinks=False)
                    is_dead = is_abandoned(entry.name)
                    leftovers.append(
                        Leftover(
                            entry_key,
                            file_status.st_size,
                            file_status.st_mtime,
                            is_dead,
                            entry_key,
                        )
                    )
        return leftovers

    def remove_leftover(self, leftover: Leftover) -> bool:
        # The name comes from a listing. It is checked again, because the file is
        # deleted.
        folder, _, file_name = leftover.name.rpartition("/")
        if not file_name.startswith(TEMP_MARK):
            raise StoreError(
                f"{leftover.name} is not a temporary file; nothing was removed",
                key=leftover.name,
            )
        folder_path = self._folder(folder)
        with contextlib.suppress(NotFoundError), os_errors("remove", leftover.name):
            (folder_path / file_name).unlink()
            return True
        return False

    def remove_folder(self, prefix: str) -> bool:
        path = self.local_path(prefix)
        # Not empty, missing, or not ours to remove: harmless.
        with contextlib.suppress(OSError):
            path.rmdir()
            return True
        return False

    def check_temp(self, temp: Path, key: str) -> None:
        """Raise StoreError for a file that :meth:`temp` did not make."""
        is_below_store = str(temp).startswith(self._above + os.sep)
        if not temp.name.startswith(TEMP_MARK) or not is_below_store:
            raise StoreError(
                f"cannot publish {temp} as {key}: not a temporary file of this store; write into temp()"
            )

    def _make_durable(self, folder: Path) -> None:
        """Create a folder and its ancestors, and make their entries durable.

        This is done once for each folder and store object.
        """
        folder_path = str(folder)
        if folder_path in self._durable and os.path.isdir(folder_path):  # noqa: PTH112 - called six times for each unit
            return
        # Ancestors first: an entry is durable only if the folder that holds it is.
        if self._root in folder.parents or not folder.parent.is_dir():
            self._make_durable(folder.parent)
        folder.mkdir(exist_ok=True)
        fsync_directory(folder.parent)
        if folder == self._root:
            # Refuse a file system without locks, or without this fsync, before work is
            # done.
            with locked(folder):
                fsync_directory(folder)
        self._durable.add(folder_path)


def _joined_key(prefix: str, name: str) -> str:
    """Return the key of a name in the folder of a prefix; "" is the root."""
    if not prefix:
        return name
    return f"{prefix}/{name}"


def _key_order(entry: os.DirEntry[str]) -> str:
    """Return the sort key of an entry, for the order of whole keys.

    It is the order in which an object store lists them: "a-b/x" before "a/x".
    """
    if entry.is_dir(follow_symlinks=False):
        return entry.name + "/"
    return entry.name


def _temp_folder(path: Path, key: str) -> Path:
    """Return the folder of the version of an object, which is on the same file system.

    Args:
        path: Path of the object.
        key: Key of the object; one with fewer than two folders has no version, and its
            first folder is returned.
    """
    return path.parents[max(0, key.count("/") - 2)]


def _holds(path: Path, put: Put) -> bool:
    """Return whether an equal object exists, so that nothing needs to be written."""
    state = _hash_of(path)
    return state is not None and state[0] == put.sha256


def _hash_of(path: Path) -> tuple[str, str] | None:
    """Return the hash of a file, and an empty token; None if it does not exist."""
    with contextlib.suppress(FileNotFoundError):
        return hash_regular(path), ""
    return None


def _is_symlink(path: str) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        return False  # missing, or not accessible: opening it reports that
