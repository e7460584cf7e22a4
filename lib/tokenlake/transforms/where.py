"""Rows that meet one SQL predicate."""

from __future__ import annotations

from typing import final

import pyarrow as pa

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.predicate.where import Predicate
from tokenlake.rows import Row, Rows
from tokenlake.transforms.base import Fields, Outcome, Transform
from tokenlake.transforms.columnwise import kept
from tokenlake.transforms.fields import union


@final
class Where(Transform):
    """Keeps the rows for which an SQL predicate (DuckDB) is true, such as ``lang = 'en' and length(text) > 200``.

    A field that an object lacks is null; one that columns lack is an error. A row whose values the predicate cannot be
    evaluated on is bad (``where_failed``).
    """

    reason = "where"

    def __init__(self, predicate: str) -> None:
        """Compile the predicate; ConfigError unless it is one expression over fields."""
        if not isinstance(predicate, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Where: got {predicate!r}, must be an SQL predicate, such as \"lang = 'en'\"")
        self._sql, self._predicate = predicate, Predicate(predicate)

    def __call__(self, example: Row) -> Row | None:
        """Return the row, or None. For many rows :meth:`on_rows` is far faster."""
        verdicts = self._predicate.judge(Rows(objects=[example]))
        for fault in verdicts.faults.values():
            raise BadRecordError(fault.detail, reason=fault.reason)
        return example if verdicts.mask[0] else None

    def on_rows(self, rows: Rows) -> Outcome:
        """Judge all rows at once.

        Raises:
            ConfigError: the predicate cannot be evaluated on columns of these types.
        """
        verdicts = self._predicate.judge(rows)
        return kept(rows, verdicts.mask, self.reason, tuple(sorted(verdicts.faults.items())))

    def on_columns(self, columns: pa.RecordBatch) -> Outcome:
        """Judge all rows at once."""
        return self.on_rows(Rows(columns))

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the fields of the predicate, and what is wanted."""
        return None if wanted is None else union(wanted, self._predicate.columns)

    def __repr__(self) -> str:
        return f"Where({self._sql!r})"
