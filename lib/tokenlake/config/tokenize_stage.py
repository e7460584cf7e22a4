"""How text becomes tokens."""

from __future__ import annotations

from typing import Literal

from tokenlake.config.section import Section
from tokenlake.config.tokenizer import (
    DEFAULT_MAX_LENGTH,
    LongDocuments,
    SpecialTokensInText,
    TokenizerChoice,
    TruncationSide,
    TruncationStrategy,
)
from tokenlake.config.values import Count, Length, Switch, Text


class TokenizeStageConfig(Section):
    """Section `tokenize`."""

    default_tokenizer: TokenizerChoice | None = None
    """Tokenizer of the datasets that name none; before the pipeline's `default_tokenizer`."""

    max_length: Length = DEFAULT_MAX_LENGTH
    """Most tokens of a document, unless long ones are kept; a tokenizer's own `max_length` goes first."""

    batch_size: Count = 1000
    """Documents per call in the row-wise API; a build works on blocks of bytes and refuses another value."""

    num_workers: Count = 4
    """Threads of the row-wise API that tokenize ahead, 1 for none; a build refuses another value: its workers are an
    option of the run."""

    cache_tokenized: Switch | None = None
    """Keep the tokens of each source as a dataset of its own; null: only when mixing."""

    remove_columns: tuple[Text, ...] | None = None
    """Columns to drop after tokenizing; a build keeps none but `additional_fields`, and refuses one in both."""

    engine: Literal["auto", "gigatoken", "tokenizers"] = "auto"
    """auto: the fast engine where it is proven exact, else the reference. Never changes the ids."""

    special_tokens_in_text: SpecialTokensInText = "literal"
    """A special token's text in a document: literal (plain text; in conversations fail), encode (the token), fail (a
    bad record)."""

    long_documents: LongDocuments | None = None
    """Documents above max_length: keep, truncate, split, drop; null: as `truncation` says (keep when packing)."""

    truncation_strategy: TruncationStrategy | None = None
    """Where to truncate: simple (at a token), word, sentence, smart (the nicest that keeps 80%); null: simple."""

    truncation_side: TruncationSide | None = None
    """The side that truncation cuts away: right (the end of a document) or left (its beginning); null: right."""
