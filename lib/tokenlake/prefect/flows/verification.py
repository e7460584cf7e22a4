"""Is what is stored still what was committed? For schedules: nightly, or before a training run."""

from __future__ import annotations

from typing import Any, TypeAlias

from prefect import flow
from prefect.client.schemas.objects import State

from tokenlake.build.runner import available_cpus
from tokenlake.catalog import Catalog
from tokenlake.config.stores import default_store
from tokenlake.errors import TokenlakeError
from tokenlake.prefect.flows.parameters import Count, Text, Texts
from tokenlake.prefect.tasks.ending import final_state
from tokenlake.prefect.tasks.naming import verify_run_name
from tokenlake.prefect.tasks.policy import require_allowed_store
from tokenlake.prefect.tasks.verifying import (
    committed_versions,
    publish_findings,
    require_well,
    verify_version,
)
from tokenlake.storage import open_store

Verified: TypeAlias = dict[str, Any]
"""JSON-able: how many versions and bytes were read."""


@flow(name="verify", flow_run_name=verify_run_name, persist_result=False)
def verify(
    names: Texts = (), store: Text = "", deep: bool = True, workers: Count = 0
) -> Verified | State[Any]:
    """Verify versions of datasets: every byte against its manifest, and with `deep` every checksum, count and token. A run that finds damage fails, and says what is damaged.

    Args:
        names: Datasets, or versions such as `books@v3` or `books@prod`. Empty: everything in the store.
        store: Store to look at. Empty: `TOKENLAKE_STORE`, else `./artifacts`.
        deep: Also decode every row: checksums of pages, counts, provenance, logical hashes.
        workers: Threads. 0: one per core.
    """  # noqa: E501 - a line break here is a line break in the form
    try:
        address = store or default_store()
        require_allowed_store(address)
        opened = open_store(address)
        versions = committed_versions(Catalog(opened), names or ())
        threads = workers or available_cpus()
        # One after the other: each takes all threads.
        reports = [verify_version(opened, dataset, version, deep, threads) for dataset, version in versions]
        publish_findings(reports)
        require_well(reports)
        return {"versions": len(reports), "bytes": sum(report.bytes for report in reports)}
    except (KeyboardInterrupt, TokenlakeError) as error:
        return final_state(error)
