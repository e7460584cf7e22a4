"""The flow `work`: units of a build that another run has planned."""

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
from tokenlake.etl.engines import local_pool
from tokenlake.etl.store_engine import join_build, named_build, parse_share
from tokenlake.runs.policy import check_job, check_store
from tokenlake.runtime.store.address import StoreAddress
from tokenlake.runtime.store.schemes import default_store
from tokenlake_flows.names import run_name
from tokenlake_flows.parameters import Count, Options, Text
from tokenlake_flows.states import final_state
from tokenlake_tasks.bounds import bounds_of_run


def _work_named(parameters: Mapping[str, Any]) -> str:
    return f"{parameters.get('name')} {parameters.get('share') or ''}".strip()


@flow(name="work", flow_run_name=run_name(_work_named), persist_result=False)
def work(
    name: str,
    store: Text = "",
    storage_options: Options = None,
    share: Text = "",
    workers: Count = 0,
    wait: Text = "",
) -> dict[str, int] | State[Any]:
    """Build units of a build that another run has planned with `engine` `store`, until none is left: `tokenlake work` as a flow. Runs of `tokenize` and `mix` with `work_runs` start it.

    Args:
        name: What is being built: `books`, or `books@v3`.
        store: Store that it goes to. Empty: `TOKENLAKE_STORE`, else `./artifacts`.
        storage_options: Of the store, with secrets as `{"env": NAME}`. Empty: `TOKENLAKE_STORE_OPTIONS`.
        share: `I/N`: take every Nth unit first, from the Ith on (from 0), then any that nobody builds. Empty: any.
        workers: Worker processes. 0: one per core.
        wait: How long to wait for the plan, such as `10m`. Empty: not at all.
    """  # noqa: E501 - a line break here is a line break in the form
    try:
        where = StoreAddress(store or default_store(), dict(storage_options or {}))
        bounds = bounds_of_run()
        bounds.require(check_store, where.url, where.options)
        part, patience = parse_share(share or "0/1"), parse_duration(wait or "0")
        log = get_run_logger().info
        with local_pool(workers, started=1) as pool:
            done = join_build(
                where,
                named_build(where, name, patience),
                pool,
                share=part,
                patience=patience,
                on_unit=lambda record, seconds: log(f"unit {record.unit:05d}: {numbers.duration(seconds)}"),
                worker=flow_run.id,
                allow=partial(bounds.require, check_job),
            )
        return asdict(done)
    except (KeyboardInterrupt, TokenlakeError) as error:
        return final_state(error)
