"""First records of a source, for the choices that a configuration leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tokenlake.config.resolved import ResolvedSource
from tokenlake.errors import TokenlakeError
from tokenlake.etl.sources.first_records import first_rows
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.text.steps import open_chain

FILES_LOOKED_AT: Final = 8
"""Number of files whose first records are read to find the field of texts."""

RECORDS_LOOKED_AT: Final = 1000
"""Number of records of each file that are read: those that `where` leaves out may
come first.
"""

FIELDS_SHOWN: Final = 20
"""Number of names of fields in a message."""


def field_names(rows: Rows) -> list[str]:
    """Return the names of the fields of rows, in the order of appearance."""
    if not rows.has_objects:
        if len(rows) == 0:
            return []
        return rows.columns.schema.names
    # The keys of a dict are distinct, and keep their order.
    names: dict[str, None] = {}
    for row in rows.objects:
        names.update(dict.fromkeys(row))
    return list(names)


def after_steps(source: ResolvedSource, rows: Rows) -> Rows | None:
    """Return rows after the configured steps, None if a step fails.

    The build will report the failure.
    """
    try:
        return open_chain(source.texts).on_rows(rows).rows
    except TokenlakeError:
        return None


def first_rows_of(
    source: ResolvedSource, files: Sequence[InputFile], rows: Rows | None
) -> Rows:
    """Return the first rows of a source, after its steps where these succeed.

    Args:
        source: Source of the rows.
        files: Its input files.
        rows: First rows, where there are no files to read; they are returned.
    """
    # Rows are read once more than a build reads them, so the steps run only if they may
    # change the fields.
    if rows is not None:
        return rows
    rows_of_files = first_rows(source, files)
    if not source.texts.rows_change:
        return rows_of_files
    changed_rows = after_steps(source, rows_of_files)
    if changed_rows is None:
        return rows_of_files
    return changed_rows
