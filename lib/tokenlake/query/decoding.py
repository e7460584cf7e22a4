"""Ids back to text, with the version's own copy of its tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Self, final

from tokenlake.catalog import Catalog
from tokenlake.errors import ConfigError, MissingExtraError, NotFoundError
from tokenlake.manifest import Manifest
from tokenlake.reading.verified import verified_bytes
from tokenlake.storage import Layout, ReadStore
from tokenlake.storage.layout import TOKENIZER

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
        folder = "" if source is None else manifest.tokenizer[source].get("folder", "")
        found = {
            path: entry.sha256
            for path, entry in manifest.other_files.items()
            if path.startswith(f"{TOKENIZER}/{folder}") and path.endswith(f"/{_JSON}")
        }
        if not found:
            raise NotFoundError(f"{where} holds no {TOKENIZER}/{_JSON}; its ids cannot be decoded")
        if len(set(found.values())) > 1:
            raise ConfigError(
                f"the sources of {where} have different tokenizers ({', '.join(sorted(found))}), so its ids "
                "cannot be decoded without knowing the source; build one dataset for each"
            )
        path, digest = min(found.items())
        return cls(verified_bytes(store, Layout(manifest.dataset, manifest.version), path, digest))

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
