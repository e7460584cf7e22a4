"""Audit of a unit or a version: counts of rows and tokens.

Its equations must hold at commit (:data:`LAWS`).

Example: a unit reads 100 rows, of which 3 are empty and 2 are bad records, so that it
keeps 95. One of them is split into two documents. The audit has ``rows_read=100``,
``filtered={"empty": 3}``, ``quarantined={"invalid_json": 2}``, ``kept=95``, ``expanded=1``
and ``documents=96``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Self, final

from tokenlake.errors import AccountError
from tokenlake.runtime.store.sealed import Count

LAWS: Final[dict[str, tuple[str, ...]]] = {
    "rows_read": ("kept", "filtered", "quarantined"),
    "documents": ("kept", "expanded"),
    "tokens": ("content_packed", "dropped"),
    "slots": ("content_packed", "bos", "eos", "pad"),
}
"""Equations of the audit: each count is the sum of others.

The last equation holds for packed rows only.
"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Counts of one unit, one source or one version.

    Dictionaries are by reason; all counts are >= 0.

    Attributes:
        rows_read: Rows of the input that were read.
        rows_skipped: Rows that were never read (``num_rows``, pruned row groups);
            outside the equations.
        filtered: Rows left out on purpose (``empty``, ``excluded``, ``too_long``,
            ``nothing_to_learn``).
        quarantined: Bad records set aside.
        normalized: Corrections on reading (``bom``, ``crlf``, ``blank_line``), and
            documents that were cut to `max_length` (``long_documents_truncate``,
            ``long_documents_split``); outside the equations.
        kept: Rows that became documents.
        expanded: Documents beyond one per row; without packing also the further pieces
            of split documents.
        documents: Documents that were encoded.
        tokens: Content tokens drawn, including those dropped later.
        content_packed: Content tokens written.
        dropped: Content tokens not written (``truncated``, ``too_long``,
            ``nothing_to_learn``).
        bos: Places that hold a BOS token.
        eos: Places that hold an EOS token that is not content.
        eos_existing: Documents to which no EOS was appended, because they ended with
            one.
        pad: Places that hold padding.
        sequences: Packed rows.
        slots: Ids in packed rows.
        special_tokens_in_text: Occurrences of special-token strings in the documents'
            own text.
        text_bytes: UTF-8 bytes of the documents.
    """

    rows_read: Count = 0
    rows_skipped: dict[str, Count] = field(default_factory=dict[str, Count])
    filtered: dict[str, Count] = field(default_factory=dict[str, Count])
    quarantined: dict[str, Count] = field(default_factory=dict[str, Count])
    normalized: dict[str, Count] = field(default_factory=dict[str, Count])
    kept: Count = 0
    expanded: Count = 0
    documents: Count = 0
    tokens: Count = 0
    content_packed: Count = 0
    dropped: dict[str, Count] = field(default_factory=dict[str, Count])
    bos: Count = 0
    eos: Count = 0
    eos_existing: Count = 0
    pad: Count = 0
    sequences: Count = 0
    slots: Count = 0
    special_tokens_in_text: Count = 0
    text_bytes: Count = 0

    @classmethod
    def total(cls, accounts: Iterable[Self]) -> Self:
        """Return the sum of any number of audits, field by field and reason by reason.

        The sum of no audits is empty.
        """
        # An empty audit comes first, so that each field has a value whose type says how
        # it is added.
        terms = [cls(), *accounts]
        sums: dict[str, Any] = {}
        for field_name in _NAMES:
            field_values: list[Any] = [
                getattr(account, field_name) for account in terms
            ]
            if isinstance(field_values[0], int):
                sums[field_name] = sum(field_values)
            else:
                sums[field_name] = _sum_by_reason(field_values)
        return cls(**sums)

    @property
    def of_rows(self) -> Self:
        """Counts of packed rows, which belong to no single source.

        Several sources may share a row.
        """
        return type(self)(sequences=self.sequences, slots=self.slots, pad=self.pad)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form, with every field."""
        return asdict(self)

    def check(self, width: int | None = None, *, where: str = "account") -> None:
        """Check that the audit balances.

        Args:
            width: Ids of a row of a packed dataset; None or 0 leaves out the equations
                on slots.
            where: Subject of the audit, for messages.

        Raises:
            AccountError: An equation does not hold; the message names it, both sides
                and their terms.
        """
        if self.eos_existing > self.documents:
            raise AccountError(
                f"{where}: eos_existing is {self.eos_existing}; expected <= {self.documents} documents",
                where=where,
            )
        # Each equation in words, its left side, and the terms of its right side.
        equations: list[tuple[str, int, list[int]]] = []
        for total_name, term_names in LAWS.items():
            if total_name == "slots":
                if not width:
                    continue
                # Every packed row has the same number of places.
                row_equation = f"slots = sequences * {width}"
                equations.append((row_equation, self.slots, [self.sequences * width]))
            equation = f"{total_name} = {' + '.join(term_names)}"
            terms = [self.count(term_name) for term_name in term_names]
            equations.append((equation, self.count(total_name), terms))

        # The first equation that does not hold is reported with all its numbers.
        for equation, left, terms in equations:
            right = sum(terms)
            if left != right:
                shown_terms = " + ".join(str(term) for term in terms)
                raise AccountError(
                    f"{where}: the audit does not balance: expected {equation}, got {left} on the left and "
                    f"{shown_terms} = {right} on the right. Something was lost or counted twice; build the version "
                    "again, and report the error if it persists.",
                    equation=equation,
                    left=left,
                    right=right,
                    where=where,
                )

    def count(self, name: str) -> int:
        """Return a count; for counts by reason, their sum."""
        count_or_reasons = getattr(self, name)
        if isinstance(count_or_reasons, int):
            return count_or_reasons
        return sum(count_or_reasons.values())


def _sum_by_reason(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up counts by reason; reasons are sorted."""
    sums: dict[str, int] = {}
    for by_reason in counts:
        for reason, count in by_reason.items():
            sums[reason] = sums.get(reason, 0) + count
    return dict(sorted(sums.items()))


# The fields of a dataclass are searched once, and not for each audit.
_NAMES: Final = tuple(field.name for field in fields(Account))


def require_equal(
    whose: str, equations: Iterable[tuple[str, object, object]], where: str
) -> None:
    """Check equations.

    Args:
        whose: Subject of the equations, for messages.
        equations: Each equation in words, and its two sides.
        where: File that states them, for messages.

    Raises:
        AccountError: An equation does not hold; the message names it and both sides.
    """
    for equation, left, right in equations:
        if left != right:
            raise AccountError(
                f"{where}: {whose} does not balance: expected {equation}, got {left} and {right}. Something was "
                "lost, counted twice or taken from another version; build the version again.",
                equation=equation,
                left=left,
                right=right,
                where=where,
            )
