"""Ids back to text, with the version's own copy of its tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Self, final

from tokenlake.errors import ConfigError, NotFoundError
from tokenlake.reading.version import verified_bytes
from tokenlake.store.base import ReadStore
from tokenlake.store.layout import TOKENIZER, Layout
from tokenlake.store.manifest import Manifest
from tokenlake.tokenizers.files import TOKENIZER_JSON
from tokenlake.tokenizers.reference import load_backend


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
            raise NotFoundError(f"{where} holds no {TOKENIZER}/{TOKENIZER_JSON}; its ids cannot be decoded")
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
        return load_backend("of the version", self._json)

    def text(self, ids: Iterable[int]) -> str:
        """Decode one run of ids; bytes that are no whole character become U+FFFD."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


def _tokenizers(manifest: Manifest, folder: str) -> dict[str, str]:
    """Return the tokenizers of a version that differ: sha256 -> the first path of each."""
    return {
        entry.sha256: path
        for path, entry in sorted(manifest.other_files.items(), reverse=True)
        if path.startswith(f"{TOKENIZER}/{folder}") and path.endswith(f"/{TOKENIZER_JSON}")
    }
