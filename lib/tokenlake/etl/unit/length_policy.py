"""The length policy of a build, for a document of more than ``max_length`` ids.

It is cut, split, or dropped.

1. The room of each document is ``max_length`` less the special tokens that will be put
   around it. A document that is cut also needs room for the special token on the side
   of the cut, which it may have spelled itself.
2. Documents that are longer than their room are treated by the policy; each becomes no,
   one or several parts.
3. Parts without ids, or that lost all ids that count toward the loss, are left out.

Example: ``max_length`` 4 with one EOS per document leaves a room of 3. A document of 7
ids is split into 3, 3 and 1, truncated to 3 (4 are dropped), or dropped as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Bools, Int32, Int64, Ragged
from tokenlake.config.resolved import ResolvedTokenizer
from tokenlake.etl.packing.loss_marks import learned, plain
from tokenlake.etl.text.truncation import (
    continuing_tokens,
    cut_texts,
    pieces,
    whole_cut,
)
from tokenlake.etl.tokenizers.encoder import Encoder
from tokenlake.etl.unit.finish import Finish
from tokenlake.etl.unit.fitted import Fitted


@final
@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of n documents that stay, document by document.

    Attributes:
        origin: Index of the document of each part, ascending, int64[m].
        begin, end: Ids of the part, as offsets into the ids of all documents, int64[m].
    """

    origin: Int64
    begin: Int64
    end: Int64

    def select(self, mask: Bools) -> _Parts:
        """Return the parts where `mask` is true, bool[m]."""
        return _Parts(self.origin[mask], self.begin[mask], self.end[mask])


@final
class Lengths:
    """The length policy of one source.

    Args:
        settings: Policy and ``max_length``, which counts special tokens.
        encoder: Encoder of the ids; its prefix and suffix are put around every document
            afterwards.
        finish: Ends of documents that spell their own special tokens, which get only
            the ids that they lack; None for all other documents.
        masked: True if ids are marked with the loss mask, see
            :mod:`tokenlake.etl.packing.loss_marks`.
    """

    def __init__(
        self,
        settings: ResolvedTokenizer,
        encoder: Encoder,
        finish: Finish | None = None,
        *,
        masked: bool = False,
    ) -> None:
        self._settings = settings
        self._encoder = encoder
        self._finish = finish
        self._prefix_size = len((finish or encoder).prefix)
        self._suffix_size = len((finish or encoder).suffix)
        self._has_loss_marks = masked

    @property
    def keeps_all(self) -> bool:
        """True if no document is ever changed.

        A long one need not be in memory as a whole then.
        """
        return self._settings.long_documents == "keep"

    @property
    def needs_text(self) -> bool:
        """True if :meth:`apply` looks at texts."""
        settings = self._settings
        if settings.long_documents != "truncate":
            return False
        return settings.truncation_strategy != "simple"

    def apply(
        self, ids: Int32, offsets: Int64, text: pa.LargeStringArray | None = None
    ) -> Fitted:
        """Fit n documents.

        Args:
            ids: Ids of all documents, int32[total].
            offsets: Beginnings of the documents in `ids`, and the end of the last one,
                int64[n + 1].
            text: Texts of the documents, large_string[n], if :attr:`needs_text`.
        """
        # Most batches have no long document, and are returned without a copy.
        whole_documents = _Parts(np.arange(len(offsets) - 1), offsets[:-1], offsets[1:])
        if self.keeps_all or not len(ids):
            return Fitted(ids=ids, offsets=offsets, origin=whole_documents.origin)
        prefixes, suffixes = self._around(ids, offsets)
        is_long = np.diff(offsets) > self._settings.max_length - prefixes - suffixes
        if not is_long.any():
            return Fitted(ids=ids, offsets=offsets, origin=whole_documents.origin)
        long_rows = np.flatnonzero(is_long)
        if self._settings.long_documents == "drop":
            parts = whole_documents.select(~is_long)
        elif self._settings.long_documents == "split":
            parts = self._split(ids, whole_documents, long_rows)
        else:
            parts = self._truncated(
                ids, whole_documents, long_rows, prefixes, suffixes, text
            )
        return self._fitted(ids, offsets, is_long, parts)

    def _around(self, ids: Int32, offsets: Int64) -> tuple[Int64, Int64]:
        """Return how many special tokens will be put around each document.

        Returns:
            Numbers before and after each document, int64[n] each.
        """
        # A plain document gets all of them, a rendered one those that it lacks.
        if self._finish is None:
            document_count = len(offsets) - 1
            prefixes = np.full(document_count, self._prefix_size)
            suffixes = np.full(document_count, self._suffix_size)
            return prefixes, suffixes
        lacks_prefix, lacks_suffix = self._finish.lacks(ids, offsets)
        prefixes = np.where(lacks_prefix, self._prefix_size, 0)
        suffixes = np.where(lacks_suffix, self._suffix_size, 0)
        return prefixes, suffixes

    def _split(self, ids: Int32, whole_documents: _Parts, rows: Int64) -> _Parts:
        """Cut the documents `rows` into parts with room for a prefix and a suffix."""
        affixes = self._prefix_size + self._suffix_size
        part_size = max(1, self._settings.max_length - affixes)
        continues_character = self._continues_character(ids)
        begins_of_rows: list[Int64] = []
        for row in rows.tolist():
            begin = int(whole_documents.begin[row])
            end = int(whole_documents.end[row])
            begins_of_rows.append(pieces(continues_character, begin, end, part_size))
        # 1. Repeat each document as often as it has parts.
        counts = np.ones(len(whole_documents.origin), np.int64)
        counts[rows] = list(map(len, begins_of_rows))
        origin = np.repeat(whole_documents.origin, counts)
        part_begins = whole_documents.begin[origin]
        part_ends = whole_documents.end[origin]
        # 2. Put in where the parts of documents with several begin. Each ends where the
        #    next one begins.
        is_split = counts[origin] > 1
        split_begins = [begins for begins in begins_of_rows if len(begins) > 1]
        part_begins[is_split] = np.concatenate([part_begins[:0], *split_begins])
        further_parts = np.flatnonzero(np.diff(origin) == 0) + 1
        part_ends[further_parts - 1] = part_begins[further_parts]
        return _Parts(origin, part_begins, part_ends)

    def _truncated(
        self,
        ids: Int32,
        whole_documents: _Parts,
        rows: Int64,
        prefixes: Int64,
        suffixes: Int64,
        text: pa.LargeStringArray | None,
    ) -> _Parts:
        """Cut the documents `rows` to `max_length`, special tokens included.

        Args:
            ids: Ids of all documents.
            whole_documents: All documents.
            rows: Documents that are too long.
            prefixes, suffixes: Numbers of special tokens that will be put before and
                after each document, int64[n].
            text: Texts of the documents, where the strategy looks at them.
        """
        # 1. On the side that is cut, the document loses a special token of its own. One
        #    is added there in any case, and needs room.
        cuts_end = self._settings.truncation_side == "right"
        if cuts_end:
            special_tokens = prefixes[rows] + self._suffix_size
        else:
            special_tokens = self._prefix_size + suffixes[rows]
        room = np.maximum(0, self._settings.max_length - special_tokens)
        begin = whole_documents.begin.copy()
        end = whole_documents.end.copy()
        # 2. Without texts, the cut is between the characters that the ids show.
        if text is None:
            continues_character = self._continues_character(ids)
            if cuts_end:
                longest_end = begin[rows] + room
                end[rows] = whole_cut(continues_character, longest_end, begin[rows])
            else:
                first_begin = end[rows] - room
                begin[rows] = whole_cut(continues_character, first_begin, end[rows])
            return _Parts(whole_documents.origin, begin, end)
        # 3. With texts, the cut is at the end of a word or a sentence.
        plain_ids = plain(ids) if self._has_loss_marks else ids
        long_documents = Ragged.taken(plain_ids, begin[rows], end[rows])
        long_texts: Any = text.take(pa.array(rows, pa.int64()))
        first_tokens, end_tokens = cut_texts(
            self._encoder,
            long_texts,
            long_documents.ids,
            long_documents.offsets,
            room,
            self._settings.truncation_strategy,
            self._settings.truncation_side,
        )
        end[rows] = begin[rows] + end_tokens
        begin[rows] += first_tokens
        return _Parts(whole_documents.origin, begin, end)

    def _fitted(
        self, ids: Int32, offsets: Int64, is_long: Bools, parts: _Parts
    ) -> Fitted:
        """Take the parts that stay, and account for the other ids and documents."""
        # 1. Documents that are left out, and the ids that no part has.
        policy = self._settings.long_documents
        reason = "truncated" if policy == "truncate" else "too_long"
        left_out: dict[str, Int64] = {}
        touched: dict[str, int] = {}
        if policy == "drop":
            left_out["too_long"] = np.flatnonzero(is_long)
        else:
            touched[f"long_documents_{policy}"] = int(is_long.sum())
        has_ids = (parts.end > parts.begin) | ~is_long[parts.origin]
        if not has_ids.all():  # not even one character fits
            left_out["too_long"] = parts.origin[~has_ids]
            parts = parts.select(has_ids)
        dropped = {reason: len(ids) - int((parts.end - parts.begin).sum())}
        # 2. Parts of which nothing would be learned.
        if self._has_loss_marks:
            parts = self._leave_out_unlearned(
                ids, offsets, is_long, parts, dropped, left_out
            )
        # 3. The ids of the others. A part that ends before its document has no end.
        fitted = Ragged.taken(ids, parts.begin, parts.end)
        ends = parts.end == offsets[parts.origin + 1]
        return Fitted(
            ids=fitted.ids,
            offsets=fitted.offsets,
            origin=parts.origin,
            ends=None if ends.all() else ends,
            dropped={name: count for name, count in dropped.items() if count},
            left_out=left_out,
            touched=touched,
        )

    def _leave_out_unlearned(
        self,
        ids: Int32,
        offsets: Int64,
        is_long: Bools,
        parts: _Parts,
        dropped: dict[str, int],
        left_out: dict[str, Int64],
    ) -> _Parts:
        """Leave out parts that lost all their learned tokens.

        A row of context alone teaches nothing.
        """
        # Sums before each id: two of them show whether a range has a learned id.
        no_ids = np.zeros(1, np.int64)
        learned_before = np.concatenate([no_ids, np.cumsum(learned(ids))])
        had_learned = learned_before[offsets[1:]] > learned_before[offsets[:-1]]
        has_learned = learned_before[parts.end] > learned_before[parts.begin]
        is_useless = ~has_learned & (is_long & had_learned)[parts.origin]
        if not is_useless.any():
            return parts
        useful = parts.select(~is_useless)
        dropped["nothing_to_learn"] = int((parts.end - parts.begin)[is_useless].sum())
        # A document is left out if none of its parts stays.
        documents = np.setdiff1d(parts.origin[is_useless], useful.origin)
        if len(documents):
            left_out["nothing_to_learn"] = documents
        return useful

    def _continues_character(self, ids: Int32) -> Bools:
        """Return which tokens begin inside a character, bool[total]."""
        # Ids beyond the vocabulary, as a model may have, are whole characters.
        plain_ids = plain(ids) if self._has_loss_marks else ids
        return self._continuing.take(plain_ids, mode="clip")

    @cached_property
    def _continuing(self) -> Bools:
        return continuing_tokens(self._encoder.files)
