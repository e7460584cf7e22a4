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
    """greedy: in order, a document goes on in the next row; no padding. pool: each document goes to the open row that
    it fills best, and is cut where it fits none. first_fit and best_fit never cut a document that fits a row; a longer
    one is whole rows and a rest, and best_fit may cut a rest once more to fill gaps. No strategy loses a token."""

    num_packers: Count = 4
    """Open rows of the strategy `pool`."""

    max_segments: Count | None = None
    """At most so many pieces of documents in a row, which is padded then; null: any number."""

    include_segment_ids: Switch = True
    """Have readers yield `segment_ids` (1, 2, 3, ... per document of a row, 0 for padding)."""

    shuffle_packed: Switch | None = None
    """Shuffle whole rows inside each window, by the pipeline's seed (null: 0). null: yes where the strategy reorders
    documents anyway, no for `greedy`, whose rows come in the order of the input."""

    shuffle_buffer_factor: Count = 10
    """In the row-wise API `shuffle_packed` acts on `shuffle_buffer_factor * num_packers` rows at a time; not used by a
    build, which shuffles whole windows."""

    window_tokens: Count = 2**24
    """Tokens inside which documents, and rows where they are shuffled, may be reordered; part of the result's identity.
    Where a unit writes several files at a time (`save.num_shards`), they share it."""

    store_segment_ids: Switch = False
    """Write `segment_ids` as a column too; readers derive them anyway, and the column costs 20% more CPU."""

    @property
    def shuffles(self) -> bool:
        """Whether rows are shuffled."""
        return self.strategy != "greedy" if self.shuffle_packed is None else self.shuffle_packed

    @model_validator(mode="after")
    def _window_holds_a_row(self) -> Self:
        if self.window_tokens < self.seq_length:
            raise problem(
                f"window_tokens ({self.window_tokens}) is below seq_length ({self.seq_length}): "
                "a window must hold at least one row"
            )
        return self
