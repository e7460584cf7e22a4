"""What a flow run of a build returns: a summary that is JSON."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from tokenlake.etl.reports.dataset import fill, mixture_table
from tokenlake.etl.runner import BuildResult

Summary: TypeAlias = dict[str, Any]
"""JSON-able: the version that was committed, and what this run did for it."""

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
    """Return the figures of the committed version, and of what this run itself did."""
    manifest = result.manifest
    summary: Summary = {name: getattr(result, name) for name in _OF_RESULT}
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
