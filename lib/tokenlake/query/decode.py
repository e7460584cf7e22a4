"""Ids back to text, with the version's own copy of its tokenizer.

Bytes that are what the manifest says, or an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self, cast, final

from tokenlake.errors import ConfigError, IntegrityError, MissingExtraError, NotFoundError
from tokenlake.reading.version import MEND, require_same, verified_bytes
from tokenlake.store.base import Digest, ReadStore
from tokenlake.store.catalog import Catalog
from tokenlake.store.layout import TOKENIZER, Layout
from tokenlake.store.local import LocalStore
from tokenlake.store.manifest import Manifest

_JSON = "tokenizer.json"


@final
class Decoder:
    """Decodes ids of one version; special tokens stay visible."""

    def __init__(self, tokenizer_json: bytes) -> None:
        self._json = tokenizer_json

    @classmethod
    def of(cls, store: ReadStore, manifest: Manifest, source: str | None = None) -> Self:
        """Read the tokenizer of a version, or of one of its sources, verified.

        Raises:
            NotFoundError: the version has no tokenizer.
            ConfigError: its sources have different tokenizers, and none is named.
        """
        where = f"{manifest.dataset}@v{manifest.version}"
        found = _tokenizers(manifest, "" if source is None else manifest.tokenizer[source].get("folder", ""))
        if not found:
            raise NotFoundError(f"{where} holds no {TOKENIZER}/{_JSON}; its ids cannot be decoded")
        if len(found) > 1:
            raise ConfigError(
                f"the sources of {where} have different tokenizers ({', '.join(sorted(found.values()))}), so its ids "
                "cannot be decoded without knowing the source; build one dataset for each"
            )
        return cls.all_of(store, manifest, found)[0]

    @classmethod
    def all_of(
        cls, store: ReadStore, manifest: Manifest, files: Mapping[str, str] | None = None
    ) -> list[Self]:
        """Read each tokenizer of a version, verified.

        Args:
            files: only of these: sha256 -> path.
        """
        layout = Layout(manifest.dataset, manifest.version)
        found = _tokenizers(manifest, "") if files is None else files
        return [cls(verified_bytes(store, layout, path, digest)) for digest, path in found.items()]

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingExtraError("decoding needs tokenizers: pip install 'tokenlake[etl]'") from error
        return Tokenizer.from_buffer(self._json)

    def text(self, ids: Iterable[int]) -> str:
        """Decode one run of ids; bytes that are no whole character become U+FFFD."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


def _tokenizers(manifest: Manifest, folder: str) -> dict[str, str]:
    """Return the tokenizers of a version that differ: sha256 -> the first path of each."""
    return {
        entry.sha256: path
        for path, entry in sorted(manifest.other_files.items(), reverse=True)
        if path.startswith(f"{TOKENIZER}/{folder}") and path.endswith(f"/{_JSON}")
    }


@final
class Decoders:
    """A decoder for each dataset of a store, loaded when first asked for."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._loaded: dict[str, Decoder] = {}

    def text(self, ids: Iterable[int], dataset: str) -> str:
        """Decode ids of ``dataset`` (``name`` or ``name@v3``)."""
        if dataset not in self._loaded:
            manifest = self._catalog.manifest(*self._catalog.resolve(dataset))
            self._loaded[dataset] = Decoder.of(self._catalog.store, manifest)
        return self._loaded[dataset].text(ids)


OnVerified = Callable[[int], None]
"""Called with the size of each file that was found whole; from several threads."""

_THREADS: Final = 4


@final
@dataclass(frozen=True, slots=True)
class VerifiedFiles:
    """Files of a store's versions, hashed, and on this machine.

    Attributes:
        store: they are read from; a folder's are hashed where they are, others are copied.
        copies: a folder for these copies, whose owner removes it.
        on_verified: told of each file.
    """

    store: ReadStore
    copies: Path
    on_verified: OnVerified | None = None

    def paths(self, layout: Layout, hashes: Mapping[str, str]) -> dict[str, Path]:
        """Return the local paths of files of a version.

        Args:
            hashes: path relative to the version -> sha256 (hex).

        Raises:
            IntegrityError: a file is missing or its bytes are not what was committed.
            StoreError: the store cannot be read.
        """

        def check(item: tuple[str, str]) -> tuple[str, Path]:
            path, expected = item
            key = layout.key(path)
            try:
                where, found = (
                    self._local(key) if isinstance(self.store, LocalStore) else self._copied(key, expected)
                )
            except NotFoundError as error:
                raise IntegrityError(
                    f"{key}: the file is missing; the manifest lists it. {MEND}", file=key
                ) from error
            require_same(key, expected, found.sha256)
            if self.on_verified:
                self.on_verified(found.bytes)
            return path, where

        # hashlib releases the GIL: threads hash as fast as the disk reads
        with ThreadPoolExecutor(_THREADS) as pool:
            return dict(pool.map(check, hashes.items()))

    def _local(self, key: str) -> tuple[Path, Digest]:
        with self.store.open(key) as stream:
            sha256 = hashlib.file_digest(cast("Any", stream), "sha256").hexdigest()
            size = stream.tell()
        return cast("LocalStore", self.store).local_path(key), Digest(size, sha256)

    def _copied(self, key: str, expected: str) -> tuple[Path, Digest]:
        """Copy a file, once more where the first copy is not what it should be: it may have changed on its way."""
        path = self.copies / key
        path.parent.mkdir(parents=True, exist_ok=True)
        found = self.store.download(key, path)
        if found.sha256 != expected:
            path.unlink()
            found = self.store.download(key, path)
        return path, found
