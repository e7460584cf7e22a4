"""Verification of a manifest's statements on configuration and tokenizers.

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
from tokenlake.etl.tokenizers.files import KEPT_FILES, TokenizerFiles
from tokenlake.etl.tokenizers.fingerprint import describe, special_ids
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.diff import changes
from tokenlake.runtime.store.file_check import Problem
from tokenlake.runtime.store.layout import CONFIG, MANIFEST, Layout, tokenizer_path
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.tokenizer_guard.loading import deliberate

_TOKENIZER_BYTES: Final = 1 << 28  # of the largest tokenizer file that is read
_SHOWN_CHARACTERS: Final = 100  # of a value in a problem
_FREE_FACTS: Final = ("name", "revision", "folder")  # taken from the manifest


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
    # A damaged file is reported by its hash; its contents prove nothing.
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
        # Folder -> its tokenizer, which sources may share, so that it is loaded once;
        # None if a file of it is damaged.
        self._files: dict[str, TokenizerFiles | None] = {}
        # Folder -> the facts that follow from its files.
        self._facts: dict[str, dict[str, Any]] = {}

    def problems(self) -> list[Problem]:
        """Return the problems of all sources."""
        manifest = self._manifest
        # Each source has a tokenizer. A version made of others has the tokenizers of
        # its parents.
        problems: list[Problem] = []
        sources = _mapping(manifest.config.get("sources"))
        is_made_of_versions = "around" in _mapping(manifest.config.get("build"))
        if not is_made_of_versions and sources.keys() != manifest.tokenizer.keys():
            expected = f"one of each of {sorted(sources)}"
            got = f"{sorted(manifest.tokenizer)}"
            problems.append(Problem(MANIFEST, "tokenizer", expected, got))
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
        # 1. The facts of the folder's files. A tokenizer of a version may be anything,
        # and is loaded with care.
        try:
            files = self._tokenizer(folder)
            if files is None:
                return []
            if folder not in self._facts:
                with deliberate(word):
                    self._facts[folder] = describe(files)
        except TokenizerError as error:
            path = tokenizer_path(folder)
            expected_state = "a tokenizer that can be loaded"
            return [Problem(path, word, expected_state, str(error))]

        # 2. Facts that no file repeats, and special ids, which the configuration
        #    decides.
        expected = dict(self._facts[folder])
        for fact in _FREE_FACTS:
            expected[fact] = stated.get(fact)
        expected |= self._special_ids(stated, files, expected["suffix"], settings)
        return _differences(word, expected, stated)

    def _tokenizer(self, folder: str) -> TokenizerFiles | None:
        """Return the files of a folder of ``tokenizer/``; None if one is damaged.

        A damaged file is reported elsewhere.
        """
        if folder not in self._files:
            self._files[folder] = self._load(folder)
        return self._files[folder]

    def _load(self, folder: str) -> TokenizerFiles | None:
        """Read the files of a folder; None if one is damaged."""
        prefix = f"{tokenizer_path(folder)}/"
        files: dict[str, bytes] = {}
        for path in self._manifest.other_files:
            file_name = path.removeprefix(prefix)
            # Other files of a tokenizer, such as its licence, decide no id.
            if not path.startswith(prefix) or file_name not in KEPT_FILES:
                continue
            data = _intact_file(
                self._store, self._layout, self._manifest, path, _TOKENIZER_BYTES
            )
            if data is None:
                return None
            files[file_name] = data
        return TokenizerFiles(name=prefix, files=files)

    def _special_ids(
        self,
        stated: Mapping[str, Any],
        files: TokenizerFiles,
        suffix: Any,
        settings: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the special ids that follow from the configuration.

        These are the ids of EOS and padding, and whether packing adds EOS.
        """
        build = _mapping(self._manifest.config.get("build"))
        pack = _mapping(build.get("pack"))
        if "around" not in build:
            # The suffix of the tokenizer counts only if its special tokens are added.
            used_suffix = None
            if settings.get("add_special_tokens"):
                used_suffix = suffix
            eos_id = pack.get("eos_token_id")
            return special_ids(files, used_suffix, eos_id, pack.get("pad_token_id"))
        # A version made of others: its own packing is in its configuration, all else is
        # not verified.
        configured_facts: tuple[str, ...] = ()
        if pack:
            configured_facts = ("eos_id", "pad_id", "append_eos")
        elif self._manifest.kind == "packed":
            configured_facts = ("eos_id", "pad_id")
        expected: dict[str, Any] = {}
        for fact in ("eos_id", "pad_id", "append_eos"):
            expected[fact] = stated.get(fact)
            if fact in configured_facts:
                expected[fact] = build.get(fact)
        return expected


def _intact_file(
    store: ReadStore, layout: Layout, manifest: Manifest, path: str, max_bytes: int
) -> bytes | None:
    """Return the bytes of a file that the manifest lists; None if they are damaged.

    None also if they are too many to read.
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
        expected_text = "nothing"
        got_text = "nothing"
        if change.is_in_a:
            expected_text = canonical_text(change.a)
        if change.is_in_b:
            got_text = canonical_text(change.b)
        # A template of a chat has thousands of characters.
        shown_expected = f"{change.key}: {expected_text:.{_SHOWN_CHARACTERS}}"
        shown_got = f"{got_text:.{_SHOWN_CHARACTERS}}"
        problems.append(Problem(MANIFEST, word, shown_expected, shown_got))
    return problems


def _mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping as it is; an empty one for any other value.

    A manifest is sealed by whoever wrote it, and may have any value in its place.
    """
    if not isinstance(value, dict):
        return {}
    return cast("Mapping[str, Any]", value)
