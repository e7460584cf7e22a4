"""The task `report`: the result of a build beside its run, and a report in the store."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress

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
from tokenlake.query.length_table import length_table
from tokenlake.query.loss_tokens import loss_share
from tokenlake.query.report import store_report
from tokenlake.query.texts_of_sources import text_accounts
from tokenlake.runs.engine import LocalEngine
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.manifest import Manifest
from tokenlake_tasks.assets import artifact_key
from tokenlake_tasks.retries import tried_once


@tried_once("report")
def report(engine: LocalEngine) -> None:
    """Write the report of the version, and publish the result as an artifact.

    The report is in the store.
    """
    result = engine.result()
    engine.begin("writing the report")
    store = open_store(engine.session().plan.store)
    tokens = numbers.short(result.manifest.account.tokens)
    create_markdown_artifact(
        _page(store, result, engine.built()),
        key=artifact_key("tokens", result.dataset),
        description=f"{result.dataset} v{result.version}: {tokens} tokens",
    )


def _page(
    store: Store, result: BuildResult, built_units: Sequence[UnitFinished]
) -> str:
    """Return the result of a build as Markdown.

    The page of a run shows it, and a browser opens no file from there: it holds the
    main tables of the report itself.

    Args:
        store: Store that holds the version.
        result: Result of a committed build.
        built_units: Units that this run built itself.
    """
    # The main figures come first, then the data, then this run.
    manifest = result.manifest
    report_key = _written_report(store, manifest)
    main_figures, data_tables = _from_data(Catalog(store), manifest)
    tables = [
        facts(main_figures),
        account_table(manifest),
        *about_sources(manifest),
        *data_tables,
    ]
    if len(manifest.splits) > 1:
        tables.append(splits_table(manifest))
    run_facts = _facts_of_run(store, result, report_key, built_units)
    tables.append(facts(run_facts, "This run"))
    tables += time_tables(built_units)

    all_notes = [*remarks(manifest.account), *result.notes]
    notes = "".join(f"- {note}\n" for note in all_notes)
    title = f"# {result.dataset} v{result.version}\n"
    return "\n".join([title, *map(to_markdown, tables), notes])


def _written_report(store: Store, manifest: Manifest) -> str:
    """Write the HTML report and return its key.

    A version is complete without one: the key is "" if it fails.
    """
    try:
        return store_report(store, manifest)
    except TokenlakeError as error:
        get_run_logger().warning(
            "no report of this version was written: %s", scrub(str(error))
        )
        return ""


def _from_data(
    catalog: Catalog, manifest: Manifest
) -> tuple[list[tuple[str, str]], list[Table]]:
    """Return the main figures, and tables from the data or other versions."""
    main_figures: list[tuple[str, str]] = []
    for fact_name, fact_value in headline(manifest).rows:
        main_figures.append((str(fact_name), str(fact_value)))
    tables: list[Table] = []
    if manifest.mixture is not None:
        accounts = text_accounts(catalog, manifest)
        tables.append(mixed_text_table(manifest.mixture, accounts))
    # A run does not fail because its page has a table less.
    with suppress(TokenlakeError):
        loss_figure = loss_share(catalog.store, manifest)
        if loss_figure is not None:
            main_figures.append(("loss", loss_figure.in_words()))
        if manifest.files:
            tables.append(length_table(catalog, manifest))
    return main_figures, [table for table in tables if table.rows]


def _facts_of_run(
    store: Store,
    result: BuildResult,
    report_key: str,
    built_units: Sequence[UnitFinished],
) -> list[tuple[str, str]]:
    """Return the rows of the table "This run".

    Args:
        store: Store that holds the version.
        result: Result of a committed build.
        report_key: Key of its report in the store; "" if there is none.
        built_units: Units that this run built itself.
    """
    counts = {
        "built": result.units_built,
        "resumed": result.units_resumed,
        "reused": result.units_reused,
    }
    unit_counts: list[str] = []
    for state, count in counts.items():
        if count:
            unit_counts.append(f"{numbers.count(count)} {state}")
    unit_summary = ", ".join(unit_counts)
    fact_rows = [("units", unit_summary or "none: the same version already exists")]
    # A run that only found units built elsewhere has no speed of its own.
    if result.units_built:
        text_bytes = sum(
            built_unit.record.account.text_bytes for built_unit in built_units
        )
        speed = numbers.rate(text_bytes, result.seconds)
        fact_rows.append(
            ("time", f"{numbers.duration(result.seconds)}, {speed} of text")
        )
    fact_rows.append(("stored at", result.path))
    fact_rows.append(("fingerprint", result.manifest.fingerprint))
    if report_key:
        fact_rows.append(("report", f"{store.url}/{report_key}"))
        version_name = f"{result.dataset}@v{result.version}"
        # The page of a run cannot open a file of the store. This command serves it.
        store_argument = shlex.quote(store.url)
        command = f"tokenlake report {version_name} --serve --store {store_argument}"
        fact_rows.append(("in a browser", command))
    return fact_rows
