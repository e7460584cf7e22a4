"""What became of a unit's rows, documents and tokens, counted as it goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import final

import numpy as np
import numpy.typing as npt

from tokenlake.errors import AccountError
from tokenlake.etl.unit.recipe import Prepared
from tokenlake.store.account import Account

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@final
class UnitTally:
    """The counts of one unit.

    Attributes:
        tokens, text_bytes, special_tokens: of the texts that were encoded.
        skipped, filtered, quarantined, normalized, dropped: by reason, as in :class:`tokenlake.store.account.Account`.
    """

    def __init__(self, *, packed: bool) -> None:
        self._packed = packed
        self._rows_read = self._kept = self._expanded = 0
        self.tokens = self.text_bytes = self.special_tokens = 0
        self.skipped: Counter[str] = Counter()
        self.filtered: Counter[str] = Counter()
        self.quarantined: Counter[str] = Counter()
        self.normalized: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()

    def read(self, batch: Prepared) -> None:
        """Count the records of a batch; bad ones are counted where they are set aside."""
        self._rows_read += batch.rows_read
        self.normalized.update(batch.normalized)
        self.filtered.update(batch.filtered)
        self.skipped.update(batch.skipped)

    def settle(self, count: int, origin: Int64, extra: Bools | None, left_out: Mapping[str, Int64]) -> None:
        """Count `count` documents, of which those in `origin` (a piece each) go on.

        Args:
            origin: int64[m], ascending.
            extra: bool[count], True for a document that is not the first of its row; None where none is.
            left_out: documents that are gone whole, by reason; what else is gone had no token.
        """
        first = np.ones(len(origin), np.bool_)
        first[1:] = np.diff(origin) > 0
        if self._packed:  # there the pieces of a document stay segments of one
            origin, first = origin[first], first[first]
        again = ~first if extra is None else ~first | extra[origin]
        self._kept += int((~again).sum())
        self._expanded += int(again.sum())
        # What is gone counts as a row only where it stood for one.
        gone = np.ones(count, np.bool_) if extra is None else ~extra
        gone[origin] = False
        for reason, rows in left_out.items():
            self.filtered[reason] += int(gone[rows].sum())
            gone[rows] = False
        if gone.any():
            self.filtered["empty"] += int(gone.sum())

    def account(self, sinks: Iterable[Counter[str]], unit: int) -> Account:
        """Return the unit's account; the sinks know what became of the tokens.

        Raises:
            AccountError: tokens are missing, which would be a bug.
        """
        sums: Counter[str] = Counter()
        for counts in sinks:
            sums.update(counts)
        if self._packed and sums["content"] != self.tokens - self.dropped.total():
            raise AccountError(
                f"unit {unit}: {self.tokens} tokens drawn, {self.dropped.total()} dropped, but {sums['content']} "
                "packed; this is a bug, nothing was committed"
            )
        return Account(
            rows_read=self._rows_read,
            rows_skipped=dict(self.skipped),
            filtered=dict(self.filtered),
            quarantined=dict(self.quarantined),
            normalized=dict(self.normalized),
            kept=self._kept,
            expanded=self._expanded,
            documents=sums["documents"],
            tokens=self.tokens,
            content_packed=sums["content"],
            dropped=dict(self.dropped),
            bos=sums["bos"],
            eos=sums["eos"],
            eos_existing=sums["eos_existing"],
            pad=sums["pad"],
            sequences=sums["sequences"],
            slots=sums["slots"],
            special_tokens_in_text=self.special_tokens,
            text_bytes=self.text_bytes,
        )
