"""Verification of a manifest's statements on configuration and tokenizers, against the
version's own files and a probe.

A seal only proves that a manifest is as somebody wrote it. ``config.yaml`` states the
configuration once more, and ``tokenizer/`` holds all facts of a tokenizer: its files
are hashed, loaded, and must give the same ids for a fixed set of texts.

Not verified are ``name`` and ``revision``, under which the tokenizer was found and
which no file repeats; and, in versions whose unpacked rows come from other versions,
``eos_id``, ``pad_id`` and ``append_eos``, which nothing there uses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, cast, final

from tokenlake.base.fingerprint import canonical_json, canonical_text
from tokenlake.base.yaml_file import MAX_BYTES, parse_yaml
from tokenlake.errors import (
    ConfigError,
    IntegrityError,
    NotFoundError,
    StoreError,
    TokenizerError,
)
from tokenlake.etl.integrity.findings import Problem
from tokenlake.etl.tokenizers.files import KEPT_FILES, TokenizerFiles
from tokenlake.etl.tokenizers.fingerprint import describe, special_ids
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.diff import changes
from tokenlake.runtime.store.layout import CONFIG, MANIFEST, Layout, tokenizer_path
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.tokenizer_guard.backend import deliberate

_TOKENIZER_BYTES: Final = 1 << 28
"""Size of the largest tokenizer file that is read."""

_SHOWN: Final = 100
"""Characters of a value in a problem."""

_FREE_FACTS: Final = ("name", "revision", "folder")
"""Facts of a tokenizer that are taken from the manifest."""


def config_problems(
    store: ReadStore, layout: Layout, manifest: Manifest
) -> list[Problem]:
    """Compare configuration and tokenizers of a manifest with the version's files.

    Files that are damaged themselves are not looked into.
    """
    problems = _problems_of_config(store, layout, manifest)
    return problems + _TokenizerCheck(store, layout, manifest).problems()


def _problems_of_config(
    store: ReadStore, layout: Layout, manifest: Manifest
) -> list[Problem]:
    """Compare the configuration of a manifest with ``config.yaml``."""
    if CONFIG not in manifest.other_files:
        return [Problem(MANIFEST, "config", f"a file {CONFIG}", "none is listed")]
    data = _intact_file(store, layout, manifest, CONFIG, MAX_BYTES)
    if data is None:
        return []
    try:
        stated = parse_yaml(data.decode(), CONFIG).data
        canonical_json(stated)  # a date, for example, is no value of a configuration
    except (ConfigError, UnicodeDecodeError) as error:
        return [Problem(CONFIG, "config", "the configuration as YAML", str(error))]
    return _differences("config", stated, manifest.config)


@final
class _TokenizerCheck:
    """Compares the tokenizers of a manifest with the files in ``tokenizer/``.

    Args:
        store: Store of the version.
        layout: Keys of the version.
        manifest: Manifest of the version.
    """

    def __init__(self, store: ReadStore, layout: Layout, manifest: Manifest) -> None:
        self._store = store
        self._layout = layout
        self._manifest = manifest
        # Folder -> its tokenizer, which sources may share; None if a file of it is
        # damaged.
        self._files: dict[str, TokenizerFiles | None] = {}
        self._facts: dict[str, dict[str, Any]] = {}

    def problems(self) -> list[Problem]:
        """Return the problems of all sources."""
        manifest = self._manifest
        problems: list[Problem] = []
        sources = _mapping(manifest.config.get("sources"))
        is_made_of_versions = "around" in _mapping(manifest.config.get("build"))
        if not is_made_of_versions and sources.keys() != manifest.tokenizer.keys():
            expected = f"one of each of {sorted(sources)}"
            problems.append(
                Problem(
                    MANIFEST, "tokenizer", expected, f"{sorted(manifest.tokenizer)}"
                )
            )
        for source, stated in manifest.tokenizer.items():
            settings = _mapping(_mapping(sources.get(source)).get("tokenizer"))
            problems += self._source_problems(source, stated, settings)
        return problems

    def _source_problems(
        self, source: str, stated: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> list[Problem]:
        """Compare the stated facts of one source's tokenizer with its files.

        Args:
            source: Name of the source.
            stated: Facts in the manifest.
            settings: Settings of the tokenizer in the configuration.
        """
        word = f"tokenizer of {source}"
        folder = stated.get("folder")
        if not isinstance(folder, str):
            return [Problem(MANIFEST, word, "the folder that it is in", f"{folder}")]
        try:
            files = self._tokenizer(folder)
            if files is None:
                return []
            if folder not in self._facts:
                with deliberate(word):
                    self._facts[folder] = describe(files)
        except TokenizerError as error:
            return [
                Problem(
                    tokenizer_path(folder),
                    word,
                    "a tokenizer that can be loaded",
                    str(error),
                )
            ]
        expected = dict(self._facts[folder])
        for name in _FREE_FACTS:
            expected[name] = stated.get(name)
        expected |= self._special_ids(stated, files, expected["suffix"], settings)
        return _differences(word, expected, stated)

    def _tokenizer(self, folder: str) -> TokenizerFiles | None:
        """Return the files of a folder of ``tokenizer/``; None if one is damaged,
        which is reported elsewhere.
        """
        if folder not in self._files:
            self._files[folder] = self._load(folder)
        return self._files[folder]

    def _load(self, folder: str) -> TokenizerFiles | None:
        prefix = f"{tokenizer_path(folder)}/"
        files: dict[str, bytes] = {}
        for path in self._manifest.other_files:
            name = path.removeprefix(prefix)
            if not path.startswith(prefix) or name not in KEPT_FILES:
                continue
            data = _intact_file(
                self._store, self._layout, self._manifest, path, _TOKENIZER_BYTES
            )
            if data is None:
                return None
            files[name] = data
        return TokenizerFiles(name=prefix, files=files)

    def _special_ids(
        self,
        stated: Mapping[str, Any],
        files: TokenizerFiles,
        suffix: Any,
        settings: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the ids of EOS and padding, and whether packing adds EOS, as they
        follow from the configuration.
        """
        build = _mapping(self._manifest.config.get("build"))
        pack = _mapping(build.get("pack"))
        if "around" not in build:
            used_suffix = suffix if settings.get("add_special_tokens") else None
            return special_ids(
                files, used_suffix, pack.get("eos_token_id"), pack.get("pad_token_id")
            )
        # A version made of others: what it packs itself is in its configuration, all
        # else is not verified.
        packed_here: tuple[str, ...] = ()
        if pack:
            packed_here = ("eos_id", "pad_id", "append_eos")
        elif self._manifest.kind == "packed":
            packed_here = ("eos_id", "pad_id")
        expected: dict[str, Any] = {}
        for name in ("eos_id", "pad_id", "append_eos"):
            origin = build if name in packed_here else stated
            expected[name] = origin.get(name)
        return expected


def _intact_file(
    store: ReadStore, layout: Layout, manifest: Manifest, path: str, max_bytes: int
) -> bytes | None:
    """Return the bytes of a file; None if they are not those of the manifest, or too
    many to read.
    """
    entry = manifest.other_files[path]
    if entry.bytes > max_bytes:
        return None
    try:
        data = store.read(layout.key(path))
    except (NotFoundError, StoreError, IntegrityError):
        return None
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        return None
    return data


def _differences(word: str, expected: object, got: object) -> list[Problem]:
    """Return a problem for each key whose values differ."""
    problems: list[Problem] = []
    for change in changes(expected, got):
        expected_text = "nothing" if change.there == "b" else canonical_text(change.a)
        got_text = "nothing" if change.there == "a" else canonical_text(change.b)
        problems.append(
            Problem(
                MANIFEST,
                word,
                f"{change.key}: {expected_text:.{_SHOWN}}",
                f"{got_text:.{_SHOWN}}",
            )
        )
    return problems


def _mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping as it is; an empty one for any other value that a manifest
    may have in its place.
    """
    if not isinstance(value, dict):
        return {}
    return cast("Mapping[str, Any]", value)
