"""Shares of records and the mixture of a manifest: exact round trips, and no figure
that is not the order's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.store.support import a_manifest, a_record, a_shard
from tokenlake import Manifest
from tokenlake.base import file_id
from tokenlake.errors import AccountError, IntegrityError
from tokenlake.runtime.store import (
    MIXED,
    Account,
    InputEntry,
    MixtureOrder,
    Parent,
    UnitRecord,
    WeightPoint,
    seal,
)

Change = Callable[[dict[str, Any]], None]

ROWS = {"b": 10, "a": 7}
TOKENS = {"b": 100, "a": 49}
ORDER = MixtureOrder(
    lanes=2,
    batch_size=4,
    block_size=6,
    step_rows=4,
    seed=5,
    stop="restart",
    rows=68,
    points=(
        WeightPoint(0, {"b": 0.75, "a": 0.25}),
        WeightPoint(10, {"b": 0.5, "a": 0.5}),
    ),
    interpolation="linear",
)
DRAWN = {"b": 390, "a": 203}
"""Ids drawn: 39 rows of b, 29 of a, as if all rows of a source were alike."""
ASKED = {"b": 39 / 68, "a": 29 / 68}
"""Shares of the 68 rows that the weights ask for."""


def account(name: str) -> Account:
    rows, ids = DRAWN[name] // (10 if name == "b" else 7), DRAWN[name]
    return Account(
        rows_read=rows,
        kept=rows,
        documents=rows,
        tokens=ids,
        content_packed=ids,
        eos=rows,
        eos_existing=0,
    )


ACCOUNTS = {name: account(name) for name in ROWS}
#: 593 ids and 68 EOS in rows of 8.
PACKED = Account(sequences=83, slots=664, pad=3)


def source(name: str) -> dict[str, Any]:
    """A source as the manifest records it; no row is left out, and each was drawn
    three times or more.
    """
    rows = ACCOUNTS[name].rows_read
    return {
        "dataset": f"{name}.tokens",
        "version": 3,
        "split": "train",
        "window": 4,
        "rows": ROWS[name],
        "tokens": TOKENS[name],
        "drawn_rows": rows,
        "drawn_tokens": DRAWN[name],
        "full_epochs": 3,
        "unread_rows": 0,
        "asked": ASKED[name],
        "asked_tokens": None,
        "achieved_rows": rows / 68,
        "achieved_tokens": DRAWN[name] / 593,
        "partial_rows": rows - 3 * ROWS[name],
        "partial_tokens": DRAWN[name] - 3 * TOKENS[name],
    }


def mixed() -> Manifest:
    """A manifest of a mixture that closes."""
    order = ORDER.to_json()
    points = [
        [point.step, [point.weights[name] for name in ROWS]] for point in ORDER.points
    ]
    settings = {
        **order,
        "level": "documents",
        "weights_by": "rows",
        "splits": dict.fromkeys(ROWS, "train"),
        "names": list(ROWS),
        "points": points,
    }
    plain = a_manifest(
        kind="packed",
        dataset="m",
        fingerprint="f" * 64,
        seq_length=8,
        config={"mix": settings},
        files=(a_shard(rows=83, tokens=661, documents=68),),
        accounts=ACCOUNTS,
        parents=tuple(
            Parent(dataset=f"{name}.tokens", version=3, sha256="c" * 64)
            for name in ROWS
        ),
    )
    mixture = {
        "level": "documents",
        "weights_by": "rows",
        "order": order,
        "rows": {
            "sequences": PACKED.sequences,
            "slots": PACKED.slots,
            "pad": PACKED.pad,
        },
        "names": list(ROWS),
        "sources": {name: source(name) for name in ROWS},
    }
    account = Account.total([*ACCOUNTS.values(), PACKED]).to_json()
    return Manifest.from_bytes(
        seal(plain.to_json() | {"mixture": mixture, "account": account})
    )


def unit() -> UnitRecord:
    """The record of the one unit of that mixture."""
    account = Account.total([*ACCOUNTS.values(), PACKED])
    return a_record(source=MIXED, parts=mixed().files, account=account, shares=ACCOUNTS)


# What was before


def test_records_of_one_source_are_byte_for_byte_what_they_were() -> None:
    entry = InputEntry(
        source="c",
        path="p",
        size=3,
        token="t",
        file_id=file_id("c", "p"),
        start=0,
        stop=3,
    )
    account = Account(
        rows_read=2,
        kept=1,
        filtered={"empty": 1},
        documents=1,
        tokens=5,
        content_packed=5,
    )
    by = {"engine": "tokenizers", "produced_by": {"tokenlake": "0.1.0"}}
    record = a_record(unit=3, inputs=(entry,), account=account, **by)
    digest = hashlib.sha256(record.to_bytes()).hexdigest()
    assert digest == "e6ce75eba3c41948ad60dd6f5764e137f8ee9000063a3d9f7cf0ddee95ae5796"
    assert record.by_source() == {"c": record.account}


# Round trips


def test_the_manifest_of_a_mixture_round_trips_with_its_sources_in_order_and_closes() -> (
    None
):
    manifest = mixed()
    again = Manifest.from_bytes(manifest.to_bytes())
    assert again == manifest
    assert again.mixture is not None
    assert list(again.mixture.sources) == ["b", "a"]
    again.check()
    assert again.account.slots == 664
    assert (
        manifest.sha256
        == "c3078b63ed91c213e46910440613c4384854e68799b93f1cc0fcad73c893d72d"
    )


def test_shares_round_trip_and_say_what_is_each_sources() -> None:
    record = unit()
    assert UnitRecord.from_bytes(record.to_bytes()) == record
    assert record.by_source() == ACCOUNTS


# Damage


def changed(*path: Any, to: Any) -> Change:
    def change(value: dict[str, Any]) -> None:
        for key in path[:-1]:
            value = value[key]
        assert value[path[-1]] != to
        value[path[-1]] = to

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed("shares", to={}),
        changed("source", to="b"),
        changed("shares", "b", "tokens", to=391),
        changed("shares", "b", "pad", to=1),
        changed("account", "eos", to=69),
        lambda value: value.pop("shares"),
        lambda value: value["shares"].pop("a"),
    ],
)
def test_shares_that_are_not_the_accounts_are_refused(change: Change) -> None:
    value = json.loads(unit().to_bytes())
    change(value)
    with pytest.raises(IntegrityError):
        UnitRecord.from_bytes(seal(value))


def figures() -> list[tuple[Any, ...]]:
    """Every figure of the mixture in the manifest's JSON, by its path."""

    def walk(value: Any, path: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        children = value.items() if isinstance(value, dict) else enumerate(value)
        return [
            place
            for key, child in children
            for place in (
                walk(child, (*path, key))
                if isinstance(child, dict | list)
                else [(*path, key)]
            )
        ]

    return walk(mixed().to_json()["mixture"], ("mixture",))


def other(value: Any) -> Any:
    """Another value that the same field could have."""
    if value is None:
        return 0.5
    if isinstance(value, float):
        return value / 2 if value else 0.25
    if isinstance(value, int):
        return value + 1
    words = {
        "restart": "all_exhausted",
        "linear": "cosine",
        "documents": "sequences",
        "rows": "tokens",
    }
    return (words | {there: here for here, there in words.items()}).get(value, "other")


@pytest.mark.parametrize(
    "path", [path for path in figures() if path[-1] != "window"], ids=str
)
def test_any_other_figure_in_a_mixture_is_found(path: tuple[Any, ...]) -> None:
    value: Any = json.loads(mixed().to_bytes())
    at = value
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = other(at[path[-1]])
    with pytest.raises(IntegrityError):
        Manifest.from_bytes(seal(value)).check()


@pytest.mark.parametrize("name", ["b", "a"])
def test_a_row_that_was_drawn_but_not_counted_is_found(name: str) -> None:
    manifest = mixed()
    one = manifest.accounts[name]
    less = replace(
        one, rows_read=one.rows_read - 1, kept=one.kept - 1, documents=one.documents - 1
    )
    with pytest.raises(AccountError):
        replace(manifest, accounts={**manifest.accounts, name: less}).check()


def with_drawn_tokens(name: str, tokens: int) -> Manifest:
    """The manifest of a mixture that drew another number of tokens of a source,
    otherwise balanced; checked.
    """
    manifest = mixed()
    assert manifest.mixture is not None
    drawn = {source: DRAWN[source] for source in ROWS} | {name: tokens}
    total = sum(drawn.values())
    accounts = dict(manifest.accounts)
    accounts[name] = replace(accounts[name], tokens=tokens, content_packed=tokens)
    sources = {
        source: replace(
            manifest.mixture.sources[source],
            drawn_tokens=drawn[source],
            achieved_tokens=drawn[source] / total,
        )
        for source in ROWS
    }
    # Rows of 8 slots hold all tokens and one EOS for each of the 68 documents.
    rows = -(-(total + 68) // 8)
    packed = Account(sequences=rows, slots=8 * rows, pad=8 * rows - total - 68)
    file = replace(manifest.files[0], tokens=total + 68, rows=rows)
    mixture = replace(manifest.mixture, sources=sources, rows=packed)
    other = replace(manifest, files=(file,), accounts=accounts, mixture=mixture)
    other.check()
    return other


def test_epochs_are_counted_where_lanes_have_unequal_rows() -> None:
    """Lanes of b have 5 rows each and give 20 and 19; those of a have 3 and 4 rows and
    give 15 and 14.

    So every row is drawn 3 times at least, and one of a may be drawn 5 times: up to 245
    of its tokens are possible.
    """
    assert with_drawn_tokens("a", 245).account.tokens == 390 + 245
    for name, tokens in (("a", 246), ("a", 146), ("b", 401), ("b", 299)):
        with pytest.raises(
            AccountError,
            match=rf"source '{name}' of the mixture.*epochs of {TOKENS[name]} tokens",
        ):
            with_drawn_tokens(name, tokens)
