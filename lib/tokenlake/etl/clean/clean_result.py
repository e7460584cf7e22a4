"""The result of a cleaning run: the path of its list, and the audit of every row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenlake.base.markup import named_facts
from tokenlake.runtime.store.account import Account


@dataclass(frozen=True, slots=True)
class CleanResult:
    """Result of a cleaning run.

    Attributes:
        output: Path of the list, for `exclude` of a source.
        accounts: Source -> audit: ``rows_read = kept + filtered + quarantined``, each
            by reason.
        sets: Evaluation set -> number of its documents, of those too short to be found,
            and of its n-grams.
        units_made: Number of units whose signatures this run made.
        units_found: Number of units whose signatures an earlier run had made.
        notes: Sentences for the user.
        seconds: Wall time of the run.
    """

    output: str
    accounts: Mapping[str, Account]
    sets: Mapping[str, Mapping[str, int]]
    units_made: int
    units_found: int
    notes: tuple[str, ...]
    seconds: float

    @property
    def account(self) -> Account:
        """Audit of all sources together."""
        return Account.total(self.accounts.values())

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        sources: dict[str, Any] = {}
        for name, account in self.accounts.items():
            sources[name] = _row_counts(account)
        return {
            "output": self.output,
            "units_made": self.units_made,
            "units_found": self.units_found,
            "seconds": self.seconds,
            **_row_counts(self.account),
            "sources": sources,
            "evaluation": dict(self.sets),
            "notes": list(self.notes),
        }

    def _repr_html_(self) -> str:
        """Return a small table for notebooks."""
        account = self.account
        facts = {
            "output": self.output,
            "rows read": account.rows_read,
            "kept": account.kept,
        }
        rows: list[tuple[str, str]] = []
        for reason, count in sorted(account.filtered.items()):
            rows.append((reason, f"{count:,}"))
        return named_facts("Documents to leave out", facts, ("reason", "rows"), rows)


def _row_counts(account: Account) -> dict[str, Any]:
    """Return the numbers of rows of an audit, by reason."""
    return {
        "rows_read": account.rows_read,
        "kept": account.kept,
        "removed": dict(sorted(account.filtered.items())),
        "quarantined": dict(sorted(account.quarantined.items())),
    }
