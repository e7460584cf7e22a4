"""The account: sums, round trips, and that no single wrong figure passes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.errors import AccountError
from tokenlake.runtime.store import Account

COUNT = st.integers(0, 1 << 40)
REASONS = st.dictionaries(
    st.sampled_from(["empty", "excluded", "bom", "truncated"]), COUNT, max_size=3
)
DICTS = ("rows_skipped", "filtered", "quarantined", "normalized", "dropped")
INTS = tuple(name for name in Account.__dataclass_fields__ if name not in DICTS)
ANY: st.SearchStrategy[Account] = st.builds(
    Account, **dict.fromkeys(INTS, COUNT), **dict.fromkeys(DICTS, REASONS)
)
EQUATED = ("rows_read", "kept", "expanded", "documents", "tokens", "content_packed")
EQUATED += ("bos", "eos", "pad", "sequences", "slots")


@st.composite
def closing(draw: st.DrawFn) -> tuple[Account, int]:
    """An account that closes, and its L."""
    base, length = draw(ANY), draw(st.integers(1, 4096))
    used = base.content_packed + base.bos + base.eos
    sequences = -(-used // length)
    documents = base.kept + base.expanded
    account = replace(
        base,
        rows_read=base.kept
        + sum(base.filtered.values())
        + sum(base.quarantined.values()),
        documents=documents,
        tokens=base.content_packed + sum(base.dropped.values()),
        eos_existing=min(base.eos_existing, documents),
        sequences=sequences,
        slots=sequences * length,
        pad=sequences * length - used,
    )
    return account, length


@given(ANY, ANY, ANY)
def test_adding_is_associative_and_commutative_with_a_zero(
    a: Account, b: Account, c: Account
) -> None:
    total = Account.total
    assert total([total([a, b]), c]) == total([a, total([b, c])]) == total([a, b, c])
    assert total([a, b]) == total([b, a])
    assert total([a, Account()]) == a == total([Account(), a])
    assert total([]) == Account()


@given(closing(), closing())
def test_closing_accounts_close_and_so_do_sums(
    a: tuple[Account, int], b: tuple[Account, int]
) -> None:
    a[0].check(a[1])
    b[0].check()
    Account.total([a[0], b[0]]).check()


@given(closing(), st.sampled_from(EQUATED), st.integers(-50, 50).filter(bool))
def test_any_single_wrong_figure_is_found(
    good: tuple[Account, int], name: str, error: int
) -> None:
    account, length = good
    wrong = replace(account, **{name: getattr(account, name) + error})
    with pytest.raises(AccountError):
        wrong.check(length)


@given(
    closing(),
    st.sampled_from(["filtered", "quarantined", "dropped"]),
    st.integers(-50, 50).filter(bool),
)
def test_any_single_wrong_reason_is_found(
    good: tuple[Account, int], name: str, error: int
) -> None:
    account, length = good
    reasons: dict[str, int] = dict(getattr(account, name))
    reasons["empty"] = reasons.get("empty", 0) + error
    with pytest.raises(AccountError):
        replace(account, **{name: reasons}).check(length)


def test_the_error_names_equation_sides_and_place() -> None:
    account = Account(rows_read=10, kept=7, filtered={"empty": 1, "excluded": 1})
    with pytest.raises(AccountError) as caught:
        account.check(where="unit 17")
    assert "unit 17" in str(caught.value)
    assert "rows_read = kept + filtered + quarantined" in str(caught.value)
    assert "7 + 2 + 0 = 9" in str(caught.value)
    assert (caught.value.details["left"], caught.value.details["right"]) == (10, 9)


def test_too_many_existing_eos_are_refused() -> None:
    with pytest.raises(AccountError, match="eos_existing"):
        Account(rows_read=1, kept=1, documents=1, eos_existing=2).check()


def test_slots_must_be_whole_sequences() -> None:
    account = Account(content_packed=8, tokens=8, sequences=1, slots=8)
    account.check(8)
    with pytest.raises(AccountError, match="sequences \\* 16"):
        account.check(16)
