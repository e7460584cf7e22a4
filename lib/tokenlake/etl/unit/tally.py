"""Counts of a unit: the records that were read, and the documents made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, final

import numpy as np

from tokenlake.base.arrays import Bools, Int64
from tokenlake.etl.unit.documents import Prepared
from tokenlake.runtime.store.account import Account

_FIELDS_BY_REASON: Final = (
    "rows_skipped",
    "filtered",
    "quarantined",
    "normalized",
    "dropped",
)


@final
class UnitTally:
    """Counts of one unit, named as the fields of an account.

    The account is :class:`tokenlake.runtime.store.account.Account`.

    Args:
        packed: True if parts of a split document are segments of one document; False if
            each is a row.

    Attributes:
        numbers: Field -> count.
        by: Field -> counts by reason.
    """

    def __init__(self, *, packed: bool) -> None:
        self._packed = packed
        self.numbers: Counter[str] = Counter()
        self.by: dict[str, Counter[str]] = {}
        for field_name in _FIELDS_BY_REASON:
            self.by[field_name] = Counter()

    def read(self, batch: Prepared) -> None:
        """Count the records of a batch; bad ones are counted where they are set aside."""
        self.numbers["rows_read"] += batch.rows_read
        # Most files have no such counts, and there may be very many files.
        if batch.normalized:
            self.by["normalized"].update(batch.normalized)
        if batch.filtered:
            self.by["filtered"].update(batch.filtered)
        if batch.skipped:
            self.by["rows_skipped"].update(batch.skipped)
        if batch.dropped:
            self.by["dropped"].update(batch.dropped)
            self.numbers["tokens"] += sum(batch.dropped.values())

    def settle(
        self,
        count: int,
        origin: Int64,
        extra: Bools | None,
        left_out: Mapping[str, Int64],
        refused: Int64 | None = None,
    ) -> None:
        """Count documents: written, left out, or refused.

        Args:
            count: Number of documents.
            origin: Document of each part that is written, ascending, int64[m].
            extra: True for a document that is not the first of its row, bool[count];
                None: all are the first.
            left_out: Reason -> documents that are left out as a whole. All other ones
                without parts had no tokens.
            refused: Documents that are bad records, which are counted where they are
                set aside.
        """
        # 1. Parts that are written: the first of a row is the row that was kept, all
        #    others are additional rows.
        is_first_part = np.ones(len(origin), np.bool_)
        is_first_part[1:] = np.diff(origin) > 0
        # The parts of a packed document are one document.
        if self._packed:
            origin = origin[is_first_part]
            is_first_part = np.ones(len(origin), np.bool_)
        is_additional = ~is_first_part
        if extra is not None:
            is_additional |= extra[origin]
        additional = int(is_additional.sum())
        self.numbers.update(kept=len(origin) - additional, expanded=additional)
        # 2. Documents that are gone count as rows only if they are the first of theirs.
        is_gone = np.ones(count, np.bool_) if extra is None else ~extra
        is_gone[origin] = False
        if refused is not None:
            is_gone[refused] = False
        # The first reason of a document counts.
        for reason, documents in left_out.items():
            self.by["filtered"][reason] += int(is_gone[documents].sum())
            is_gone[documents] = False
        if is_gone.any():
            self.by["filtered"]["empty"] += int(is_gone.sum())

    def account(self, sink_counts: Iterable[Counter[str]]) -> Account:
        """Return the account of the unit.

        Args:
            sink_counts: Counts of the sinks, which write the tokens.
        """
        # Counts of the unit and of its sinks have the names of the account's fields.
        fields: dict[str, Any] = {}
        numbers = Counter(self.numbers)
        for counts in sink_counts:
            numbers.update(counts)
        fields.update(numbers)
        for field_name, reasons in self.by.items():
            fields[field_name] = dict(reasons)
        return Account(**fields)
