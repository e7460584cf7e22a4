"""Flow `clean`, which lists documents for a build to exclude."""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from tokenlake.base.secrets import provide_blocks
from tokenlake.base.section import referenced_blocks
from tokenlake.errors import TokenlakeError
from tokenlake.runs.policy import check_cleaning
from tokenlake.runs.request import DEFAULT, requested_name, resolve_request
from tokenlake_flows.names import run_name
from tokenlake_flows.parameters import Config, Count, Files, Text, Texts
from tokenlake_flows.states import final_state
from tokenlake_tasks.blocks import load_blocks
from tokenlake_tasks.bounds import bounds_of_run
from tokenlake_tasks.clean import (
    Cleaned,
    plan_cleaning,
    publish_account,
    sign_units,
    write_list,
)


@flow(
    name="clean",
    flow_run_name=run_name(partial(requested_name, DEFAULT)),
    persist_result=False,
)
def clean(
    config: Config = "",
    data_files: Files = "",
    output: Text = "",
    store: Text = "",
    name: Text = "",
    workers: Count = 0,
    overrides: Texts = (),
) -> Cleaned | State[Any]:
    """List documents for a build to exclude: duplicates, low-quality text and parts of evaluation sets, as defined in the section `clean` of a configuration. A build reads the list with `exclude`.

    Args:
        config: Name of a configuration in `deployments/`; path of a YAML file; or the configuration itself. Default: `demo`.
        data_files: Input files in place of the configuration's: a path, a glob, a folder, or a list of these. Required unless the configuration names its data, as `demo` does.
        output: Path of the list to write. Default: that of the configuration.
        store: Path or URL of the store that holds the signatures. Default: that of the configuration, then `TOKENLAKE_STORE`, then `./artifacts`.
        name: Name of the dataset. Default: that of the configuration, then the name of its file.
        workers: Number of worker processes. 0: one per core.
        overrides: Single values of the configuration, such as `clean.minhash.bands=20`.
    """  # noqa: E501 - a line break here is a line break in the form
    try:
        # The path of the list is a value of the configuration. Overrides come after it,
        # so that they take precedence.
        values: list[str] = []
        if output:
            values.append(f"clean.output={output}")
        values += overrides or ()
        bounds = bounds_of_run()
        log = get_run_logger().info
        request = resolve_request(
            config, data_files, None, store, name, values, log, bounds=bounds
        )
        bounds.require(check_cleaning, request)
        provide_blocks(load_blocks(referenced_blocks(request)))
        # Each step is a task. Signatures that exist are not computed again.
        cleaning = plan_cleaning(request)
        sign_units(cleaning, workers or 0)
        result = write_list(cleaning)
        publish_account(request.name or "cleaning", result)
        return result.to_json()
    except (KeyboardInterrupt, TokenlakeError) as error:
        return final_state(error)
