"""What a mixture will come to, known before any of it is written; only tokens are a guess, by the means of sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, final

from tokenlake.build.mixing.job import Level, RowsOut
from tokenlake.build.mixing.planning.parents import FoundParent
from tokenlake.manifest.mixturelaw import Outcome, token_shares
from tokenlake.report import numbers

_MANY_EPOCHS = 4
"""Beyond so many times, seeing the same rows again teaches hardly more (Muennighoff et al. 2023, arXiv:2305.16264)."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceForecast:
    """What is drawn of one source.

    Attributes:
        parent: ``code@v3``.
        split: of it.
        rows, tokens: of the split.
        drawn_rows: rows of the mixture that are of this source.
        drawn_tokens: ids that these rows are expected to hold.
        full_epochs: how often each of its rows is drawn at least.
        partial_rows: rows drawn beyond that.
        unread_rows: rows that are never drawn.
        asked: share of the mixture's rows that the weights ask for, over the whole run.
        asked_tokens: the same of its tokens, where weights are per token; else None.
    """

    parent: str
    split: str
    rows: int
    tokens: int
    drawn_rows: int
    drawn_tokens: int
    full_epochs: int
    partial_rows: int
    unread_rows: int
    asked: float
    asked_tokens: float | None

    @property
    def epochs(self) -> float:
        """How often its rows are drawn in the mean."""
        return self.drawn_rows / self.rows


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixForecast:
    """What a mixture will come to.

    Attributes:
        level: what is mixed.
        rows: of the stream.
        tokens: ids that are written, EOS included and padding not; expected.
        sequences: rows that are written; where documents are packed, expected.
        lanes, batch_size: of the order.
        units, unit_rows: of work.
        sources: by name, in the order of the mixture.
    """

    level: Level
    rows: int
    tokens: int
    sequences: int
    lanes: int
    batch_size: int
    units: int
    unit_rows: int
    sources: Mapping[str, SourceForecast]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form."""
        each = {name: {**asdict(one), "epochs": one.epochs} for name, one in self.sources.items()}
        return {**asdict(self), "sources": each}


def forecast_of(
    level: Level,
    parents: Sequence[FoundParent],
    outcomes: Mapping[str, Outcome],
    out: RowsOut,
    *,
    by_tokens: bool,
    lanes: int,
    batch_size: int,
    units: int,
    unit_rows: int,
) -> MixForecast:
    """Sum up what the order draws."""
    shares = token_shares(
        {name: outcome.asked for name, outcome in outcomes.items()},
        {parent.name: parent.rows for parent in parents},
        {parent.name: parent.tokens for parent in parents},
    )
    sources = {
        parent.name: _source(parent, outcomes[parent.name], shares[parent.name] if by_tokens else None)
        for parent in parents
    }
    rows = sum(one.drawn_rows for one in sources.values())
    tokens = sum(one.drawn_tokens for one in sources.values()) + rows * out.append_eos
    return MixForecast(
        level=level,
        rows=rows,
        tokens=tokens,
        sequences=-(-tokens // out.pack.seq_length) if out.pack else rows,
        lanes=lanes,
        batch_size=batch_size,
        units=units,
        unit_rows=unit_rows,
        sources=sources,
    )


def _source(parent: FoundParent, outcome: Outcome, asked_tokens: float | None) -> SourceForecast:
    partial = outcome.rows - outcome.full_epochs * parent.rows
    return SourceForecast(
        parent=parent.reference,
        split=parent.split,
        rows=parent.rows,
        tokens=parent.tokens,
        drawn_rows=outcome.rows,
        drawn_tokens=round(Fraction(outcome.rows * parent.tokens, parent.rows)),
        full_epochs=outcome.full_epochs,
        partial_rows=partial,
        unread_rows=outcome.unread,
        asked=outcome.asked,
        asked_tokens=asked_tokens,
    )


def notes_on(forecast: MixForecast) -> list[str]:
    """Return what a user should know of a mixture before it is made."""
    notes: list[str] = []
    for name, one in forecast.sources.items():
        if one.epochs > _MANY_EPOCHS:
            notes.append(
                f"{name}: each of its {numbers.count(one.rows)} rows comes about {one.epochs:.1f} times; beyond "
                f"{_MANY_EPOCHS} times it teaches little more. Give it less weight, or more data"
            )
        if one.unread_rows:
            part = numbers.percent(one.unread_rows, one.rows)
            notes.append(
                f"{name}: {numbers.count(one.unread_rows)} of its {numbers.count(one.rows)} rows ({part}) are not read"
            )
    return notes
