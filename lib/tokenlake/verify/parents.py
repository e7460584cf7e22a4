"""The versions that a version was made from, as far as they are still there."""

from __future__ import annotations

from tokenlake.catalog import Catalog
from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.manifest import Manifest, MixedSource
from tokenlake.storage.base import ReadStore
from tokenlake.storage.layout import MANIFEST
from tokenlake.verify.report import Problem


def parent_problems(store: ReadStore, manifest: Manifest) -> list[Problem]:
    """Compare what a manifest says of its parents with those that the store has; one that is gone is no problem."""
    catalog, found = Catalog(store), list[Problem]()
    for parent in manifest.parents:
        name = f"{parent.dataset}@v{parent.version}"
        try:
            there = catalog.manifest(parent.dataset, parent.version)
        except NotFoundError:
            continue
        except (IntegrityError, StoreError) as error:
            found.append(Problem(MANIFEST, f"parent {name}", "a sealed manifest", str(error)))
            continue
        if there.sha256 != parent.sha256:
            found.append(Problem(MANIFEST, f"parent {name}", parent.sha256, there.sha256))
            continue
        found += _sources(manifest, there)
    return found


def _sources(manifest: Manifest, parent: Manifest) -> list[Problem]:
    """What is wrong with the sources of a mixture that are a parent's."""
    if manifest.mixture is None:
        return []
    of_parent = (parent.dataset, parent.version)
    found: list[Problem] = []
    for name, source in manifest.mixture.sources.items():
        if (source.dataset, source.version) == of_parent:
            expected, got = _split(parent, source.split), _stated(source)
            if expected != got:
                found.append(Problem(MANIFEST, f"mixture source {name}", f"{expected}", f"{got}"))
    return found


def _stated(source: MixedSource) -> dict[str, int]:
    return {"rows": source.rows, "tokens": source.tokens, "window": source.window}


def _split(parent: Manifest, split: str) -> dict[str, int]:
    """Rows, tokens and window of a parent's split."""
    shards = [shard for shard in parent.files if shard.split == split]
    rows, groups = sum(shard.rows for shard in shards), sum(len(shard.row_groups) for shard in shards)
    window = max(1, -(-rows // max(1, groups)))
    return {"rows": rows, "tokens": sum(shard.tokens for shard in shards), "window": window}
