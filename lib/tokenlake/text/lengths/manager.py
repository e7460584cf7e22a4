"""`LengthManager` counts, cuts and pads texts with a tokenizer, and shares a budget of tokens among columns.

All strategies give every column at most what it has, and give out ``min(total, sum of all lengths)`` tokens to the
last one: what one column does not need goes to the others. Fractions are rounded by largest remainder, the earlier
column first among equals, so that equal questions get equal answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, Literal, final

import numpy as np
import numpy.typing as npt

from tokenlake.config.suggestion import require_one_of
from tokenlake.errors import ConfigError
from tokenlake.ragged import Int32, Int64
from tokenlake.text.lengths.padding import PADDING_STRATEGIES, Padded, PaddingStrategy, pad, powers
from tokenlake.text.lengths.truncation import SIDES, STRATEGIES, Cut, Side, Strategy, truncate
from tokenlake.tokenizers.encoder import Encoder
from tokenlake.tokenizers.manager import column_of_texts, files_of

BudgetStrategy = Literal["equal", "proportional", "ratio", "priority", "adaptive"]

BUDGET_STRATEGIES: Final[tuple[BudgetStrategy, ...]] = (
    "equal",
    "proportional",
    "ratio",
    "priority",
    "adaptive",
)


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
        return _by_priority(lengths, total, priority or ())
    if strategy == "adaptive":
        return _adaptive(lengths, total)
    weights = {
        "equal": dict.fromkeys(lengths, Fraction(1)),
        "proportional": {name: Fraction(length) for name, length in lengths.items()},
        "ratio": {name: Fraction((ratios or {}).get(name, 0)) for name in lengths},
    }[strategy]
    return _fill(lengths, weights, total)


def _check(
    lengths: Mapping[str, int],
    strategy: BudgetStrategy,
    ratios: Mapping[str, float] | None,
    priority: Sequence[str] | None,
) -> None:
    for name, length in lengths.items():
        if length < 0:
            raise ConfigError(f"lengths: column {name!r} has {length} tokens, expected at least 0")
    for what, given, needed in (("ratios", ratios, "ratio"), ("priority", priority, "priority")):
        if (given is not None) != (strategy == needed):
            verb = "needs" if strategy == needed else "takes no"
            raise ConfigError(f"budget strategy {strategy!r} {verb} {what}")
        if unknown := [name for name in given or () if name not in lengths]:
            raise ConfigError(f"{what}: no column {unknown[0]!r}; there are {', '.join(map(repr, lengths))}")
    if ratios is not None:
        _check_ratios(lengths, ratios)
    if priority is not None and len(set(priority)) < len(priority):
        raise ConfigError(f"priority: got {list(priority)!r}, expected every column at most once")


def _check_ratios(lengths: Mapping[str, int], ratios: Mapping[str, float]) -> None:
    if missing := [name for name in lengths if name not in ratios]:
        raise ConfigError(f"ratios: none for column {missing[0]!r}; expected one for every column")
    for name, ratio in ratios.items():
        if not (math.isfinite(ratio) and ratio >= 0):
            raise ConfigError(f"ratios: got {ratio} for column {name!r}, expected a number of at least 0")
    if lengths and not any(ratios.values()):
        raise ConfigError("ratios: all are 0, expected at least one above 0")


def _by_priority(lengths: Mapping[str, int], total: int, priority: Sequence[str]) -> dict[str, int]:
    given = dict.fromkeys(lengths, 0)
    for name in dict.fromkeys([*priority, *lengths]):
        given[name] = min(lengths[name], total)
        total -= given[name]
    return given


def _adaptive(lengths: Mapping[str, int], total: int) -> dict[str, int]:
    share = total // max(1, len(lengths))
    sure = {name: min(length, share) for name, length in lengths.items()}
    lacking = {name: length - sure[name] for name, length in lengths.items()}
    weights = {name: Fraction(length) for name, length in lacking.items()}
    more = _fill(lacking, weights, total - sum(sure.values()))
    return {name: sure[name] + more[name] for name in lengths}


def _fill(needs: Mapping[str, int], weights: Mapping[str, Fraction], total: int) -> dict[str, int]:
    """Share `total` (at most the sum of `needs`) out by weight, handing on what a column does not need."""
    given = dict.fromkeys(needs, 0)
    left = {name: need for name, need in needs.items() if need}
    while left and total:
        shares = _shares({name: weights[name] for name in left}, total)
        full = [name for name, share in shares.items() if share >= left[name]]
        if not full:
            # No share is more than its column lacks, and rounding up a fraction cannot make it more.
            return given | _rounded(shares, total)
        for name in full:
            given[name] = left.pop(name)
            total -= given[name]
    return given


def _shares(weights: dict[str, Fraction], total: int) -> dict[str, Fraction]:
    whole = sum(weights.values())
    if not whole:  # only columns of ratio 0 are left
        return dict.fromkeys(weights, Fraction(total, len(weights)))
    return {name: total * weight / whole for name, weight in weights.items()}


def _rounded(shares: dict[str, Fraction], total: int) -> dict[str, int]:
    """Round by largest remainder, so that the sum is `total`; the earlier column first among equals."""
    floors = {name: math.floor(share) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: floors[name] - shares[name])
    for name in by_remainder[: total - sum(floors.values())]:
        floors[name] += 1
    return floors


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
        truncation, truncation_side: see :mod:`tokenlake.text.lengths.truncation`.
        padding, padding_side: see :func:`tokenlake.text.lengths.padding.pad`.
        boundaries: widths of the padding ``buckets``; None: powers of two up to the first that holds `max_length`.
        budget, ratios, priority: see :func:`tokenlake.text.lengths.manager.allocate`.
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
        require_one_of("truncation", truncation, STRATEGIES)
        require_one_of("truncation_side", truncation_side, SIDES)
        require_one_of("padding", padding, PADDING_STRATEGIES)
        require_one_of("padding_side", padding_side, SIDES)
        require_one_of("budget", budget, BUDGET_STRATEGIES)
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

    @property
    def room(self) -> int:
        """Tokens of a row that are not special tokens."""
        return self.max_length - len(self._encoder.prefix) - len(self._encoder.suffix)

    @cached_property
    def pad_id(self) -> int:
        """The id that fills rows up."""
        files = self._encoder.files
        found = next((i for i in (self._pad_id, files.pad_id, files.eos_id) if i is not None), None)
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
        strategy, side = self._padding
        return pad(
            np.concatenate([np.empty(0, np.int32), *parts]),
            np.concatenate([np.zeros(1, np.int64), np.cumsum([len(part) for part in parts], dtype=np.int64)]),
            pad_id=self.pad_id,
            strategy=strategy,
            side=side,
            max_length=self.max_length,
            boundaries=powers(self.max_length) if self._boundaries is None else self._boundaries,
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
