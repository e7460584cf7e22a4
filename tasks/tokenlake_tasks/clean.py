"""The tasks of the flow `clean`: plan, signatures, the list of excluded documents,
and its audit.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger

from tokenlake.base import numbers
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.etl.clean import Cleaning, CleanResult
from tokenlake.etl.executors import open_pool
from tokenlake.etl.reports import Table, label, number, to_markdown
from tokenlake_tasks.assets import artifact_key
from tokenlake_tasks.retries import retried, tried_once

_REASONS: Final = (label("reason"), number("rows"))

Cleaned: TypeAlias = dict[str, Any]
"""JSON-able: where the list is, and the account."""


@retried("plan-cleaning", "plan")
def plan_cleaning(config: PipelineConfig) -> Cleaning:
    """List the inputs, and see which units have signatures already."""
    cleaning = Cleaning(config)
    log = get_run_logger()
    log.info(
        "%s, %d to read",
        numbers.plural(len(cleaning.units), "unit"),
        len(cleaning.pending),
    )
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


@tried_once("report")
def publish_account(name: str, result: CleanResult) -> None:
    """Publish the counts of excluded documents as an artifact of the run."""
    key = artifact_key("cleaning", name)
    create_markdown_artifact(account_page(result), key=key, description=result.output)


def account_page(result: CleanResult) -> str:
    """Return what is left out, as Markdown."""
    account = result.account
    rows = [
        {"reason": reason, "rows": count}
        for reason, count in sorted(account.filtered.items())
    ]
    kept = f"{account.kept:,} of {numbers.plural(account.rows_read, 'row')} kept."
    table = to_markdown(Table.of(_REASONS, rows))
    return (
        f"# Cleaning\n\n{kept} List of excluded documents: `{result.output}`\n\n{table}"
    )
