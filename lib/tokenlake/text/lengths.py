"""Lengths in tokens, never in characters: budgets shared among columns, rows cut and padded to rectangles.

All budget strategies give every column at most what it has, and give out ``min(total, sum of all lengths)`` tokens to
the last one: what one column does not need goes to the others. Fractions are rounded by largest remainder, the earlier
column first among equals, so that equal questions get equal answers.

Where the ids of a document that is encoded already may be cut, its text decides (:mod:`tokenlake.text.truncation`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, Literal, Self, final, get_args

import numpy as np
import numpy.typing as npt

from tokenlake.arrays import Bools, Int32, Int64, Ragged, offsets_of
from tokenlake.base.checks import require_one_of
from tokenlake.columns import IGNORED
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.result import Result, attempt
from tokenlake.text.truncation import SIDES, STRATEGIES, Cut, Side, Strategy, truncate
from tokenlake.tokenizers.encoder import Encoder, column_of_texts
from tokenlake.tokenizers.files import files_of

BudgetStrategy = Literal["equal", "proportional", "ratio", "priority", "adaptive"]
PaddingStrategy = Literal["none", "longest", "max_length", "buckets"]

BUDGET_STRATEGIES: Final[tuple[BudgetStrategy, ...]] = get_args(BudgetStrategy)
PADDING_STRATEGIES: Final[tuple[PaddingStrategy, ...]] = get_args(PaddingStrategy)

_SHORTEST_BUCKET: Final = 32


class ContentDistributionMode(StrEnum):
    """The budget strategies by name; each is its text, so that it can be given as `budget`."""

    EQUAL = "equal"
    PROPORTIONAL = "proportional"
    RATIO = "ratio"
    PRIORITY = "priority"
    ADAPTIVE = "adaptive"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LengthManagerConfig:
    """The options of a :class:`LengthManager`, to be kept and passed on; their meaning is told there."""

    max_length: int = 2048
    truncation: Strategy = "smart"
    truncation_side: Side = "right"
    padding: PaddingStrategy = "none"
    padding_side: Side = "right"
    boundaries: tuple[int, ...] | None = None
    budget: BudgetStrategy | ContentDistributionMode = "adaptive"
    ratios: Mapping[str, float] | None = None
    priority: tuple[str, ...] | None = None
    add_special_tokens: bool = True
    pad_id: int | None = None


def allocate(
    lengths: Mapping[str, int],
    total: int,
    strategy: BudgetStrategy = "adaptive",
    *,
    ratios: Mapping[str, float] | None = None,
    priority: Sequence[str] | None = None,
) -> dict[str, int]:
    """Return how many tokens each column gets, in the order of `lengths`.

    Args:
        lengths: column to the tokens it has, each at least 0.
        total: the budget; less than 1 gives nothing to anybody.
        strategy:
            - ``equal``: every column gets the same; what a column does not need is shared out equally among those
              that need more, and so on.
            - ``proportional``: every column gets the share of the budget that it has of all tokens, so that all are
              cut by the same part.
            - ``ratio``: as equal, but shares stand to each other as `ratios` do; a column of ratio 0 gets what the
              others leave.
            - ``priority``: the first column of `priority` gets all it needs, then the second, and so on; columns that
              are not named come last, in their own order.
            - ``adaptive``: every column gets what it has up to an equal share of the budget; the rest is shared out
              in proportion to what each still lacks. Short columns stay whole, and long ones are cut by the same part
              of what they have beyond the equal share.
        ratios: for ``ratio``: every column's weight, at least one of them above 0.
        priority: for ``priority``: columns, the most important first.

    Raises:
        ConfigError: an unknown strategy or column, a missing or negative ratio, a negative length, or an argument
            that the strategy does not take.
    """
    require_one_of("strategy", strategy, BUDGET_STRATEGIES)
    _check(lengths, strategy, ratios, priority)
    total = max(0, min(total, sum(lengths.values())))
    if strategy == "priority":
        given = dict.fromkeys(lengths, 0)
        for name in dict.fromkeys([*(priority or ()), *lengths]):
            given[name] = min(lengths[name], total)
            total -= given[name]
        return given
    share = total // max(1, len(lengths)) if strategy == "adaptive" else 0
    sure = {name: min(length, share) for name, length in lengths.items()}
    needs = {name: length - sure[name] for name, length in lengths.items()}
    same = dict.fromkeys(lengths, 1)
    weights = {"equal": same, "ratio": ratios or same}.get(strategy, needs)
    exact = {name: Fraction(weights[name]) for name in lengths}
    more = _fill(needs, exact, total - sum(sure.values()))
    return {name: sure[name] + more[name] for name in lengths}


def _check(
    lengths: Mapping[str, int],
    strategy: BudgetStrategy,
    ratios: Mapping[str, float] | None,
    priority: Sequence[str] | None,
) -> None:
    columns = ", ".join(map(repr, lengths)) or "none"
    if any(length < 0 for length in lengths.values()):
        raise ConfigError(f"lengths: got {dict(lengths)}, expected at least 0 tokens in every column")
    for what, given, needed in (("ratios", ratios, "ratio"), ("priority", priority, "priority")):
        if (given is not None) != (strategy == needed):
            verb = "needs" if strategy == needed else "takes no"
            raise ConfigError(f"budget strategy {strategy!r} {verb} {what}")
        if unknown := [name for name in given or () if name not in lengths]:
            raise ConfigError(f"{what}: no column {unknown[0]!r}; there are {columns}")
    if ratios is not None and lengths:
        fine = all(math.isfinite(ratio) and ratio >= 0 for ratio in ratios.values()) and any(ratios.values())
        if not fine or len(ratios) < len(lengths):
            expected = f"a number of at least 0 for every column ({columns}), one of them above 0"
            raise ConfigError(f"ratios: got {dict(ratios)}, expected {expected}")
    if priority is not None and len(set(priority)) < len(priority):
        raise ConfigError(f"priority: got {list(priority)!r}, expected every column at most once")


def _fill(needs: Mapping[str, int], weights: Mapping[str, Fraction], total: int) -> dict[str, int]:
    """Share `total` (at most the sum of `needs`) out by weight, handing on what a column does not need."""
    given = dict.fromkeys(needs, 0)
    left = {name: need for name, need in needs.items() if need}
    while left and total:
        whole = sum(weights[name] for name in left)
        # Without any weight only columns of ratio 0 are left.
        shares = {name: total * (weights[name] / whole if whole else Fraction(1, len(left))) for name in left}
        full = [name for name, share in shares.items() if share >= left[name]]
        if not full:
            # No share is more than its column lacks, and rounding up a fraction cannot make it more. The largest
            # remainders are rounded up, the earlier column first among equals, so that the sum is the total.
            floors = {name: math.floor(share) for name, share in shares.items()}
            by_remainder = sorted(shares, key=lambda name: floors[name] - shares[name])
            for name in by_remainder[: total - sum(floors.values())]:
                floors[name] += 1
            return given | floors
        for name in full:
            given[name] = left.pop(name)
            total -= given[name]
    return given


@final
@dataclass(frozen=True, slots=True)
class Padded:
    """n rows of w ids each.

    Attributes:
        rows: int64[n], ascending: which of the rows given these are.
        input_ids: int32[n, w].
        attention_mask: int32[n, w], 1 for a row's own ids, 0 for padding.
        labels: int32[n, w], the ids where they bear loss, :data:`IGNORED` elsewhere, on padding always.
    """

    rows: Int64
    input_ids: Int32
    attention_mask: Int32
    labels: Int32

    @property
    def width(self) -> int:
        """Ids in a row."""
        return self.input_ids.shape[1]


def pad(
    rows: Ragged,
    *,
    pad_id: int,
    strategy: PaddingStrategy = "longest",
    side: Side = "right",
    max_length: int | None = None,
    boundaries: npt.ArrayLike | None = None,
    loss: Bools | None = None,
) -> list[Padded]:
    """Make rectangles of n rows of ids: one, or one for each group of rows, the narrowest first.

    Args:
        pad_id: fills rows up; a token that also stands in texts is fine, the mask tells.
        strategy:
            - ``none``: no padding; rows of one length make one rectangle.
            - ``longest``: all rows as wide as the longest.
            - ``max_length``: all rows `max_length` wide.
            - ``buckets``: every row as wide as the first of `boundaries` that holds it; a bucket with rows makes one
              rectangle.
        side: where the padding goes.
        max_length: for ``max_length``: the width.
        boundaries: for ``buckets``: ascending widths.
        loss: bool[total], which ids bear loss; None: all.

    Raises:
        ConfigError: a strategy without what it needs, or a row that is longer than any width allowed: truncate first.
    """
    require_one_of("strategy", strategy, PADDING_STRATEGIES)
    require_one_of("side", side, SIDES)
    edges = [max_length] if strategy == "max_length" and max_length is not None else boundaries
    widths = rows.lengths
    if strategy != "none":
        widths = _widths(widths, None if strategy == "longest" else edges)
    labels = Ragged(rows.ids if loss is None else np.where(loss, rows.ids, np.int32(IGNORED)), rows.offsets)
    found: list[Padded] = []
    for width in np.unique(widths).tolist():
        here = widths == width
        ids, mask = rows.select(here).rectangle(width, pad_id, left=side == "left")
        learned, _ = labels.select(here).rectangle(width, IGNORED, left=side == "left")
        found.append(Padded(np.flatnonzero(here), ids, mask.astype(np.int32), learned))
    return found


def _widths(lengths: Int64, boundaries: npt.ArrayLike | None) -> Int64:
    """int64[n]: the first of ascending boundaries that holds each row; None: the length of the longest."""
    longest = int(lengths.max(initial=0))
    edges = np.asarray([longest] if boundaries is None else boundaries, np.int64)
    if boundaries is not None and (not len(edges) or edges[0] < 1 or np.any(np.diff(edges) <= 0)):
        raise ConfigError(f"boundaries are {edges.tolist()}, expected ascending numbers of at least 1")
    if longest > edges[-1]:
        row = int(np.argmax(lengths > edges[-1]))
        raise ConfigError(
            f"row {row} has {lengths[row]} tokens, the widest rectangle holds {edges[-1]}; truncate rows before "
            "padding them",
            row=row,
            got=int(lengths[row]),
            expected=int(edges[-1]),
        )
    return edges[np.searchsorted(edges, lengths, side="left")]


@final
@dataclass(frozen=True, slots=True)
class Shortened:
    """What is kept of a text.

    Attributes:
        text: the part of the text that is kept; encoded on its own it may have other ids near the cut.
        ids: int32[k], the text's own ids, without special tokens.
        cut: where it was cut, and by which rule.
    """

    text: str
    ids: Int32
    cut: Cut

    def __len__(self) -> int:
        return len(self.ids)


@final
class LengthManager:
    """Texts to rows of a bounded number of tokens.

    Args:
        tokenizer: a Hub id, directory or tokenizer.json file, or an object of `transformers` or `tokenizers`.
        max_length: most tokens of a row, special tokens included.
        truncation, truncation_side: see :mod:`tokenlake.text.truncation`.
        padding, padding_side: see :func:`pad`.
        boundaries: widths of the padding ``buckets``; None: powers of two up to the first that holds `max_length`.
        budget, ratios, priority: see :func:`allocate`.
        add_special_tokens: put the tokenizer's own BOS/EOS around every row.
        pad_id: None: the tokenizer's padding, else its EOS.

    Raises:
        ConfigError: an unknown strategy or side, or a `max_length` that special tokens fill.
        SourceNotFoundError, TokenizerError, MissingExtraError: the tokenizer cannot be loaded.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_length: int = 2048,
        truncation: Strategy = "smart",
        truncation_side: Side = "right",
        padding: PaddingStrategy = "none",
        padding_side: Side = "right",
        boundaries: Sequence[int] | None = None,
        budget: BudgetStrategy = "adaptive",
        ratios: Mapping[str, float] | None = None,
        priority: Sequence[str] | None = None,
        add_special_tokens: bool = True,
        pad_id: int | None = None,
    ) -> None:
        for name, value, allowed in (
            ("truncation", truncation, STRATEGIES),
            ("truncation_side", truncation_side, SIDES),
            ("padding", padding, PADDING_STRATEGIES),
            ("padding_side", padding_side, SIDES),
            ("budget", budget, BUDGET_STRATEGIES),
        ):
            require_one_of(name, value, allowed)
        self.max_length = max_length
        self._truncation: tuple[Strategy, Side] = (truncation, truncation_side)
        self._padding: tuple[PaddingStrategy, Side] = (padding, padding_side)
        self._boundaries = boundaries
        self._budget: tuple[BudgetStrategy, Any, Any] = (budget, ratios, priority)
        self._pad_id = pad_id
        self._encoder = Encoder(
            files_of(tokenizer), engine="tokenizers", add_special_tokens=add_special_tokens
        )
        if self.room < 1:
            raise ConfigError(
                f"max_length is {max_length}, but the tokenizer puts {max_length - self.room} special tokens around a "
                f"row; expected at least {max_length - self.room + 1}"
            )

    @classmethod
    def from_config(cls, config: LengthManagerConfig, tokenizer: Any) -> Result[Self, TokenlakeError]:
        """Return the manager that a configuration describes, or what is wrong with it."""
        options: dict[str, Any] = {field.name: getattr(config, field.name) for field in fields(config)}
        return attempt(lambda: cls(tokenizer, **options))

    @property
    def room(self) -> int:
        """Tokens of a row that are not special tokens."""
        return self.max_length - len(self._encoder.prefix) - len(self._encoder.suffix)

    @cached_property
    def pad_id(self) -> int:
        """The id that fills rows up."""
        files = self._encoder.files
        found = files.fill_id if self._pad_id is None else self._pad_id
        if found is None:
            raise ConfigError(f"tokenizer {files.name!r} has neither a padding nor an EOS token; give pad_id")
        return found

    def count(self, texts: Sequence[str]) -> Int64:
        """Return the tokens of each text, int64[n], without special tokens."""
        return np.diff(self._encoder.encode(column_of_texts(texts)).offsets)

    def truncate(self, texts: Sequence[str], budget: int | Sequence[int] | None = None) -> list[Shortened]:
        """Shorten texts.

        Args:
            texts: n texts.
            budget: most tokens of every text, or of each; None: :attr:`room`.
        """
        budgets = np.broadcast_to(np.asarray(self.room if budget is None else budget, np.int64), len(texts))
        return [
            self._shortened(placed, limit)
            for placed, limit in zip(self._placed(texts), budgets.tolist(), strict=True)
        ]

    def fit(self, columns: Mapping[str, str], total: int | None = None) -> dict[str, Shortened]:
        """Shorten the columns of a row so that together they have at most `total` tokens (None: :attr:`room`)."""
        placed = dict(zip(columns, self._placed(list(columns.values())), strict=True))
        lengths = {name: len(ids) for name, (_, ids, _, _) in placed.items()}
        strategy, ratios, priority = self._budget
        whole = self.room if total is None else total
        shares = allocate(lengths, whole, strategy, ratios=ratios, priority=priority)
        return {name: self._shortened(placed[name], share) for name, share in shares.items()}

    def pad(self, rows: Sequence[npt.ArrayLike], loss: Sequence[npt.ArrayLike] | None = None) -> list[Padded]:
        """Make rectangles of rows of ids, as they are.

        Args:
            rows: ids of each row.
            loss: which of them bear loss; None: all.
        """
        parts = [np.asarray(row, np.int32) for row in rows]
        ids = np.concatenate([np.empty(0, np.int32), *parts])
        boundaries = self._boundaries
        if boundaries is None:
            # Widths that double: at most half of a row is padding, and a compiled model sees few shapes.
            boundaries = [_SHORTEST_BUCKET]
            while boundaries[-1] < self.max_length:
                boundaries.append(boundaries[-1] * 2)
        strategy, side = self._padding
        return pad(
            Ragged(ids, offsets_of([len(part) for part in parts])),
            pad_id=self.pad_id,
            strategy=strategy,
            side=side,
            max_length=self.max_length,
            boundaries=boundaries,
            loss=None if loss is None else np.concatenate([np.asarray(row, np.bool_) for row in loss]),
        )

    def process(self, texts: Sequence[str]) -> list[Padded]:
        """Shorten texts, put special tokens around them, and pad them."""
        prefix, suffix = self._encoder.prefix, self._encoder.suffix
        return self.pad([[*prefix, *shortened.ids.tolist(), *suffix] for shortened in self.truncate(texts)])

    def _placed(self, texts: Sequence[str]) -> list[tuple[str, Int32, Int64, Int64]]:
        """Every text with its ids and their places."""
        encoded, start, stop = self._encoder.encode_places(column_of_texts(texts))
        rows = [slice(first, last) for first, last in pairwise(encoded.offsets.tolist())]
        return [
            (text, encoded.ids[row], start[row], stop[row]) for text, row in zip(texts, rows, strict=True)
        ]

    def _shortened(self, placed: tuple[str, Int32, Int64, Int64], budget: int) -> Shortened:
        text, ids, start, stop = placed
        data = text.encode()
        cut = truncate(data, start, stop, budget, *self._truncation)
        return Shortened(data[cut.start : cut.stop].decode(), ids[cut.first : cut.last], cut)
