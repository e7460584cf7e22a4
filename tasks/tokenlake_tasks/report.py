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
from tokenlake.etl.reports import Table, facts, to_markdown
from tokenlake.etl.reports.dataset import (
    about_sources,
    account_table,
    headline,
    mixed_text_table,
    remarks,
    splits_table,
)
from tokenlake.etl.runner import BuildResult
from tokenlake.query.loss_tokens import loss_share
from tokenlake.query.report import store_report
from tokenlake.query.texts_of_sources import text_accounts
from tokenlake.runs.engine import LocalEngine
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake_tasks.assets import artifact_key
from tokenlake_tasks.retries import tried_once


@tried_once("report")
def report(engine: LocalEngine) -> None:
    """Write the report of the version into the store, and publish the result as an artifact of the run."""
    result = engine.result()
    engine.begin("writing the report")
    tokens = numbers.short(result.manifest.account.tokens)
    catalog = Catalog(open_store(engine.session().plan.store))
    loss = _loss_in_words(catalog, result)
    page = _page(result, loss, _text_tables(catalog, result), _report_link(engine, result), engine.built())
    create_markdown_artifact(
        page,
        key=artifact_key("tokens", result.dataset),
        description=f"{result.dataset} v{result.version}: {tokens} tokens",
    )


def _text_tables(catalog: Catalog, result: BuildResult) -> list[Table]:
    """Return the table of the text behind a mixture's tokens; none for other versions, or where it is not known."""
    record = result.manifest.mixture
    if record is None:
        return []
    table = mixed_text_table(record, text_accounts(catalog, result.manifest))
    return [table] if table.rows else []


def _loss_in_words(catalog: Catalog, result: BuildResult) -> str:
    """Return the share of the tokens that counts toward the loss; "" where no loss mask is stored, or it is damaged."""
    try:
        share = loss_share(catalog.store, result.manifest)
    except TokenlakeError:
        return ""
    return "" if share is None else share.in_words()


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


def _page(
    result: BuildResult,
    loss: str,
    text_tables: Sequence[Table],
    report_link: str,
    built_units: Sequence[UnitFinished],
) -> str:
    """Return the result of a build as Markdown.

    Args:
        result: Result of a committed build.
        loss: Share of the tokens that counts toward the loss, in words; "" for nothing to say.
        text_tables: Tables of the text that the tokens are from.
        report_link: Link to its report; "" if there is none.
        built_units: Units that this run built itself.
    """
    manifest = result.manifest
    main_figures = [(str(name), str(value)) for name, value in headline(manifest).rows]
    if loss:
        main_figures.append(("loss", loss))
    tables = [facts(main_figures), account_table(manifest), *about_sources(manifest), *text_tables]
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
    rows = [("units", units or "none: the same version exists already")]
    if result.units_built:
        text_bytes = sum(unit.record.account.text_bytes for unit in built_units)
        speed = numbers.rate(text_bytes, result.seconds)
        rows.append(("time", f"{numbers.duration(result.seconds)}, {speed} of text"))
    rows.append(("stored at", f"`{result.path}`"))
    rows.append(("fingerprint", f"`{result.manifest.fingerprint}`"))
    if report_link:
        rows.append(("report", report_link))
    return rows
