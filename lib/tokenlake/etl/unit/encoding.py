""":class:`DocumentEncoder`: texts become whole documents of ids.

1. The texts are encoded. Texts that spell a special token are refused, if the
   configuration says so.
2. The length policy cuts, splits or drops documents that are too long.
3. For fill-in-the-middle, the parts of some documents are put in another order.
4. Rendered documents get the BOS and EOS that they lack.

Example: texts A, B and C; B spells a special token and is refused, C is split. After
step 1 the rows are [0, 2], and the length policy returns the origins [0, 1, 1] among
them. The origins of the result are the texts [0, 2, 2].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Bools, Int32, Int64, Ragged, offsets_of
from tokenlake.config.resolved import ResolvedFim, ResolvedTokenizer
from tokenlake.etl.packing.loss_marks import marked
from tokenlake.etl.tokenizers.encoder import Encoded, Encoder
from tokenlake.etl.tokenizers.offsets import Spans
from tokenlake.etl.unit.finish import Finish
from tokenlake.etl.unit.fitted import Fitted
from tokenlake.etl.unit.infilling import Infilling, Stretches
from tokenlake.etl.unit.length_policy import Lengths


@final
@dataclass(frozen=True, slots=True)
class _EncodedTexts:
    """Texts after encoding, without those that are refused; m of them.

    Attributes:
        rows: Index of each among all texts, int64[m].
        text: Texts, large_string[m].
        infill: The texts for fill-in-the-middle; None if it is off.
        ids: Ids, marked with the loss mask if there is one, int32[total].
        offsets: Beginnings of the texts in `ids`, and the end of the last one, int64[m + 1].
        special_tokens: Number of special-token strings in the texts.
        refused: Indices of the refused texts, int64[k].
    """

    rows: Int64
    text: pa.LargeStringArray
    infill: Stretches | None
    ids: Int32
    offsets: Int64
    special_tokens: int
    refused: Int64


@final
class DocumentEncoder:
    """Makes the documents of one source.

    Args:
        settings: Policies for lengths and special tokens.
        encoder: Encoder of the texts.
        finish: Ends of documents that spell their own special tokens; None: they do
            not.
        masked: True if ids are marked with their loss, see
            :mod:`tokenlake.etl.packing.loss_marks`.
        fim: Options of fill-in-the-middle for plain texts; None: off.

    Attributes:
        lengths: Length policy.
    """

    def __init__(
        self,
        settings: ResolvedTokenizer,
        encoder: Encoder,
        finish: Finish | None,
        *,
        masked: bool,
        fim: ResolvedFim | None = None,
    ) -> None:
        self._encoder = encoder
        self._finish = finish
        self._has_loss_marks = masked
        self._refuses_special_tokens = settings.special_tokens_in_text == "fail"
        self._infilling = None if fim is None else Infilling(fim, encoder)
        self._max_length = settings.max_length
        self.lengths = Lengths(settings, encoder, finish, masked=masked)

    def encode(
        self,
        text: pa.LargeStringArray,
        spans: Spans | None = None,
        infill: Stretches | None = None,
    ) -> Fitted:
        """Encode n texts.

        Args:
            text: Texts, large_string[n].
            spans: Parts of the texts that count toward the loss; None for plain text,
                all of which counts.
            infill: Whole texts, if fill-in-the-middle reorders some of them.

        Returns:
            Documents, whose `origin` are indices of the texts.

        Raises:
            EngineMismatchError, TokenizerError: Errors of
                :meth:`tokenlake.etl.tokenizers.encoder.Encoder.encode`.
        """
        # 1. Encode, and refuse texts.
        encoded = self._encoded(text, spans, infill)
        # 2. Apply the length policy, which looks at texts only where it cuts them well.
        policy_text = encoded.text if self.lengths.needs_text else None
        fitted = self.lengths.apply(encoded.ids, encoded.offsets, policy_text)
        token_count = len(encoded.ids)
        # 3. Reorder for fill-in-the-middle.
        if self._infilling is not None and encoded.infill is not None:
            stretches = self._stretches(fitted, encoded.infill)
            fitted = self._infilled(self._infilling, fitted, stretches)
            token_count = len(fitted.ids)
        # 4. Put BOS and EOS around rendered documents.
        fitted = fitted.without_empty()
        if self._finish is not None and len(fitted.origin):
            fitted = self._finish.apply(fitted)
        # Documents are numbered as the texts are, of which some were refused.
        rows = encoded.rows
        left_out: dict[str, Int64] = {}
        for reason, indices in fitted.left_out.items():
            left_out[reason] = rows[indices]
        return replace(
            fitted,
            origin=rows[fitted.origin],
            left_out=left_out,
            tokens=token_count,
            special_tokens=encoded.special_tokens,
            refused=encoded.refused,
        )

    def fit(self, ids: Int32, offsets: Int64, *, has_loss: bool) -> Fitted:
        """Make documents of ids that are imported.

        No text is encoded, and the other steps are those of texts.

        Args:
            ids: Ids of n documents, int32[total].
            offsets: Beginnings of the documents in `ids`, and the end of the last one,
                int64[n + 1].
            has_loss: True if the ids are marked with their loss.
        """
        if self._has_loss_marks and not has_loss:
            # A source without a mask, in a build in which another source has one.
            ids = marked(ids)
        fitted = self.lengths.apply(ids, offsets).without_empty()
        if self._finish is not None and len(fitted.origin):
            fitted = self._finish.apply(fitted)
        return replace(fitted, tokens=len(ids))

    def _encoded(
        self, text: pa.LargeStringArray, spans: Spans | None, infill: Stretches | None
    ) -> _EncodedTexts:
        """Encode n texts, and leave out those that must not spell a special token."""
        # 1. Ids, marked with their loss.
        counts_toward_loss: Bools | bool = True
        if spans is not None:
            encoded, counts_toward_loss = self._encoder.encode_spans(text, spans)
        elif infill is not None:
            encoded = self._encode_for_infilling(text, infill)
        else:
            encoded = self._encoder.encode(text)
        token_ids = encoded.ids
        if self._has_loss_marks:
            token_ids = marked(token_ids, counts_toward_loss)
        # 2. Without refused texts nothing is copied.
        rows = np.arange(len(text))
        refused = encoded.special_docs
        if not self._refuses_special_tokens or not len(refused):
            no_rows = np.empty(0, np.int64)
            return _EncodedTexts(
                rows,
                text,
                infill,
                token_ids,
                encoded.offsets,
                encoded.special_tokens,
                refused=no_rows,
            )
        # 3. The others. They spell no special token, so that none is counted.
        is_good = ~np.isin(rows, refused)
        good_rows = rows[is_good]
        documents = Ragged(token_ids, encoded.offsets).select(is_good)
        return _EncodedTexts(
            rows=good_rows,
            text=text.filter(pa.array(is_good)),
            infill=None if infill is None else infill.take(good_rows),
            ids=documents.ids,
            offsets=documents.offsets,
            special_tokens=0,
            refused=refused,
        )

    def _encode_for_infilling(
        self, text: pa.LargeStringArray, infill: Stretches
    ) -> Encoded:
        """Encode n texts, except those that fill-in-the-middle reorders as a whole.

        These get no ids yet.
        """
        # A text that may be cut must be encoded to know its length.
        if self._infilling is None or not self.lengths.keeps_all:
            return self._encoder.encode(text)
        is_encoded = ~self._infilling.chosen(infill)
        encoded = self._encoder.encode(text.filter(pa.array(is_encoded)))
        lengths = np.zeros(len(text), np.int64)
        lengths[is_encoded] = np.diff(encoded.offsets)
        special_rows, special_counts = self._encoder.special_tokens(text)
        return replace(
            encoded,
            offsets=offsets_of(lengths),
            special_docs=special_rows,
            special_counts=special_counts,
        )

    def _stretches(self, fitted: Fitted, texts: Stretches) -> Stretches:
        """Return the parts of the texts that documents were made of.

        A document may be a part of a text that was split.

        Args:
            fitted: Documents after the length policy, m of them.
            texts: Whole texts.
        """
        origin = fitted.origin
        first_part = np.searchsorted(origin, origin)
        part_number = np.arange(len(origin)) - first_part
        begin = np.zeros(len(origin), np.int64)
        end = texts.end[origin]
        further_parts = np.flatnonzero(part_number)
        if len(further_parts):
            # A part begins at the character at which its first token begins, and ends
            # where the next part begins.
            origins = origin[further_parts]
            split_rows, split_index = np.unique(texts.row[origins], return_inverse=True)
            split_texts = texts.text.take(pa.array(split_rows, pa.int64()))
            encoded, token_begins, _ = self._encoder.encode_places(split_texts)
            offsets = fitted.offsets
            tokens_before = offsets[further_parts] - offsets[first_part[further_parts]]
            first_tokens = encoded.offsets[split_index] + tokens_before
            begin[further_parts] = token_begins[first_tokens]
            end[further_parts - 1] = begin[further_parts]
        return replace(texts.take(origin), begin=begin, end=end, number=part_number)

    def _infilled(
        self, infilling: Infilling, fitted: Fitted, stretches: Stretches
    ) -> Fitted:
        """Reorder some of m documents.

        Those that become too long for a row stay as they are.

        Args:
            infilling: Fill-in-the-middle.
            fitted: Documents after the length policy.
            stretches: Parts of the texts that the documents were made of.
        """
        # 1. Reordered ids, and the documents whose ids fit. Sentinels alone are no
        #    document.
        chosen = np.flatnonzero(infilling.chosen(stretches))
        reordered, is_spm = infilling.apply(stretches.take(chosen))
        sentinel_count = len(infilling.sentinels)
        is_fitting = reordered.lengths > sentinel_count
        if not self.lengths.keeps_all:
            is_fitting &= reordered.lengths <= infilling.room(self._max_length)
        # 2. The reordered ids are put after all others, and taken from there.
        new_ids = reordered.ids
        if self._has_loss_marks:
            new_ids = marked(new_ids)
        begin = fitted.offsets[:-1].copy()
        end = fitted.offsets[1:].copy()
        fitting = chosen[is_fitting]
        begin[fitting] = len(fitted.ids) + reordered.offsets[:-1][is_fitting]
        end[fitting] = len(fitted.ids) + reordered.offsets[1:][is_fitting]
        documents = Ragged.taken(np.concatenate([fitted.ids, new_ids]), begin, end)
        # 3. Count the documents by form, and those that did not fit.
        counts = {
            "fim_psm": int((is_fitting & ~is_spm).sum()),
            "fim_spm": int((is_fitting & is_spm).sum()),
            "fim_sentinels": int(is_fitting.sum()) * sentinel_count,
        }
        if not self.lengths.keeps_all:
            counts["fim_too_long"] = int((~is_fitting).sum())
        nonzero_counts = {kind: count for kind, count in counts.items() if count}
        return replace(
            fitted,
            ids=documents.ids,
            offsets=documents.offsets,
            touched=fitted.touched | nonzero_counts,
        )
