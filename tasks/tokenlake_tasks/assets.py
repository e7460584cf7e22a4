"""Datasets as Prefect knows them: assets with their lineage, and keys of artifacts.

Each version of a dataset is one materialization of its asset. Upstream are assets, too:
the folders, patterns and repositories of its inputs, and the datasets of its parent
versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from prefect.assets import Asset
from prefect.assets.core import AssetProperties

from tokenlake.base.fingerprint import fingerprint
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.sources.formats import has_wildcard, static_folder

_REFUSED: Final = re.compile(r"""[\s\0#?&%"'<>\[\]{}|\\^`]""")
"""Characters that Prefect does not allow in the key of an asset."""

_LONGEST: Final = 512
"""Largest number of characters in the key of an asset."""

_MOST_INPUTS: Final = 16
"""Largest number of assets for the inputs of one source. Beyond it, the folders of
the files are the assets.
"""


def artifact_key(kind: str, dataset: str) -> str:
    """Return the key of an artifact.

    It may hold lower-case letters, digits and dashes only.

    >>> artifact_key("tokens", "web.v2_clean")
    'tokens-web-v2-clean'
    """
    return f"{kind}-{re.sub('[^a-z0-9]+', '-', dataset).strip('-')}"


def asset_key(address: str) -> str:
    """Return the key of a path or URL, without password and query.

    Characters that are not allowed become ``_``.

    >>> asset_key("s3://me:secret@lake/raw data/a.jsonl?signature=x")
    's3://lake/raw_data/a.jsonl'
    """
    scheme, separator, path_of_url = address.partition("://")
    # A URL keeps its scheme, host and path. Anything else is a path of this machine,
    # made absolute, so that the same input has one key.
    if separator and re.fullmatch("[A-Za-z0-9]+", scheme) and scheme.lower() != "file":
        host_name, slash, path = re.split("[?#]", path_of_url, maxsplit=1)[0].partition(
            "/"
        )
        key = f"{scheme.lower()}://{host_name.rpartition('@')[2]}{slash}{path}"
    else:
        path = Path(path_of_url if scheme.lower() == "file" else address)
        with suppress(RuntimeError):  # "~name" where no user has that name
            path = path.expanduser()
        key = f"file://{path.absolute().as_posix()}"
    key = _REFUSED.sub("_", key)
    # A long key is cut, and a hash of all of it keeps it unique.
    if len(key) <= _LONGEST:
        return key
    return f"{key[: _LONGEST - 17]}-{fingerprint(key)[:16]}"


def dataset_asset(store: str, dataset: str) -> Asset:
    """Return the asset of a dataset."""
    return Asset(
        key=asset_key(f"{store}/{dataset}"), properties=AssetProperties(name=dataset)
    )


def upstream_assets(store: str, plan: Plan) -> list[Asset]:
    """Return the assets that a build reads: inputs of its texts, and parent datasets."""
    # A dictionary, because sources may share folders, and parents may be the same
    # dataset at two versions.
    assets: dict[str, Asset] = {}
    for source in plan.build.sources:
        for root in input_roots(source.data_files, source.type or ""):
            input_key = asset_key(root)
            assets[input_key] = Asset(key=input_key)
    for parent in plan.parents:
        dataset = dataset_asset(store, parent.lineage.dataset)
        assets[dataset.key] = dataset
    return list(assets.values())


def input_roots(patterns: Iterable[str], kind: str = "") -> list[str]:
    """Return the places of inputs: files and folders as named.

    Of a pattern, the place is the folder before its first wildcard.

    >>> input_roots(["raw/*.jsonl", "raw/2024/**/a.csv", "b.csv"])
    ['raw', 'raw/2024', 'b.csv']
    """
    if kind == "hub":
        return [f"hf://datasets/{pattern}" for pattern in patterns]
    # Dicts keep the order and drop duplicates.
    roots: dict[str, None] = {}
    for pattern in patterns:
        root = static_folder(pattern) if has_wildcard(pattern) else pattern
        roots[root] = None
    if len(roots) <= _MOST_INPUTS:
        return list(roots)
    # With very many inputs, their folders stand for them.
    folders = dict.fromkeys(root.rpartition("/")[0] for root in roots)
    return list(folders)[:_MOST_INPUTS]
