"""`where`: one SQL predicate over the columns of a record, as DuckDB understands it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.errors import NotAvailableError


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRange:
    """What statistics say of a column in a stretch of records.

    Attributes:
        low, high: bounds of the values that are not null, None where unknown; they need not be tight.
        nulls: how many are null, None where unknown.
        rows: how many records there are.
    """

    low: Any
    high: Any
    nulls: int | None
    rows: int


@final
class Predicate:
    """A predicate on records; a record for which it is null is left out, as in SQL's WHERE.

    Attributes:
        columns: the top-level fields that it looks at, sorted.
    """

    columns: tuple[str, ...]

    def __init__(self, sql: str) -> None:
        """Compile `sql`.

        Raises:
            ConfigError: it is not one expression over columns.
        """
        raise NotAvailableError("where: predicates are not available in this release")

    def mask(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return bool[n], where the predicate is true.

        Raises:
            ConfigError: it cannot be evaluated on these columns.
        """
        raise NotImplementedError

    def excludes(self, ranges: Mapping[str, ColumnRange]) -> bool:
        """Say whether it surely holds for no record of a stretch with these column ranges."""
        raise NotImplementedError
