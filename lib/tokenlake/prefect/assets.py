"""A dataset as Prefect knows it: an asset with its lineage, and the events that automations wait for.

Each version of a dataset is one materialization of its asset. What it was made from are assets, too: the folders,
patterns and repositories of its inputs, and the datasets of its parent versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prefect.assets import Asset
from prefect.assets.core import AssetProperties
from prefect.events import emit_event

from tokenlake.etl.plan.plan import Plan
from tokenlake.fingerprint import fingerprint
from tokenlake.sources.globs import has_wildcard, static_folder
from tokenlake.store.manifest import Manifest

if TYPE_CHECKING:
    from tokenlake.integrity.findings import VerifyReport
    from tokenlake.publish.push import PushReport

COMMITTED: Final = "tokenlake.version.committed"
DAMAGED: Final = "tokenlake.version.damaged"
PUSHED: Final = "tokenlake.version.pushed"

# What Prefect's keys may not have, or not be longer than.
_REFUSED: Final = re.compile(r"""[\s\0#?&%"'<>\[\]{}|\\^`]""")
_LONGEST: Final = 512

_MOST_INPUTS: Final = 16  # assets that one source's inputs are; more files are the folder that holds them
_SHOWN: Final = 20  # problems in an event


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


def facts_of(store: str, manifest: Manifest) -> dict[str, Any]:
    """Return what the event of a version says, and its materialization: JSON-able, with no secret."""
    totals = manifest.totals
    return {
        **_called(store, manifest.dataset, manifest.version),
        "manifest_sha256": manifest.sha256,
        "fingerprint": manifest.fingerprint,
        "kind": manifest.kind,
        **{name: getattr(totals, name) for name in ("tokens", "rows", "documents", "files", "bytes")},
        "splits": {name: split.rows for name, split in manifest.splits.items()},
        "parents": [f"{parent.dataset}@v{parent.version}" for parent in manifest.parents],
    }


def tell_committed(facts: Mapping[str, Any]) -> None:
    """Emit that a version is there."""
    _emit(COMMITTED, facts)


def tell_damaged(store: str, report: VerifyReport) -> None:
    """Emit that a version is damaged, with the first problems."""
    problems = [f"{problem.path}: {problem.problem}" for problem in report.problems]
    called = _called(store, report.dataset, report.version)
    _emit(DAMAGED, {**called, "problems": len(problems), "first_problems": problems[:_SHOWN]})


def tell_pushed(store: str, dataset: str, version: int, report: PushReport) -> None:
    """Emit that a version is on the Hub."""
    _emit(PUSHED, {**_called(store, dataset, version), "url": report.url, "tag": report.tag})


def _called(store: str, dataset: str, version: int) -> dict[str, Any]:
    """Which version, in words that are a flow's parameters, too."""
    return {"dataset": dataset, "version": version, "name": f"{dataset}@v{version}", "store": store}


def _emit(event: str, facts: Mapping[str, Any]) -> None:
    """Emit an event about a dataset; Prefect adds the run, its deployment and their tags."""
    dataset, store = facts["dataset"], facts["store"]
    labels = {
        "prefect.resource.id": f"tokenlake.dataset.{dataset}",
        "prefect.resource.name": f"{dataset} v{facts['version']}",
        "tokenlake.dataset": dataset,
        "tokenlake.version": str(facts["version"]),
        "tokenlake.store": store,
    }
    asset = {"prefect.resource.id": dataset_asset(store, dataset).key, "prefect.resource.role": "asset"}
    emit_event(event, labels, related=[asset], payload=dict(facts))
