"""Section `tokens` of a dataset: its records hold token ids.

The configured tokenizer has made them already.
"""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import model_validator

from tokenlake.base.section import Count, Section, Switch, Text, TokenId, problem

EosRule = Literal["keep", "split", "none"]
"""Treatment of EOS in ids that are imported."""

IdType = Literal["uint16", "int32", "uint32", "int64"]
"""Types of ids in files that do not state one."""

INPUT_IDS: Final = "input_ids"
"""Usual name of the field of ids."""


class TokensConfig(Section):
    """Records of token ids, which are stored as they are and not tokenized.

    The tokenizer is the one that made them.

    A field `attention_mask` or `segment_ids` of the records is used: ids where it is 0
    are padding, which is left out, and a document ends where the segment changes.
    """

    field: Text = INPUT_IDS
    """Field that holds the ids of a record."""

    eos: EosRule | None = None
    """keep: a record is a document, with its EOS if it has one. split: a document ends
    after each EOS. none: like split, and EOS is left out. null: split for arrays of ids
    (numpy), which have no other borders, else keep.
    """

    eos_token_id: TokenId | None = None
    """Id of EOS in the files; null: the tokenizer's."""

    length: Count | None = None
    """Ids of a record, where a file is one stream of ids (numpy) and eos is keep."""

    dtype: IdType | None = None
    """Type of ids in files that do not state it; null: uint16 where it holds the
    vocabulary, else uint32, and a wider one where the first ids show that they are
    wider.
    """

    loss_field: Text | None = None
    """Field that says which ids count toward the loss: `labels` (-100 where they do
    not), or any other name (0 where they do not); null: `loss_mask` or `labels`, where
    the records have one of them.
    """

    rows: Switch = False
    """Store each record as a packed row of `pack.seq_length` ids, as it is; a shorter
    one is padded. false: store documents, which packing may put together.
    """

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        """Refuse two ends of a record in a stream of ids."""
        if self.length is not None and self.eos not in (None, "keep"):
            raise problem(
                f"got length {self.length} and eos {self.eos!r}, must have one of them: EOS ends documents, or all "
                "records have `length` ids"
            )
        return self
