"""Datasets as Prefect knows them: assets with their lineage, and keys of artifacts.

Each version of a dataset is one materialization of its asset. Upstream are assets, too: the folders, patterns and
repositories of its inputs, and the datasets of its parent versions.
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

# What Prefect's keys may not have, or not be longer than.
_REFUSED: Final = re.compile(r"""[\s\0#?&%"'<>\[\]{}|\\^`]""")
_LONGEST: Final = 512
_MOST_INPUTS: Final = 16  # assets that one source's inputs are; more files are the folder that holds them


def artifact_key(kind: str, dataset: str) -> str:
    """Prefect's keys know only lower-case letters, digits and dashes.

    >>> artifact_key("tokens", "web.v2_clean")
    'tokens-web-v2-clean'
    """
    return f"{kind}-{re.sub('[^a-z0-9]+', '-', dataset).strip('-')}"


def asset_key(address: str) -> str:
    """Return the key of what lies at a path or URL: no password, no query, and ``_`` for what keys may not have.

    >>> asset_key("s3://me:secret@lake/raw data/a.jsonl?signature=x")
    's3://lake/raw_data/a.jsonl'
    """
    scheme, separator, rest = address.partition("://")
    if separator and re.fullmatch("[A-Za-z0-9]+", scheme) and scheme.lower() != "file":
        host, slash, path = re.split("[?#]", rest, maxsplit=1)[0].partition("/")
        key = f"{scheme.lower()}://{host.rpartition('@')[2]}{slash}{path}"
    else:
        path = Path(rest if scheme.lower() == "file" else address)
        with suppress(RuntimeError):  # a name that begins with ~ and is nobody's home
            path = path.expanduser()
        key = f"file://{path.absolute().as_posix()}"
    key = _REFUSED.sub("_", key)
    return key if len(key) <= _LONGEST else f"{key[: _LONGEST - 17]}-{fingerprint(key)[:16]}"


def dataset_asset(store: str, dataset: str) -> Asset:
    """Return the asset that a dataset is."""
    return Asset(key=asset_key(f"{store}/{dataset}"), properties=AssetProperties(name=dataset))


def upstream_assets(store: str, plan: Plan) -> list[Asset]:
    """Return what a build reads: the inputs of its texts, and the datasets of its parents."""
    inputs = [
        root for source in plan.build.sources for root in input_roots(source.data_files, source.type or "")
    ]
    parents = [dataset_asset(store, parent.lineage.dataset) for parent in plan.parents]
    found = [*(Asset(key=asset_key(root)) for root in inputs), *parents]
    return list({asset.key: asset for asset in found}.values())


def input_roots(patterns: Iterable[str], kind: str = "") -> list[str]:
    """Return where inputs lie: files and folders as named, and of a pattern the folder before its first wildcard.

    >>> input_roots(["raw/*.jsonl", "raw/2024/**/a.csv", "b.csv"])
    ['raw', 'raw/2024', 'b.csv']
    """
    if kind == "hub":
        return [f"hf://datasets/{pattern}" for pattern in patterns]
    roots = list(dict.fromkeys(static_folder(each) if has_wildcard(each) else each for each in patterns))
    if len(roots) <= _MOST_INPUTS:
        return roots
    return list(dict.fromkeys(root.rpartition("/")[0] for root in roots))[:_MOST_INPUTS]
