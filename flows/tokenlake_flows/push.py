"""Flow `push`, which uploads a version to the Hugging Face Hub."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from tokenlake.errors import TokenlakeError
from tokenlake.runs import policy
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.schemes import default_store
from tokenlake_flows.names import run_name
from tokenlake_flows.parameters import Reference, Text
from tokenlake_flows.states import final_state
from tokenlake_tasks.bounds import bounds_of_run
from tokenlake_tasks.push import check_reference
from tokenlake_tasks.push import push as push_version


@flow(
    name="push",
    flow_run_name=run_name("{name} to {repo}".format_map),
    persist_result=False,
)
def push(
    name: str,
    repo: str,
    store: Text = "",
    revision: Text = "",
    token: Reference = None,
    strict: bool = True,
) -> dict[str, Any] | State[Any]:
    """Upload a version to a private dataset repository on the Hugging Face Hub. A version that is already there is not uploaded again. For a public repository, run `tokenlake push --public` yourself.

    Args:
        name: Dataset, or one version of it, such as `books@v3` or `books@prod`.
        repo: Repository, as `org/name`. A missing one is created as a private repository.
        store: Path or URL of the store. Default: `TOKENLAKE_STORE`, then `./artifacts`.
        revision: Branch of the repository. Default: `main`.
        token: Reference to an access token, as `{"env": NAME}` or `{"block": NAME}`, never the token itself. Default: `HF_TOKEN` of the worker, then its login.
        strict: Refuse to push if sampled rows contain strings that look like secrets.
    """  # noqa: E501 - a line break here is a line break in the form
    try:
        # The bounds of the worker are checked before anything is read: they may exclude
        # the store, the repository or the token.
        address = store or default_store()
        bounds = bounds_of_run()
        bounds.require(policy.check_store, address, {})
        bounds.require(policy.check_repository, repo)
        reference = check_reference(token)
        bounds.require(policy.check_reference, reference)
        dataset, version = Catalog(open_store(address)).resolve(name)
        return push_version(
            address, dataset, version, repo, revision or "main", reference, strict
        ).to_json()
    except (KeyboardInterrupt, TokenlakeError) as error:
        return final_state(error)
