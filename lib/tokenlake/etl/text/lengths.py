"""Lengths of rows in tokens, never in characters: :class:`LengthManager` shortens columns and pads rows.

Where the ids of a tokenized document may be cut is decided by its text (:mod:`tokenlake.etl.text.truncation`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Int32, Int64, Ragged, offsets_of
from tokenlake.base.checks import require_one_of
from tokenlake.base.result import Result, attempt
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.etl.text.budgets import BUDGET_STRATEGIES, BudgetStrategy, ContentDistributionMode, allocate
from tokenlake.etl.text.padding import PADDING_STRATEGIES, SHORTEST_BUCKET, Padded, PaddingStrategy, pad
from tokenlake.etl.text.truncation import SIDES, STRATEGIES, Cut, Side, Strategy, truncate
from tokenlake.etl.tokenizers.encoder import Encoder, column_of_texts
from tokenlake.etl.tokenizers.files import files_of


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
        truncation, truncation_side: see :mod:`tokenlake.etl.text.truncation`.
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
        loss_parts = [np.asarray(row, np.bool_) for row in loss or ()]
        boundaries = self._boundaries
        if boundaries is None:
            # Widths that double: at most half of a row is padding, and a compiled model sees few shapes.
            boundaries = [SHORTEST_BUCKET]
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
            loss=None if loss is None else np.concatenate([np.empty(0, np.bool_), *loss_parts]),
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
