"""What a run came to: as numbers, and as the page shown beside it."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from tokenlake.build.runner import BuildResult
from tokenlake.prefect.tasks.engine import LocalEngine
from tokenlake.report import numbers
from tokenlake.report.account import account_table, remarks
from tokenlake.report.dataset import fill, headline, splits_table
from tokenlake.report.mixture import mixture_table
from tokenlake.report.sources import about_sources
from tokenlake.report.table import facts, to_markdown

Summary: TypeAlias = dict[str, Any]
"""JSON-able: what was committed and what this run did for it."""


def summarize(result: BuildResult) -> Summary:
    """Figures of the committed version, and of what this run itself did."""
    account = result.manifest.account
    return {
        "dataset": result.dataset,
        "version": result.version,
        "path": result.path,
        "status": result.status,
        "documents": account.documents,
        "tokens": account.tokens,
        "rows": result.manifest.totals.rows,
        "fill": fill(result.manifest),
        "bytes": result.manifest.totals.bytes,
        "units_built": result.units_built,
        "units_resumed": result.units_resumed,
        "units_reused": result.units_reused,
        "seconds": round(result.seconds, 3),
        "fingerprint": result.manifest.fingerprint,
        **_mixture(result),
    }


def _mixture(result: BuildResult) -> Summary:
    """Of a mixture, what was asked and achieved."""
    mixture = result.manifest.mixture
    return {} if mixture is None else {"mixture": mixture_table(mixture).records()}


def page(result: BuildResult, text_bytes: int) -> str:
    """The result as Markdown.

    Args:
        result: a committed build.
        text_bytes: bytes of the text that this run itself went through.
    """
    manifest = result.manifest
    tables = [
        headline(manifest),
        account_table(manifest),
        *about_sources(manifest),
        *([splits_table(manifest)] if len(manifest.splits) > 1 else []),
        facts(_run(result, text_bytes), "This run"),
    ]
    notes = "".join(f"- {remark}\n" for remark in [*remarks(manifest.account), *result.notes])
    return "\n".join([f"# {result.dataset} v{result.version}\n", *map(to_markdown, tables), notes])


@task(name="report", task_run_name="report", persist_result=False, cache_policy=NO_CACHE)
def publish_table(engine: LocalEngine) -> None:
    """Show the result beside the run, and in the history of the dataset's artifact."""
    result = engine.result()
    create_markdown_artifact(
        page(result, engine.built_text_bytes()),
        key=artifact_key(result.dataset),
        description=f"{result.dataset} v{result.version}: {numbers.short(result.manifest.account.tokens)} tokens",
    )


def artifact_key(dataset: str) -> str:
    """Prefect's keys know only lower-case letters, digits and dashes.

    >>> artifact_key("web.v2_clean")
    'tokens-web-v2-clean'
    """
    return f"tokens-{re.sub('[^a-z0-9]+', '-', dataset).strip('-')}"


def _run(result: BuildResult, text_bytes: int) -> list[tuple[str, str]]:
    units = [
        ("built", result.units_built),
        ("resumed", result.units_resumed),
        ("reused", result.units_reused),
    ]
    told = ", ".join(f"{numbers.count(many)} {how}" for how, many in units if many)
    found = [("units", told or "none: an equal version exists")]
    if result.units_built:
        speed = numbers.rate(text_bytes, result.seconds)
        found.append(("time", f"{numbers.duration(result.seconds)}, {speed} of text"))
    return [*found, ("stored at", f"`{result.path}`"), ("fingerprint", f"`{result.manifest.fingerprint}`")]
