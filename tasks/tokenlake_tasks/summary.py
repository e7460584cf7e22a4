"""The summary that a flow run of a build returns, which is JSON."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from tokenlake.etl.reports.dataset import fill, mixture_table
from tokenlake.etl.runner import BuildResult

Summary: TypeAlias = dict[str, Any]
"""JSON-able: figures of the committed version and of this run."""

# Fields that the summary takes from the result unchanged.
_OF_RESULT: Final = (
    "dataset",
    "version",
    "path",
    "status",
    "units_built",
    "units_resumed",
    "units_reused",
)


def summarize(result: BuildResult) -> Summary:
    """Return the figures of the committed version, and of the work of this run."""
    manifest = result.manifest
    summary: Summary = {
        field_name: getattr(result, field_name) for field_name in _OF_RESULT
    }
    summary |= {
        "documents": manifest.account.documents,
        "tokens": manifest.account.tokens,
        "rows": manifest.totals.rows,
        "fill": fill(manifest),
        "bytes": manifest.totals.bytes,
        "seconds": round(result.seconds, 3),
        "fingerprint": manifest.fingerprint,
    }
    if manifest.mixture is not None:
        summary["mixture"] = mixture_table(manifest.mixture).records()
    if result.exports:
        summary["exports"] = list(result.exports)
    return summary
