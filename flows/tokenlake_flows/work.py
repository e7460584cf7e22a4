"""Flow `work`, which builds units of a build that another run has planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from tokenlake.base import numbers
from tokenlake.base.sizes import parse_duration
from tokenlake.errors import TokenlakeError
from tokenlake.etl.executors import local_pool
from tokenlake.etl.store_executor import join_build, named_build, parse_share
from tokenlake.runs.policy import check_job, check_store
from tokenlake.runtime.store.address import StoreAddress
from tokenlake.runtime.store.schemes import default_store
from tokenlake_flows.names import run_name
from tokenlake_flows.parameters import Count, Options, Text
from tokenlake_flows.states import final_state
from tokenlake_tasks.bounds import bounds_of_run


def _name_of_run(parameters: Mapping[str, Any]) -> str:
    """Return the name of a run: its dataset and share."""
    return f"{parameters.get('name')} {parameters.get('share') or ''}".strip()


@flow(name="work", flow_run_name=run_name(_name_of_run), persist_result=False)
def work(
    name: str,
    store: Text = "",
    storage_options: Options = None,
    share: Text = "",
    workers: Count = 0,
    wait: Text = "",
) -> dict[str, int] | State[Any]:
    """Build units of a build that another run planned with executor `store`, until none is left. Same as `tokenlake work`. Runs of `tokenize` and `mix` with `work_runs` start this flow.

    Args:
        name: Dataset that is being built, such as `books` or `books@v3`.
        store: Path or URL of the store that it is written to. Default: `TOKENLAKE_STORE`, then `./artifacts`.
        storage_options: Options of the store, with secrets as `{"env": NAME}`. Default: `TOKENLAKE_STORE_OPTIONS`.
        share: Units to build first, as `I/N`: every Nth unit from unit I on (counted from 0). Other free units follow. Default: any free unit.
        workers: Number of worker processes. 0: one per core.
        wait: Longest wait for the plan of the build, such as `10m`. Default: no wait.
    """  # noqa: E501 - a line break here is a line break in the form
    try:
        address = StoreAddress(store or default_store(), dict(storage_options or {}))
        bounds = bounds_of_run()
        bounds.require(check_store, address.url, address.options)
        part = parse_share(share or "0/1")
        patience = parse_duration(wait or "0")
        log = get_run_logger().info
        # Processes start when they are needed: other runs may have built all units.
        with local_pool(workers, started=1) as pool:
            units_built = join_build(
                address,
                named_build(address, name, patience),
                pool,
                share=part,
                patience=patience,
                on_unit=lambda record, seconds: log(
                    f"unit {record.unit:05d}: {numbers.duration(seconds)}"
                ),
                worker=flow_run.id,
                allow=partial(bounds.require, check_job),
            )
        return asdict(units_built)
    except (KeyboardInterrupt, TokenlakeError) as error:
        return final_state(error)
