"""The tasks of the flow `clean`: plan, signatures, the list, and its audit."""

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
"""JSON-able: path of the list, and the counts of the audit."""


@retried("plan-cleaning", "plan")
def plan_cleaning(config: PipelineConfig) -> Cleaning:
    """List the inputs, and see which units have signatures already."""
    cleaning = Cleaning(config)
    run_logger = get_run_logger()
    run_logger.info(
        "%s, %d to read",
        numbers.plural(len(cleaning.units), "unit"),
        len(cleaning.pending),
    )
    for note_line in cleaning.notes:
        run_logger.warning("%s", note_line)
    return cleaning


@retried("sign-units", "signatures")
def sign_units(cleaning: Cleaning, workers: int) -> None:
    """Make the signatures of all units that have none; another try continues."""
    # Without pending units no worker processes are started.
    if cleaning.pending:
        with open_pool(None, workers or None, cleaning.config.ray) as pool:
            cleaning.sign(pool)


@retried("write-list", "list")
def write_list(cleaning: Cleaning) -> CleanResult:
    """Decide which documents are left out, and write the list."""
    # The signatures of all units are needed: a duplicate may be in any of them.
    return cleaning.settle()


@tried_once("report")
def publish_account(name: str, result: CleanResult) -> None:
    """Publish the counts of excluded documents as an artifact of the run."""
    report_key = artifact_key("cleaning", name)
    create_markdown_artifact(
        account_page(result), key=report_key, description=result.output
    )


def account_page(result: CleanResult) -> str:
    """Return the counts of excluded documents, as Markdown."""
    account = result.account
    rows: list[dict[str, Any]] = []
    for reason, count in sorted(account.filtered.items()):
        rows.append({"reason": reason, "rows": count})
    kept_rows = f"{account.kept:,} of {numbers.plural(account.rows_read, 'row')} kept."
    markdown_table = to_markdown(Table.of(_REASONS, rows))
    return f"# Cleaning\n\n{kept_rows} List of excluded documents: `{result.output}`\n\n{markdown_table}"
