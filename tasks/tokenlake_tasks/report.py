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
    """Write the report of the version into the store, and publish the result as an artifact of the run."""
    result = engine.result()
    tokens = numbers.short(result.manifest.account.tokens)
    create_markdown_artifact(
        _page(result, _report_link(engine, result), engine.built()),
        key=artifact_key("tokens", result.dataset),
        description=f"{result.dataset} v{result.version}: {tokens} tokens",
    )


def _report_link(engine: LocalEngine, result: BuildResult) -> str:
    """Write the HTML report and return a Markdown link to it. A version is complete without one: "" if it fails."""
    store = open_store(engine.session().plan.store)
    try:
        address = f"{store.url}/{store_report(store, result.manifest)}"
    except TokenlakeError as error:
        get_run_logger().warning("no report of this version was written: %s", scrub(str(error)))
        return ""
    if "://" not in address:
        address = Path(address).absolute().as_uri()
    return f"[report.html]({address})"


def _page(result: BuildResult, report_link: str, built_units: Sequence[UnitFinished]) -> str:
    """Return the result of a build as Markdown.

    Args:
        result: Result of a committed build.
        report_link: Link to its report; "" if there is none.
        built_units: Units that this run built itself.
    """
    manifest = result.manifest
    tables = [headline(manifest), account_table(manifest), *about_sources(manifest)]
    if len(manifest.splits) > 1:
        tables.append(splits_table(manifest))
    tables.append(facts(_facts_of_run(result, report_link, built_units), "This run"))
    tables += time_tables(built_units)

    notes = "".join(f"- {note}\n" for note in [*remarks(manifest.account), *result.notes])
    return "\n".join([f"# {result.dataset} v{result.version}\n", *map(to_markdown, tables), notes])


def _facts_of_run(
    result: BuildResult, report_link: str, built_units: Sequence[UnitFinished]
) -> list[tuple[str, str]]:
    """Return the rows of the table "This run"; arguments as of `_page`."""
    counts = {"built": result.units_built, "resumed": result.units_resumed, "reused": result.units_reused}
    units = ", ".join(f"{numbers.count(count)} {state}" for state, count in counts.items() if count)
    rows = [("units", units or "none: the same version already exists")]
    if result.units_built:
        text_bytes = sum(unit.record.account.text_bytes for unit in built_units)
        speed = numbers.rate(text_bytes, result.seconds)
        rows.append(("time", f"{numbers.duration(result.seconds)}, {speed} of text"))
    rows.append(("stored at", f"`{result.path}`"))
    rows.append(("fingerprint", f"`{result.manifest.fingerprint}`"))
    if report_link:
        rows.append(("report", report_link))
    return rows
