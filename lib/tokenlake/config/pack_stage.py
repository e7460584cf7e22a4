"""How documents become rows of one length."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from tokenlake.config.explain import problem
from tokenlake.config.section import Section
from tokenlake.config.values import Count, Length, Switch, TokenId


class PackStageConfig(Section):
    """Section `pack`."""

    enabled: Switch = False
    """Pack documents into rows of `seq_length` tokens; off: one row per document."""

    seq_length: Length = 2048
    """Tokens of a row."""

    eos_token_id: TokenId | None = None
    """Token after each document; null: the tokenizer's EOS."""

    pad_token_id: TokenId | None = None
    """Token in unfilled slots; null: the tokenizer's padding, else EOS."""

    strategy: Literal["greedy", "pool", "first_fit", "best_fit"] = "greedy"
    """greedy: in order, documents cut at the end of a row. The others cut fewer documents."""

    num_packers: Count = 4
    """Open rows of the strategy `pool`."""

    include_segment_ids: Switch = True
    """Have readers yield `segment_ids` (1, 2, 3, ... per document of a row, 0 for padding)."""

    shuffle_packed: Switch | None = None
    """Shuffle the packed rows inside a window; null: as the strategy supports it, today not."""

    shuffle_buffer_factor: Count = 10
    """Rows of the shuffle's buffer per open row, where `shuffle_packed` acts in the row-wise API."""

    window_tokens: Count = 2**24
    """Tokens inside which a strategy may reorder documents; part of the result's identity."""

    store_segment_ids: Switch = False
    """Write `segment_ids` as a column too; readers derive them anyway, and the column costs 20% more CPU."""

    @model_validator(mode="after")
    def _window_holds_a_row(self) -> Self:
        if self.window_tokens < self.seq_length:
            raise problem(
                f"window_tokens ({self.window_tokens}) is below seq_length ({self.seq_length}): "
                "a window must hold at least one row"
            )
        return self
