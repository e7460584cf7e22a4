"""The account as people check it: every equation with its figures filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenlake.account import Account
from tokenlake.manifest import Manifest, MixedSource
from tokenlake.report import lengths
from tokenlake.report.numbers import count
from tokenlake.report.table import Column, Table, label, number

Term = tuple[str, int, Mapping[str, int]]
"""A name, a count, and what the count is made of by reason."""


def equations(account: Account, seq_length: int | None) -> list[tuple[str, str]]:
    """Return (left side's name, the rest of the equation) for each law of the account.

    A packed dataset (``seq_length`` given) has the equation on slots too. Terms that are 0 are left out:
    ``("rows read", "1,834 = 1,832 kept + 2 filtered (empty)")``.
    """
    kept: Term = ("kept", account.kept, {})
    found = [
        _equation(
            "rows read",
            account.rows_read,
            [kept, _by_reason("filtered", account.filtered), _by_reason("quarantined", account.quarantined)],
        ),
        _equation("documents", account.documents, [kept, ("expanded", account.expanded, {})]),
        _equation(
            "tokens",
            account.tokens,
            [("written", account.content_packed, {}), _by_reason("dropped", account.dropped)],
        ),
    ]
    if seq_length is not None:
        slots: list[Term] = [
            ("content", account.content_packed, {}),
            ("BOS", account.bos, {}),
            ("EOS", account.eos, {}),
            ("padding", account.pad, {}),
        ]
        product = f"{count(account.sequences)} x {count(seq_length)}"
        name, written = _equation("slots", account.slots, slots)
        left, equals, right = written.partition(" = ")
        found.append((name, f"{left} = {product}{equals}{right}"))
    return found


def draws(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the law of every source of a mixture: ``("drawn of web", "1,250 = 2 x 500 of whole epochs + 250")``."""
    sources = {} if manifest.mixture is None else manifest.mixture.sources
    return [(f"drawn of {name}", _drawn(source)) for name, source in sources.items()]


def _drawn(source: MixedSource) -> str:
    if not source.full_epochs and source.drawn_tokens <= source.tokens:
        return f"{count(source.drawn_tokens)} of {count(source.tokens)}, not a whole epoch"
    rest = f" + {count(source.partial_tokens)}" if source.partial_tokens else ""
    whole = f"{count(source.full_epochs)} x {count(source.tokens)} of whole epochs"
    return f"{count(source.drawn_tokens)} = {whole}{rest}"


def account_table(manifest: Manifest, title: str | None = "Account") -> Table:
    """The equations as a table of two columns."""
    rows = equations(manifest.account, manifest.seq_length) + draws(manifest)
    return Table((label("quantity", ""), label("equation", "")), tuple(rows), title)


def remarks(account: Account) -> list[str]:
    """What was mended, skipped or worth knowing; empty when there is nothing to say."""
    found: list[str] = []
    mended = {reason: many for reason, many in account.normalized.items() if reason not in lengths.CUT}
    if any(mended.values()):
        found.append(f"normalized on reading: {_reasons(mended)}")
    if any(account.rows_skipped.values()):
        found.append(f"rows never read: {_reasons(account.rows_skipped)}")
    if account.special_tokens_in_text:
        found.append(f"special-token strings inside documents: {count(account.special_tokens_in_text)}")
    if account.eos_existing:
        found.append(f"documents that already ended in EOS: {count(account.eos_existing)}")
    return found + lengths.found(account)


def sources_table(accounts: Mapping[str, Account], title: str | None = "Sources") -> Table:
    """A line for each source of text, in the order given."""
    columns: Sequence[Column] = (
        label("source"),
        number("rows_read", "rows read"),
        number("filtered"),
        number("quarantined"),
        number("documents"),
        number("tokens"),
        number("text_bytes", "text bytes"),
    )
    records = [
        {
            "source": name,
            "rows_read": account.rows_read,
            "filtered": sum(account.filtered.values()),
            "quarantined": sum(account.quarantined.values()),
            "documents": account.documents,
            "tokens": account.tokens,
            "text_bytes": account.text_bytes,
        }
        for name, account in accounts.items()
    ]
    return Table.of(columns, records, title)


def _by_reason(name: str, reasons: Mapping[str, int]) -> Term:
    return name, sum(reasons.values()), reasons


def _equation(name: str, left: int, terms: Sequence[Term]) -> tuple[str, str]:
    shown = [_term(term) for term in terms if term[1]] or [f"0 {terms[0][0]}"]
    return name, f"{count(left)} = {' + '.join(shown)}"


def _term(term: Term) -> str:
    name, value, reasons = term
    there = [reason for reason, many in reasons.items() if many]
    made_of = f" ({there[0] if len(there) == 1 else _reasons(reasons)})" if there else ""
    return f"{count(value)} {name}{made_of}"


def _reasons(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count(value)} {reason}" for reason, value in sorted(reasons.items()) if value)
