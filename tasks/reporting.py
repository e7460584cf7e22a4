"""What a run came to, as numbers and as the table shown beside it."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from tasks.engine import LocalEngine
from tokenlake.account import Account
from tokenlake.manifest import Manifest
from tokenlake.report import numbers
from tokenlake.report.table import Table, facts, label, number, to_markdown

Summary: TypeAlias = dict[str, Any]
"""JSON-able: dataset, version, status, path, fingerprint, figures of the version and of this run."""


def summarize(engine: LocalEngine, manifest: Manifest) -> Summary:
    """Figures of the committed version, and of what this run itself did."""
    session, built = engine.session(), engine.built()
    account = manifest.account
    return {
        "dataset": session.dataset,
        "version": session.version,
        "status": session.status,
        "path": session.path,
        "fingerprint": manifest.fingerprint,
        "units": len(session.plan.units),
        "units_built": built["units"],
        "seconds": round(built["seconds"], 3),
        "text_bytes_built": built["text_bytes"],
        "files": len(manifest.files),
        "bytes": sum(file.bytes for file in manifest.files),
        "documents": account.documents,
        "tokens": account.tokens,
        "sequences": account.sequences,
        "slots": account.slots,
        "pad": account.pad,
        "accounts": {name: one.to_json() for name, one in manifest.accounts.items()},
    }


def markdown(summary: Summary) -> str:
    """The summary as a page: what it is, the account by source, where it lies."""
    accounts = {name: Account.from_json(value) for name, value in summary["accounts"].items()}
    parts = [
        f"# {summary['dataset']} v{summary['version']}\n",
        to_markdown(facts(_figures(summary))),
        "## Account\n",
        to_markdown(_account_table(accounts)),
        f"`{summary['path']}`  \nfingerprint `{summary['fingerprint']}`\n",
    ]
    return "\n".join(parts)


@task(name="report", task_run_name="report", persist_result=False, cache_policy=NO_CACHE)
def publish_table(summary: Summary) -> None:
    """Show the summary beside the run, and in the history of the dataset's artifact."""
    create_markdown_artifact(
        markdown(summary),
        key=artifact_key(summary["dataset"]),
        description=f"{summary['dataset']} v{summary['version']}: {numbers.short(summary['tokens'])} tokens",
    )


def artifact_key(dataset: str) -> str:
    """Prefect's keys know only lower-case letters, digits and dashes."""
    return f"tokens-{re.sub('[^a-z0-9]+', '-', dataset).strip('-')}"


def _figures(summary: Summary) -> list[tuple[str, str]]:
    found = [
        ("Documents", numbers.count(summary["documents"])),
        ("Tokens", numbers.count(summary["tokens"])),
    ]
    if summary["slots"]:
        full = numbers.percent(summary["slots"] - summary["pad"], summary["slots"])
        found.append(("Sequences", f"{numbers.count(summary['sequences'])}, {full} full"))
    found.append(("Files", f"{numbers.count(summary['files'])}, {numbers.size(summary['bytes'])}"))
    found.append(("Units", f"{numbers.count(summary['units'])}, {summary['units_built']} built by this run"))
    if summary["units_built"]:
        speed = numbers.rate(summary["text_bytes_built"], summary["seconds"])
        found.append(("Speed", f"{speed} of text, {numbers.duration(summary['seconds'])}"))
    return found


def _account_table(accounts: dict[str, Account]) -> Table:
    rows = [_account_row(name, account) for name, account in accounts.items()]
    if len(rows) > 1:
        rows.append(_account_row("all", Account.total(accounts.values())))
    figures = ("rows", "filtered", "quarantined", "documents", "tokens", "dropped", "eos", "padding", "sequences")
    return Table.of([label("source"), *(number(figure) for figure in figures)], rows)


def _account_row(name: str, account: Account) -> dict[str, Any]:
    return {
        "source": name,
        "rows": account.rows_read,
        "filtered": sum(account.filtered.values()),
        "quarantined": sum(account.quarantined.values()),
        "documents": account.documents,
        "tokens": account.tokens,
        "dropped": sum(account.dropped.values()),
        "eos": account.eos,
        "padding": account.pad,
        "sequences": account.sequences,
    }
