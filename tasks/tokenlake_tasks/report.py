"""The task `report`: the result of a build beside its run, and a report in the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger

from tokenlake.base import numbers
from tokenlake.base.secrets import scrub
from tokenlake.errors import TokenlakeError
from tokenlake.etl.events import UnitFinished
from tokenlake.etl.observability import time_tables
from tokenlake.etl.reports import facts, to_markdown
from tokenlake.etl.reports.dataset import (
    about_sources,
    account_table,
    headline,
    remarks,
    splits_table,
)
from tokenlake.etl.runner import BuildResult
from tokenlake.query.report import store_report
from tokenlake.runs.engine import LocalEngine
from tokenlake.runtime.store.address import open_store
from tokenlake_tasks.assets import artifact_key
from tokenlake_tasks.retries import tried_once


@tried_once("report")
def report(engine: LocalEngine) -> None:
    """Show the result beside the run, and in the history of the dataset's artifact; keep its report in the store."""
    result = engine.result()
    store, link = open_store(engine.session().plan.store), ""
    try:  # a version is whole without a report
        where = f"{store.url}/{store_report(store, result.manifest)}"
        link = f"[report.html]({where if '://' in where else Path(where).absolute().as_uri()})"
    except TokenlakeError as error:
        get_run_logger().warning("there is no report of this version: %s", scrub(str(error)))
    create_markdown_artifact(
        _page(result, link, engine.built()),
        key=artifact_key("tokens", result.dataset),
        description=f"{result.dataset} v{result.version}: {numbers.short(result.manifest.account.tokens)} tokens",
    )


def _page(result: BuildResult, report: str, built: Sequence[UnitFinished]) -> str:
    """The result as Markdown.

    Args:
        result: a committed build.
        report: where its report is; empty: nowhere.
        built: the units that this run itself built.
    """
    manifest = result.manifest
    units = {"built": result.units_built, "resumed": result.units_resumed, "reused": result.units_reused}
    told = ", ".join(f"{numbers.count(many)} {how}" for how, many in units.items() if many)
    run = [("units", told or "none: the same version exists already")]
    if result.units_built:
        speed = numbers.rate(sum(event.record.account.text_bytes for event in built), result.seconds)
        run.append(("time", f"{numbers.duration(result.seconds)}, {speed} of text"))
    run += [("stored at", f"`{result.path}`"), ("fingerprint", f"`{manifest.fingerprint}`")]
    run += [("report", report)] if report else []
    tables = [
        headline(manifest),
        account_table(manifest),
        *about_sources(manifest),
        *([splits_table(manifest)] if len(manifest.splits) > 1 else []),
        facts(run, "This run"),
        *time_tables(built),
    ]
    notes = "".join(f"- {remark}\n" for remark in [*remarks(manifest.account), *result.notes])
    return "\n".join([f"# {result.dataset} v{result.version}\n", *map(to_markdown, tables), notes])
