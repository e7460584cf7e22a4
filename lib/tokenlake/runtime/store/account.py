"""The account of a unit or a version: a token-by-token audit, whose equations must hold at commit."""

from __future__ import annotations

from collections.abc import Iterable
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
"""What each count is the sum of; the last one of packed rows only."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Counts of one unit, one source or one version. Dictionaries are by reason; all counts are >= 0.

    Attributes:
        rows_read: rows of the input that were looked at.
        rows_skipped: rows never looked at (``num_rows``, pruned row groups); outside the equations.
        filtered: rows left out on purpose (``empty``, ``excluded``, ``too_long``, ``nothing_to_learn``).
        quarantined: bad records set aside.
        normalized: what was normalized on reading (``bom``, ``crlf``, ``blank_line``), and documents that were cut to
            `max_length` (``long_documents_truncate``, ``long_documents_split``); outside the equations.
        kept: rows that became documents.
        expanded: documents beyond one per row; without packing the further pieces of split documents too.
        documents: documents that were encoded.
        tokens: content tokens drawn, those later dropped included.
        content_packed: content tokens written.
        dropped: content tokens not written (``truncated``, ``too_long``, ``nothing_to_learn``).
        bos, eos, pad: slots that hold such a token; ``eos`` counts every EOS that is not content.
        eos_existing: documents to which no EOS was appended, because one was there.
        sequences: packed rows.
        slots: ids in packed rows.
        special_tokens_in_text: occurrences of special-token strings in documents' own text.
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
        """Return the sum of any number of accounts, field by field and reason by reason; of none, an empty one."""
        found = [cls(), *accounts]
        sums: dict[str, Any] = {}
        for name in _NAMES:
            values: list[Any] = [getattr(account, name) for account in found]
            if isinstance(values[0], int):
                sums[name] = sum(values)
            else:
                reasons = sorted({reason for value in values for reason in value})
                sums[name] = {reason: sum(value.get(reason, 0) for value in values) for reason in reasons}
        return cls(**sums)

    @property
    def of_rows(self) -> Self:
        """What belongs to packed rows, and to no one source of those that share them."""
        return type(self)(sequences=self.sequences, slots=self.slots, pad=self.pad)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict with every field."""
        return asdict(self)

    def check(self, width: int | None = None, *, where: str = "account") -> None:
        """Check that the account closes.

        Args:
            width: ids of a row of a packed dataset; None or 0 leaves the equations on slots out.
            where: what the account is of, for messages.

        Raises:
            AccountError: names the equation, both sides and the figures.
        """
        if self.eos_existing > self.documents:
            raise AccountError(
                f"{where}: eos_existing is {self.eos_existing}; expected <= {self.documents} documents",
                where=where,
            )
        equations = [
            (f"{whole} = {' + '.join(parts)}", self.count(whole), [*map(self.count, parts)])
            for whole, parts in LAWS.items()
            if whole != "slots" or width
        ]
        if width:
            equations.insert(-1, (f"slots = sequences * {width}", self.slots, [self.sequences * width]))
        for equation, left, right in equations:
            if left != sum(right):
                terms = " + ".join(str(term) for term in right)
                raise AccountError(
                    f"{where}: the account does not close: expected {equation}, got {left} on the left and "
                    f"{terms} = {sum(right)} on the right. Something was lost or counted twice; "
                    "rebuild what it covers, and report it if it stays.",
                    equation=equation,
                    left=left,
                    right=sum(right),
                    where=where,
                )

    def count(self, name: str) -> int:
        """Return a count, or the sum of those by reason."""
        value = getattr(self, name)
        return value if isinstance(value, int) else sum(value.values())


_NAMES: Final = tuple(each.name for each in fields(Account))


def require_equal(whose: str, equations: Iterable[tuple[str, object, object]], where: str) -> None:
    """Check equations, each with its two sides.

    Args:
        whose: what they are of, and
        where: the file that says so, for messages.

    Raises:
        AccountError: names the equation and both sides.
    """
    for equation, left, right in equations:
        if left != right:
            raise AccountError(
                f"{where}: {whose} does not close: expected {equation}, got {left} and {right}. "
                "Something was lost, counted twice or taken from elsewhere; rebuild the version.",
                equation=equation,
                left=left,
                right=right,
                where=where,
            )
