"""The tokenizers of parents, which go along into what is made of their rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from tokenlake.build.mixing.planning.parents import FoundParent
from tokenlake.errors import IntegrityError, NotFoundError
from tokenlake.storage import Layout, Store
from tokenlake.storage.layout import TOKENIZER


def tokenizer_folder(parent: FoundParent, source: str) -> str:
    """Return the folder of a source's tokenizer in the parent, relative to the version."""
    folder = parent.manifest.tokenizer[source].get("folder", "")
    return f"{TOKENIZER}/{folder}" if folder else TOKENIZER


def read_tokenizer(store: Store, parent: FoundParent, source: str) -> dict[str, bytes]:
    """Return the files of a source's tokenizer, compared with the parent's manifest.

    Raises:
        IntegrityError: one is missing or changed; names it.
    """
    layout = Layout(parent.manifest.dataset, parent.manifest.version)
    folder = tokenizer_folder(parent, source)
    hashes: dict[str, str] = parent.manifest.tokenizer[source]["files"]
    found: dict[str, bytes] = {}
    for name, expected in sorted(hashes.items()):
        path = f"{folder}/{name}"
        try:
            data = store.read(layout.key(path))
        except NotFoundError as error:
            raise _damaged(parent, path, "is missing") from error
        digest = hashlib.sha256(data).hexdigest()
        if digest != expected:
            raise _damaged(parent, path, f"has sha256 {digest}; expected {expected}")
        found[name] = data
    return found


def merged_tokenizers(parents: Sequence[FoundParent]) -> dict[str, tuple[FoundParent, dict[str, Any]]]:
    """Return source of the original texts -> (a parent that has it, what the new manifest says of its tokenizer).

    Sources of one name have one line: their ids mean the same, or there would be no plan.
    """
    found: dict[str, tuple[FoundParent, dict[str, Any]]] = {}
    for parent in parents:
        for source, facts in parent.manifest.tokenizer.items():
            found.setdefault(source, (parent, facts))
    alone = len({_digest(facts) for _, facts in found.values()}) == 1
    return {
        source: (parent, {**facts, "folder": "" if alone else _digest(facts)[:16]})
        for source, (parent, facts) in found.items()
    }


def _digest(facts: dict[str, Any]) -> str:
    """One hash over the hashes of a tokenizer's files."""
    return hashlib.sha256(repr(sorted(facts["files"].items())).encode()).hexdigest()


def _damaged(parent: FoundParent, path: str, problem: str) -> IntegrityError:
    return IntegrityError(
        f"{parent.reference}: {path} {problem}. Run `tokenlake verify {parent.reference}` to see all that is damaged",
        file=path,
    )
