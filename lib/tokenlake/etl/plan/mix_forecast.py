"""Expected size of a mixture and of each of its sources, with notes for the user."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Final, final

from tokenlake.base import numbers
from tokenlake.config.pipeline import MixStageConfig
from tokenlake.etl.job.messages import RowsOut
from tokenlake.etl.plan.parents import FoundParent
from tokenlake.runtime.store.draws import SourceDraw, token_shares
from tokenlake.runtime.store.mixture import Level, MixedSource, MixtureSpec

_MANY_EPOCHS: Final = 4
"""Number of epochs beyond which repeated rows teach little more (Muennighoff et al.
2023, arXiv:2305.16264).
"""

_SHOWN_FIELDS: Final = (
    "split",
    "rows",
    "tokens",
    "drawn_rows",
    "drawn_tokens",
    "full_epochs",
    "partial_rows",
    "unread_rows",
    "asked",
    "asked_tokens",
)
"""Fields of a source in the JSON form of a forecast."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixForecast:
    """Expected size of a mixture.

    Attributes:
        level: Kind of row that is mixed.
        rows: Number of rows of the stream.
        tokens: Expected number of ids that are written, EOS included and padding not.
        sequences: Number of rows that are written. Where documents are packed, it is the
            least number, without padding; :mod:`tokenlake.etl.plan.mixed_rows` has the
            expected one.
        lanes: Number of lanes of the order.
        batch_size: Batch size of the order.
        kept: Number of rows that are used, for each source of which not all are.
        units: Number of units.
        unit_rows: Number of rows of a unit.
        sources: Record of each source as the manifest will have it, but with expected
            tokens, in the order of the mixture.
    """

    level: Level
    rows: int
    tokens: int
    sequences: int
    lanes: int
    batch_size: int
    kept: Mapping[str, int]
    units: int
    unit_rows: int
    sources: Mapping[str, MixedSource]

    def used(self, name: str) -> int:
        """Return the number of rows of a source that are used."""
        return self.kept.get(name, self.sources[name].rows)

    def to_json(self) -> dict[str, Any]:
        """Return the form for JSON."""
        fields = asdict(self)
        if not self.kept:
            del fields["kept"]
        for source_name, source in self.sources.items():
            source_fields: dict[str, Any] = {
                "parent": f"{source.dataset}@v{source.version}"
            }
            for field in _SHOWN_FIELDS:
                source_fields[field] = getattr(source, field)
            source_fields["epochs"] = source.drawn_rows / self.used(source_name)
            fields["sources"][source_name] = source_fields
        return fields


def forecast_of(
    level: Level,
    mix_config: MixStageConfig,
    parents: Sequence[FoundParent],
    source_draws: Mapping[str, SourceDraw],
    out: RowsOut,
    spec: MixtureSpec,
    *,
    units: int,
    unit_rows: int,
) -> MixForecast:
    """Return the forecast of a mixture.

    Args:
        level: Kind of row that is mixed.
        mix_config: Section `mix` of the configuration.
        parents: Versions that are mixed.
        source_draws: Rows that the order draws from each source.
        out: Format of the new rows.
        spec: Order of the mixture.
        units: Number of units.
        unit_rows: Number of rows of a unit.
    """
    sources = _expected_sources(mix_config, parents, source_draws)
    rows = sum(source.drawn_rows for source in sources.values())
    tokens = sum(source.drawn_tokens for source in sources.values())
    if out.append_eos:
        tokens += rows
    # Documents that are packed fill rows of one width at best.
    sequences = rows
    if out.pack is not None:
        sequences = math.ceil(Fraction(tokens, out.width or 1))
    return MixForecast(
        level=level,
        rows=rows,
        tokens=tokens,
        sequences=sequences,
        lanes=spec.order.lanes,
        batch_size=spec.order.batch_size,
        kept=spec.order.kept,
        units=units,
        unit_rows=unit_rows,
        sources=sources,
    )


def _expected_sources(
    mix_config: MixStageConfig,
    parents: Sequence[FoundParent],
    source_draws: Mapping[str, SourceDraw],
) -> dict[str, MixedSource]:
    """Return the record of each source, with expected numbers of tokens.

    See :func:`forecast_of` for the arguments.
    """
    # 1. The share of tokens that follows from the requested share of rows.
    row_shares: dict[str, float] = {}
    row_counts: dict[str, int] = {}
    token_counts: dict[str, int] = {}
    for parent in parents:
        row_shares[parent.name] = source_draws[parent.name].asked
        row_counts[parent.name] = parent.rows
        token_counts[parent.name] = parent.tokens
    shares = token_shares(row_shares, row_counts, token_counts)

    # 2. The records. A drawn row has the mean tokens of the rows of its source.
    sources: dict[str, MixedSource] = {}
    for parent in parents:
        draw = source_draws[parent.name]
        # Weights by tokens are requested shares of tokens, not only expected ones.
        asked_tokens = None
        if mix_config.weights_by == "tokens":
            asked_tokens = shares[parent.name]
        sources[parent.name] = MixedSource(
            dataset=parent.manifest.dataset,
            version=parent.manifest.version,
            split=parent.split,
            window=parent.window,
            rows=parent.rows,
            tokens=parent.tokens,
            drawn_rows=draw.rows,
            drawn_tokens=round(Fraction(draw.rows * parent.tokens, parent.rows)),
            full_epochs=draw.full_epochs,
            unread_rows=draw.unread,
            asked=draw.asked,
            asked_tokens=asked_tokens,
            # These are known once the rows are written.
            achieved_rows=0.0,
            achieved_tokens=0.0,
        )

    return sources


def notes_on(forecast: MixForecast) -> list[str]:
    """Return notes on sources that are shortened, repeated often or not read whole."""
    notes: list[str] = []
    for source_name, source in forecast.sources.items():
        used_rows = forecast.used(source_name)
        epochs = source.drawn_rows / used_rows
        if used_rows < source.rows:
            notes.append(
                f"{source_name}: shortened to {numbers.count(used_rows)} of its {numbers.count(source.rows)} rows "
                f"({numbers.percent(used_rows, source.rows)})"
            )
        if epochs > _MANY_EPOCHS:
            notes.append(
                f"{source_name}: each of its {numbers.count(used_rows)} rows comes about {epochs:.1f} times; beyond "
                f"{_MANY_EPOCHS} times it teaches little more. Give it less weight, or more data"
            )
        # Rows beyond a limit of repetition are no news here.
        if source.unread_rows > source.rows - used_rows:
            share = numbers.percent(source.unread_rows, source.rows)
            notes.append(
                f"{source_name}: {numbers.count(source.unread_rows)} of its {numbers.count(source.rows)} rows "
                f"({share}) are not read"
            )
    return notes
