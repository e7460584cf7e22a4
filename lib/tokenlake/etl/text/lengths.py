"""Lengths of rows in tokens, never in characters.

:class:`LengthManager` shortens columns and pads rows.

The text of a tokenized document decides where its ids may be cut
(:mod:`tokenlake.etl.text.truncation`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Bools, Int32, Int64, Ragged, offsets_of
from tokenlake.base.checks import require_one_of
from tokenlake.base.result import Result, attempt
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.etl.text.budgets import (
    BUDGET_STRATEGIES,
    BudgetStrategy,
    ContentDistributionMode,
    allocate,
)
from tokenlake.etl.text.padding import (
    PADDING_STRATEGIES,
    SHORTEST_BUCKET,
    Padded,
    PaddingStrategy,
    pad,
)
from tokenlake.etl.text.truncation import (
    SIDES,
    STRATEGIES,
    Cut,
    Side,
    Strategy,
    truncate,
)
from tokenlake.etl.tokenizers.encoder import Encoder, column_of_texts
from tokenlake.etl.tokenizers.files import files_of


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LengthManagerConfig:
    """Options of a :class:`LengthManager`.

    Attributes:
        max_length: Maximum number of tokens of a row, special tokens included.
        truncation: Strategy of cuts: ``none``, ``simple``, ``word``, ``sentence`` or
            ``smart``.
        truncation_side: Side from which tokens are cut away.
        padding: Strategy of padding.
        padding_side: Side on which padding is put.
        boundaries: Widths of the padding ``buckets``; None: powers of two up to the
            first that holds `max_length`.
        budget: Strategy by which columns share the tokens of a row.
        ratios: Name of a column -> its weight; None: equal weights.
        priority: Columns, the most important first; None: no order.
        add_special_tokens: True to put the tokenizer's own BOS and EOS around each row.
        pad_id: Id of padding; None: the tokenizer's padding token, or its EOS token.

    Example:
        >>> from tokenlake.data_pipeline import LengthManagerConfig
        >>> LengthManagerConfig(max_length=512, truncation="sentence").truncation_side
        'right'
    """

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
    """The part of a text that is kept.

    Attributes:
        text: Kept part of the text; encoded by itself it may have other ids near the
            cut.
        ids: int32[k]: ids of this part in the whole text, without special tokens.
        cut: Place of the cut, and the rule that chose it.
    """

    text: str
    ids: Int32
    cut: Cut

    def __len__(self) -> int:
        return len(self.ids)


@final
@dataclass(frozen=True, slots=True)
class _EncodedText:
    """A text with its n ids.

    Attributes:
        text: Text.
        ids: int32[n]: ids.
        start: int64[n]: byte offset at which each token begins.
        stop: int64[n]: byte offset at which each token ends.
    """

    text: str
    ids: Int32
    start: Int64
    stop: Int64


@final
class LengthManager:
    """Makes rows with a limited number of tokens of texts.

    Args:
        tokenizer: Hub id, directory, tokenizer.json file, or an object of
            `transformers` or `tokenizers`.
        max_length: Maximum number of tokens of a row, special tokens included.
        truncation: Strategy of cuts: ``none``, ``simple``, ``word``, ``sentence`` or
            ``smart``.
        truncation_side: Side from which tokens are cut away.
        padding: Strategy of padding, see :func:`pad`.
        padding_side: Side on which padding is put.
        boundaries: Widths of the padding ``buckets``; None: powers of two up to the
            first that holds `max_length`.
        budget: Strategy by which columns share the tokens of a row, see
            :func:`allocate`.
        ratios: Weights of columns, see :func:`allocate`.
        priority: Columns, the most important first, see :func:`allocate`.
        add_special_tokens: True to put the tokenizer's own BOS and EOS around every
            row.
        pad_id: Id of padding; None: the tokenizer's padding token, or its EOS token.

    Raises:
        ConfigError: A strategy or side is unknown, or special tokens alone fill
            `max_length`.
        SourceNotFoundError, TokenizerError, MissingExtraError: The tokenizer cannot be
            loaded.

    Example:
        >>> import tokenlake as tl
        >>> manager = tl.LengthManager("openai-community/gpt2", max_length=24, padding="max_length")
        >>> columns = manager.fit({"question": "How deep is it?", "answer": "Nine metres. " * 40})
        >>> sum(len(text) for text in columns.values()) <= manager.room
        True
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
        # 1. Options are checked when they are given, not at the first row.
        require_one_of("truncation", truncation, STRATEGIES)
        require_one_of("truncation_side", truncation_side, SIDES)
        require_one_of("padding", padding, PADDING_STRATEGIES)
        require_one_of("padding_side", padding_side, SIDES)
        require_one_of("budget", budget, BUDGET_STRATEGIES)
        # 2. Cuts, padding, and the budgets of columns.
        self.max_length = max_length
        self._truncation: Strategy = truncation
        self._truncation_side: Side = truncation_side
        self._padding: PaddingStrategy = padding
        self._padding_side: Side = padding_side
        self._boundaries = boundaries
        if boundaries is None:
            self._boundaries = _doubling_widths(max_length)
        self._budget: BudgetStrategy = budget
        self._ratios = ratios
        self._priority = priority
        # 3. The reference tokenizer: the places of tokens decide cuts.
        self._pad_id = pad_id
        self._encoder = Encoder(
            files_of(tokenizer),
            engine="tokenizers",
            add_special_tokens=add_special_tokens,
        )
        # At least one token of the text must fit.
        if self.room < 1:
            special_tokens = max_length - self.room
            raise ConfigError(
                f"max_length is {max_length}, but the tokenizer puts {special_tokens} special tokens around a row; "
                f"expected at least {special_tokens + 1}"
            )

    @classmethod
    def from_config(
        cls, config: LengthManagerConfig, tokenizer: Any
    ) -> Result[Self, TokenlakeError]:
        """Return the manager with the options of a configuration, or their error."""
        options: dict[str, Any] = {}
        for option in fields(config):
            options[option.name] = getattr(config, option.name)
        return attempt(lambda: cls(tokenizer, **options))

    @property
    def room(self) -> int:
        """Number of tokens of a row that are not special tokens."""
        return self.max_length - len(self._encoder.prefix) - len(self._encoder.suffix)

    @cached_property
    def pad_id(self) -> int:
        """Id of padding.

        Raises:
            ConfigError: The tokenizer has neither a padding nor an EOS token.
        """
        files = self._encoder.files
        pad_id = files.fill_id if self._pad_id is None else self._pad_id
        if pad_id is None:
            raise ConfigError(
                f"tokenizer {files.name!r} has neither a padding nor an EOS token; give pad_id"
            )
        return pad_id

    def count(self, texts: Sequence[str]) -> Int64:
        """Return the number of tokens of each text without special tokens: int64[n]."""
        return np.diff(self._encoder.encode(column_of_texts(texts)).offsets)

    def truncate(
        self, texts: Sequence[str], budget: int | Sequence[int] | None = None
    ) -> list[Shortened]:
        """Shorten n texts.

        Args:
            texts: Texts.
            budget: Maximum number of tokens of every text, or of each; None:
                :attr:`room`.
        """
        limit = self.room if budget is None else budget
        budgets = np.broadcast_to(np.asarray(limit, np.int64), len(texts)).tolist()
        shortened_texts: list[Shortened] = []
        for encoded, text_budget in zip(self._encoded(texts), budgets, strict=True):
            shortened_texts.append(self._shortened(encoded, text_budget))
        return shortened_texts

    def fit(
        self, columns: Mapping[str, str], total: int | None = None
    ) -> dict[str, Shortened]:
        """Shorten the columns of a row to at most `total` tokens together.

        Args:
            columns: Text of each column.
            total: Maximum number of tokens of all columns; None: :attr:`room`.
        """
        # 1. The budget of each column follows from the lengths of all.
        encoded_texts = self._encoded(list(columns.values()))
        encoded_columns = dict(zip(columns, encoded_texts, strict=True))
        lengths = {name: len(text.ids) for name, text in encoded_columns.items()}
        budgets = allocate(
            lengths,
            self.room if total is None else total,
            self._budget,
            ratios=self._ratios,
            priority=self._priority,
        )
        # 2. Each column is cut to its budget.
        shortened_columns: dict[str, Shortened] = {}
        for name, budget in budgets.items():
            shortened_columns[name] = self._shortened(encoded_columns[name], budget)
        return shortened_columns

    def pad(
        self, rows: Sequence[npt.ArrayLike], loss: Sequence[npt.ArrayLike] | None = None
    ) -> list[Padded]:
        """Pad rows of ids, which are not cut.

        Args:
            rows: Ids of each row.
            loss: Booleans of each row, true for ids that count toward the loss; None:
                all.
        """
        row_ids = [np.asarray(row, np.int32) for row in rows]
        # The empty array makes the concatenation of no rows possible.
        ids = np.concatenate([np.empty(0, np.int32), *row_ids])
        learned: Bools | None = None
        if loss is not None:
            loss_arrays = [np.asarray(row, np.bool_) for row in loss]
            learned = np.concatenate([np.empty(0, np.bool_), *loss_arrays])
        return pad(
            Ragged(ids, offsets_of([len(row) for row in row_ids])),
            pad_id=self.pad_id,
            strategy=self._padding,
            side=self._padding_side,
            max_length=self.max_length,
            boundaries=self._boundaries,
            loss=learned,
        )

    def process(self, texts: Sequence[str]) -> list[Padded]:
        """Shorten texts, put special tokens around them, and pad them."""
        prefix = np.array(self._encoder.prefix, np.int32)
        suffix = np.array(self._encoder.suffix, np.int32)
        rows: list[Int32] = []
        for shortened in self.truncate(texts):
            rows.append(np.concatenate([prefix, shortened.ids, suffix]))
        return self.pad(rows)

    def _encoded(self, texts: Sequence[str]) -> list[_EncodedText]:
        """Return texts with their ids and the places of their tokens."""
        encoded, start, stop = self._encoder.encode_places(column_of_texts(texts))
        encoded_texts: list[_EncodedText] = []
        token_ranges = pairwise(encoded.offsets.tolist())
        for text, (first_token, end_token) in zip(texts, token_ranges, strict=True):
            tokens = slice(first_token, end_token)
            encoded_texts.append(
                _EncodedText(text, encoded.ids[tokens], start[tokens], stop[tokens])
            )
        return encoded_texts

    def _shortened(self, encoded: _EncodedText, budget: int) -> Shortened:
        """Return the part of a text that is kept of at most `budget` tokens."""
        # Places of tokens are byte offsets, so that the text is cut as bytes.
        utf8_text = encoded.text.encode()
        cut = truncate(
            utf8_text,
            encoded.start,
            encoded.stop,
            budget,
            self._truncation,
            self._truncation_side,
        )
        remaining_text = utf8_text[cut.start : cut.stop].decode()
        return Shortened(remaining_text, encoded.ids[cut.first : cut.last], cut)


def _doubling_widths(max_length: int) -> list[int]:
    """Return widths that double, up to the first that holds `max_length`.

    At most half of a row is padding then, and a compiled model sees few shapes.
    """
    widths = [SHORTEST_BUCKET]
    while widths[-1] < max_length:
        widths.append(widths[-1] * 2)
    return widths
