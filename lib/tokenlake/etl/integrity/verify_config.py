"""What a manifest states of its configuration and tokenizers, compared with the version's own files and a probe.

Seals only tell that a manifest is as somebody wrote it. ``config.yaml`` says the configuration once more, and
``tokenizer/`` holds all that is said of a tokenizer: its files are hashed, loaded, and give the ids of a fixed set of
texts again. Free are ``name`` and ``revision``, under which somebody found the tokenizer and which no file repeats; and
of versions whose unpacked rows come from other versions ``eos_id``, ``pad_id`` and ``append_eos``, which nothing there
uses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from tokenlake.base.fingerprint import canonical_json, canonical_text
from tokenlake.base.yaml_file import MAX_BYTES, parse_yaml
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError, StoreError, TokenizerError
from tokenlake.etl.integrity.findings import Problem
from tokenlake.etl.tokenizers.files import KEPT_FILES, TokenizerFiles
from tokenlake.etl.tokenizers.fingerprint import describe, special_ids
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.diff import changes
from tokenlake.runtime.store.layout import CONFIG, MANIFEST, Layout, tokenizer_path
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.tokenizer_guard.backend import deliberate

_TOKENIZER_BYTES: Final = 1 << 28
_SHOWN: Final = 100


def config_problems(store: ReadStore, layout: Layout, manifest: Manifest) -> list[Problem]:
    """Return what the version's files say otherwise; files that are damaged themselves are not looked into."""
    of_tokenizers = list(_of_tokenizers(store, layout, manifest))
    if CONFIG not in manifest.other_files:
        return [Problem(MANIFEST, "config", f"a file {CONFIG}", "none is listed"), *of_tokenizers]
    data = _intact(store, layout, manifest, CONFIG, MAX_BYTES)
    if data is None:
        return of_tokenizers
    try:
        stated = parse_yaml(data.decode(), CONFIG).data
        canonical_json(stated)  # a date, say, is no value of a configuration
    except (ConfigError, UnicodeDecodeError) as error:
        return [Problem(CONFIG, "config", "the configuration as YAML", str(error)), *of_tokenizers]
    return [*_differences("config", stated, manifest.config), *of_tokenizers]


def _of_tokenizers(store: ReadStore, layout: Layout, manifest: Manifest) -> Iterator[Problem]:
    sources = _mapping(manifest.config.get("sources"))
    made_of_versions = "around" in _mapping(manifest.config.get("build"))
    if not made_of_versions and sources.keys() != manifest.tokenizer.keys():
        got = f"{sorted(manifest.tokenizer)}"
        yield Problem(MANIFEST, "tokenizer", f"one of each of {sorted(sources)}", got)
    loaded: dict[str, TokenizerFiles | None] = {}
    described: dict[str, dict[str, Any]] = {}
    for source, facts in manifest.tokenizer.items():
        what, folder = f"tokenizer of {source}", facts.get("folder")
        if not isinstance(folder, str):
            yield Problem(MANIFEST, what, "the folder that it is in", f"{folder}")
            continue
        try:
            if folder not in loaded:
                loaded[folder] = _load(store, layout, manifest, folder)
            if (files := loaded[folder]) is None:
                continue
            if folder not in described:
                with deliberate(what):
                    described[folder] = describe(files)
        except TokenizerError as error:
            yield Problem(tokenizer_path(folder), what, "a tokenizer that can be loaded", str(error))
            continue
        expected = described[folder] | {key: facts.get(key) for key in ("name", "revision", "folder")}
        settings = _mapping(_mapping(sources.get(source)).get("tokenizer"))
        expected |= _ids(manifest, facts, files, expected["suffix"], settings)
        yield from _differences(what, expected, facts)


def _ids(
    manifest: Manifest,
    facts: Mapping[str, Any],
    files: TokenizerFiles,
    suffix: Any,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the ids of EOS and padding, and whether packing adds EOS, as the configuration makes them."""
    build = _mapping(manifest.config.get("build"))
    pack = _mapping(build.get("pack"))
    if "around" not in build:
        asked = pack.get("eos_token_id"), pack.get("pad_token_id")
        return special_ids(files, suffix if settings.get("add_special_tokens") else None, *asked)
    keys = ("eos_id", "pad_id", "append_eos")
    packed_here = keys if pack else keys[:2] if manifest.kind == "packed" else ()
    return {key: (build if key in packed_here else facts).get(key) for key in keys}


def _load(store: ReadStore, layout: Layout, manifest: Manifest, folder: str) -> TokenizerFiles | None:
    """Return the files of a folder of ``tokenizer/``; None where one is damaged, which is told elsewhere."""
    prefix = f"{tokenizer_path(folder)}/"
    names = [path.removeprefix(prefix) for path in manifest.other_files if path.startswith(prefix)]
    found = {
        name: _intact(store, layout, manifest, prefix + name, _TOKENIZER_BYTES)
        for name in names
        if name in KEPT_FILES
    }
    if None in found.values():
        return None
    return TokenizerFiles(name=prefix, files=cast("dict[str, bytes]", found))


def _intact(store: ReadStore, layout: Layout, manifest: Manifest, path: str, most: int) -> bytes | None:
    """Return a file as the manifest knows it; None where it is another one, or more than anybody reads."""
    entry = manifest.other_files[path]
    if entry.bytes > most:
        return None
    try:
        data = store.read(layout.key(path))
    except (NotFoundError, StoreError, IntegrityError):
        return None
    return data if hashlib.sha256(data).hexdigest() == entry.sha256 else None


def _differences(what: str, expected: object, got: object) -> Iterator[Problem]:
    for each in changes(expected, got):
        one = "nothing" if each.there == "b" else canonical_text(each.a)
        other = "nothing" if each.there == "a" else canonical_text(each.b)
        yield Problem(MANIFEST, what, f"{each.key}: {one:.{_SHOWN}}", f"{other:.{_SHOWN}}")


def _mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping as it is, and nothing for what somebody wrote in its place."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}
