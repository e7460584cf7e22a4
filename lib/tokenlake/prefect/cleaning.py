"""The flow `clean` and its tasks: the list of documents that a build leaves out, as often as new data comes."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, TypeAlias

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from tokenlake import numbers
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.references import provide_blocks
from tokenlake.config.secret import referenced_blocks
from tokenlake.errors import TokenlakeError
from tokenlake.etl.cleaning import Cleaning, CleanResult
from tokenlake.etl.engines import open_pool
from tokenlake.prefect.flows import Config, Count, Files, Text, Texts
from tokenlake.prefect.policy import require_allowed_cleaning
from tokenlake.prefect.request import DEFAULT, requested_name, resolve_request
from tokenlake.prefect.run_state import final_state, run_name
from tokenlake.prefect.tasks import artifact_key, load_blocks, retried
from tokenlake.reports.table import Table, label, number, to_markdown

_REASONS: Final = (label("reason"), number("rows"))

Cleaned: TypeAlias = dict[str, Any]
"""JSON-able: where the list is, and the account."""


@retried("plan-cleaning", "plan")
def plan_cleaning(config: PipelineConfig) -> Cleaning:
    """List the inputs, and see which units have signatures already."""
    cleaning = Cleaning(config)
    log = get_run_logger()
    log.info("%s, %d to read", numbers.plural(len(cleaning.units), "unit"), len(cleaning.pending))
    for line in cleaning.notes:
        log.warning("%s", line)
    return cleaning


@retried("sign-units", "signatures")
def sign_units(cleaning: Cleaning, workers: int) -> None:
    """Make the signatures of all units that have none; another try goes on."""
    if cleaning.pending:
        with open_pool(None, workers or None, cleaning.config.ray) as pool:
            cleaning.sign(pool)


@retried("write-list", "list")
def write_list(cleaning: Cleaning) -> CleanResult:
    """Find out what is left out, and write the list."""
    return cleaning.settle()


@task(name="report", task_run_name="report", persist_result=False, cache_policy=NO_CACHE)
def publish_account(name: str, result: CleanResult) -> None:
    """Show what is left out beside the run, and in the history of its artifact."""
    create_markdown_artifact(
        account_page(result), key=artifact_key("cleaning", name), description=result.output
    )


def account_page(result: CleanResult) -> str:
    """Return what is left out, as Markdown."""
    account = result.account
    rows = [{"reason": why, "rows": count} for why, count in sorted(account.filtered.items())]
    said = f"{account.kept:,} of {numbers.plural(account.rows_read, 'row')} stay. The list: `{result.output}`"
    return "\n".join(["# Cleaning\n", f"{said}\n", to_markdown(Table.of(_REASONS, rows))])


@flow(name="clean", flow_run_name=run_name(partial(requested_name, DEFAULT)), persist_result=False)
def clean(
    config: Config = "",
    data_files: Files = "",
    output: Text = "",
    store: Text = "",
    name: Text = "",
    workers: Count = 0,
    overrides: Texts = (),
) -> Cleaned | State[Any]:
    """List the documents that a build is to leave out (duplicates, poor text, parts of evaluation sets), as the section `clean` of a configuration says. The build takes the list by `exclude`.

    Args:
        config: Name of a file in `deployments/`, path of a YAML file, or the configuration itself. Empty: `demo`.
        data_files: What to read instead of the configuration's data: a path, a glob, a folder, or a list of these.
        output: Path of the list. Empty: the configuration's.
        store: Store that keeps the signatures. Empty: the configuration's, else `TOKENLAKE_STORE`, else `./artifacts`.
        name: Name of the dataset. Empty: the configuration's, else its file's.
        workers: Worker processes. 0: one per core.
        overrides: Single values of the configuration, such as `clean.minhash.bands=20`.
    """  # noqa: E501 - a line break here is a line break in the form
    try:
        given = [*([f"clean.output={output}"] if output else ()), *(overrides or ())]
        request = resolve_request(config, data_files, None, store, name, given, get_run_logger().info)
        require_allowed_cleaning(request)
        provide_blocks(load_blocks(referenced_blocks(request)))
        cleaning = plan_cleaning(request)
        sign_units(cleaning, workers or 0)
        result = write_list(cleaning)
        publish_account(request.name or "cleaning", result)
        return result.to_json()
    except (KeyboardInterrupt, TokenlakeError) as error:
        return final_state(error)
