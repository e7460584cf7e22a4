"""Flow `verify`, which compares versions of datasets with their manifests."""

from __future__ import annotations

from typing import Any, TypeAlias

from prefect import flow
from prefect.client.schemas.objects import State

from tokenlake.base.threads import available_cpus
from tokenlake.errors import TokenlakeError
from tokenlake.etl.integrity.findings import VerifyReport
from tokenlake.runs.policy import check_store
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.schemes import default_store
from tokenlake_flows.names import run_name
from tokenlake_flows.parameters import Count, Text, Texts
from tokenlake_flows.states import final_state
from tokenlake_tasks.bounds import bounds_of_run
from tokenlake_tasks.verify import (
    committed_versions,
    publish_findings,
    require_undamaged,
)
from tokenlake_tasks.verify import verify as verify_version

Verified: TypeAlias = dict[str, Any]
"""Number of versions, and number of bytes that were read."""


def _name_of_run(parameters: dict[str, Any]) -> str:
    """Return the name of a run, from the first three names of its parameters."""
    names = parameters.get("names") or ["all-versions"]
    ellipsis = " ..." if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{ellipsis}"


@flow(name="verify", flow_run_name=run_name(_name_of_run), persist_result=False)
def verify(
    names: Texts = (), store: Text = "", deep: bool = True, workers: Count = 0
) -> Verified | State[Any]:
    """Verify versions of datasets: every byte against its manifest, and with `deep` every checksum, count and token. The run fails if it finds damage, and names the damaged files.

    Args:
        names: Datasets, or versions such as `books@v3` or `books@prod`. Default: all versions in the store.
        store: Path or URL of the store. Default: `TOKENLAKE_STORE`, then `./artifacts`.
        deep: Decode every row, too: page checksums, counts, provenance and logical hashes.
        workers: Number of threads. 0: one per core.
    """  # noqa: E501 - a line break here is a line break in the form
    try:
        address = store or default_store()
        bounds_of_run().require(check_store, address, {})
        opened = open_store(address)
        versions = committed_versions(Catalog(opened), names or ())
        threads = workers or available_cpus()
        # Versions are verified one after the other, each by all threads.
        reports: list[VerifyReport] = []
        for dataset, version in versions:
            reports.append(verify_version(opened, dataset, version, deep, threads))
        # All findings are published before the run may fail.
        publish_findings(reports)
        require_undamaged(reports)
        return {
            "versions": len(reports),
            "bytes": sum(report.bytes for report in reports),
        }
    except (KeyboardInterrupt, TokenlakeError) as error:
        return final_state(error)
