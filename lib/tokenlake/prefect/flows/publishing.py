"""A version on the Hugging Face Hub: for schedules, and after a build that somebody looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from prefect import flow
from prefect.client.schemas.objects import State
from pydantic import WithJsonSchema

from tokenlake.catalog import Catalog
from tokenlake.config.stores import default_store
from tokenlake.errors import TokenlakeError
from tokenlake.prefect.flows.parameters import Text
from tokenlake.prefect.tasks.ending import final_state
from tokenlake.prefect.tasks.naming import push_run_name
from tokenlake.prefect.tasks.policy import (
    require_allowed_reference,
    require_allowed_repository,
    require_allowed_store,
)
from tokenlake.prefect.tasks.publishing import check_reference, push_version
from tokenlake.storage import open_store

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
