"""Is what is stored still what was committed? For schedules: nightly, or before a training run.

A version on the Hugging Face Hub: for schedules, and after a build that somebody looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from prefect import flow
from prefect.client.schemas.objects import State
from pydantic import WithJsonSchema

from tokenlake.config.stores import default_store
from tokenlake.errors import TokenlakeError
from tokenlake.prefect.flows import Count, Text, Texts
from tokenlake.prefect.maintenance_tasks import (
    check_reference,
    committed_versions,
    publish_findings,
    push_version,
    require_well,
    verify_version,
)
from tokenlake.prefect.policy import (
    require_allowed_reference,
    require_allowed_repository,
    require_allowed_store,
)
from tokenlake.prefect.run_state import final_state, push_run_name, verify_run_name
from tokenlake.store.address import open_store
from tokenlake.store.catalog import Catalog
from tokenlake.threads import available_cpus

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


Reference: TypeAlias = Annotated[
    Mapping[str, str] | None,
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
]


@flow(name="push", flow_run_name=push_run_name, persist_result=False)
def push(
    name: str, repo: str, store: Text = "", revision: Text = "", token: Reference = None, strict: bool = True
) -> dict[str, Any] | State[Any]:
    """Upload a version to a private dataset repository of the Hugging Face Hub. One that is there already is not sent again; public repositories are for `tokenlake push --public`, which a person runs.

    Args:
        name: Dataset, or one version of it, such as `books@v3` or `books@prod`.
        repo: `org/name`; created as a private one where there is none.
        store: Store that holds it. Empty: `TOKENLAKE_STORE`, else `./artifacts`.
        revision: Branch. Empty: `main`.
        token: `{"env": NAME}` or `{"block": NAME}`, never the token. Empty: the worker's `HF_TOKEN`, else its login.
        strict: Refuse also for what looks like a secret in sampled rows.
    """  # noqa: E501 - a line break here is a line break in the form
    try:
        address = store or default_store()
        require_allowed_store(address)
        require_allowed_repository(repo)
        reference = check_reference(token)
        require_allowed_reference(reference)
        opened = open_store(address)
        dataset, version = Catalog(opened).resolve(name)
        return push_version(opened, dataset, version, repo, revision or "main", reference, strict).to_json()
    except (KeyboardInterrupt, TokenlakeError) as error:
        return final_state(error)
