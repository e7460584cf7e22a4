"""Rows that meet one SQL predicate."""

from __future__ import annotations

from typing import final

import pyarrow as pa

from tokenlake.columns import columns_of
from tokenlake.errors import ConfigError
from tokenlake.predicate.where import Predicate
from tokenlake.rows import Row, Rows
from tokenlake.transforms.base import Fields, Outcome, Transform
from tokenlake.transforms.columnwise import Bools, kept
from tokenlake.transforms.fields import union


@final
class Where(Transform):
    """Keeps the rows for which an SQL predicate (DuckDB) is true, such as ``lang = 'en' and length(text) > 200``.

    A field that an object lacks is null; one that columns lack is an error.
    """

    reason = "where"

    def __init__(self, predicate: str) -> None:
        """Compile the predicate; ConfigError unless it is one expression over fields."""
        if not isinstance(predicate, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Where: got {predicate!r}, must be an SQL predicate, such as \"lang = 'en'\"")
        self._sql, self._predicate = predicate, Predicate(predicate)

    def __call__(self, example: Row) -> Row | None:
        """Return the row, or None. For many rows :meth:`on_rows` is far faster."""
        return example if self._of_objects([example])[0] else None

    def on_rows(self, rows: Rows) -> Outcome:
        """Judge all rows at once.

        Raises:
            ConfigError: the predicate cannot be evaluated on these fields.
        """
        mask = self._of_objects(rows.objects) if rows.has_objects else self._predicate.mask(rows.columns)
        return kept(rows, mask, self.reason)

    def on_columns(self, columns: pa.RecordBatch) -> Outcome:
        """Judge all rows at once."""
        return self.on_rows(Rows(columns))

    def _of_objects(self, objects: list[Row]) -> Bools:
        try:
            columns = columns_of(objects, self._predicate.columns)
        except (TypeError, UnicodeEncodeError, pa.ArrowException) as error:
            raise ConfigError(f"where: {self._sql!r} looks at values that are no JSON: {error}") from error
        return self._predicate.mask(columns, missing_is_null=True)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the fields of the predicate, and what is wanted."""
        return None if wanted is None else union(wanted, self._predicate.columns)

    def __repr__(self) -> str:
        return f"Where({self._sql!r})"
