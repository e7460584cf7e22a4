"""Events about versions of datasets, for automations of a Prefect server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from prefect.events import emit_event

from tokenlake.runtime.store.manifest import Manifest
from tokenlake_tasks.assets import dataset_asset

COMMITTED: Final = "tokenlake.version.committed"
DAMAGED: Final = "tokenlake.version.damaged"
PUSHED: Final = "tokenlake.version.pushed"


def facts_of(store: str, manifest: Manifest) -> dict[str, Any]:
    """Return the payload of the event of a committed version.

    It is JSON and holds no secret.
    """
    # The hash of the manifest identifies the bytes: a receiver can compare its copy.
    totals = manifest.totals
    return {
        **version_facts(store, manifest.dataset, manifest.version),
        "manifest_sha256": manifest.sha256,
        "fingerprint": manifest.fingerprint,
        "kind": manifest.kind,
        "tokens": totals.tokens,
        "rows": totals.rows,
        "documents": totals.documents,
        "files": totals.files,
        "bytes": totals.bytes,
        "splits": {
            split_name: split.rows for split_name, split in manifest.splits.items()
        },
        "parents": [
            f"{parent.dataset}@v{parent.version}" for parent in manifest.parents
        ],
    }


def version_facts(store: str, dataset: str, version: int) -> dict[str, Any]:
    """Return the facts that identify a version.

    Their names are parameters of the flows, too.
    """
    return {
        "dataset": dataset,
        "version": version,
        "name": f"{dataset}@v{version}",
        "store": store,
    }


def emit(event: str, facts: Mapping[str, Any]) -> None:
    """Emit an event about a version.

    Prefect adds the run, its deployment and their tags.
    """
    dataset = facts["dataset"]
    store = facts["store"]
    # Automations match the labels of the resource; the asset links the event to the
    # page of the dataset.
    labels = {
        "prefect.resource.id": f"tokenlake.dataset.{dataset}",
        "prefect.resource.name": f"{dataset} v{facts['version']}",
        "tokenlake.dataset": dataset,
        "tokenlake.version": str(facts["version"]),
        "tokenlake.store": store,
    }
    related_asset = {
        "prefect.resource.id": dataset_asset(store, dataset).key,
        "prefect.resource.role": "asset",
    }
    emit_event(event, labels, related=[related_asset], payload=dict(facts))
