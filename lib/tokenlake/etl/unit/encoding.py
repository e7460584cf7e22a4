""":class:`DocumentEncoder`: texts become whole documents of ids.

1. The texts are encoded. Texts that spell a special token are refused, where the configuration says so.
2. The length policy cuts, splits or drops documents that are too long.
3. For fill-in-the-middle, some documents are put in another order.
4. Rendered documents are given the BOS and EOS that they lack.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Bools, Ragged, offsets_of
from tokenlake.config.resolved import ResolvedFim, ResolvedTokenizer
from tokenlake.etl.packing.loss_marks import marked
from tokenlake.etl.tokenizers.encoder import Encoded, Encoder
from tokenlake.etl.tokenizers.offsets import Spans
from tokenlake.etl.unit.finish import Finish
from tokenlake.etl.unit.fitted import Fitted
from tokenlake.etl.unit.infilling import Infilling, Stretches
from tokenlake.etl.unit.length_policy import Lengths


@final
class DocumentEncoder:
    """Makes the documents of one source.

    Args:
        settings: Policies for lengths and special tokens.
        encoder: Encoder of the texts.
        finish: Ends of documents that spell their own special tokens; None: they do not.
        masked: True if ids are marked with their loss, see :mod:`tokenlake.etl.packing.loss_marks`.
        fim: Options of fill-in-the-middle for plain texts; None: off.
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
        self._masked = masked
        self._refuses = settings.special_tokens_in_text == "fail"
        self._infilling = None if fim is None else Infilling(fim, encoder)
        self._max_length = settings.max_length
        self.lengths = Lengths(settings, encoder, finish, masked=masked)

    def encode(
        self, text: pa.LargeStringArray, spans: Spans | None = None, infill: Stretches | None = None
    ) -> Fitted:
        """Encode n texts.

        Args:
            text: Texts, large_string[n].
            spans: Parts of the texts that count toward the loss; None for plain text, all of which counts.
            infill: Whole texts, where fill-in-the-middle reorders some of them.

        Raises:
            EngineMismatchError, TokenizerError: as :meth:`tokenlake.etl.tokenizers.encoder.Encoder.encode`.
        """
        # 1. Encode, and refuse texts. The index of a text in `rows` is that of a document from here on.
        counts_toward_loss: Bools | bool = True
        if spans is not None:
            encoded, counts_toward_loss = self._encoder.encode_spans(text, spans)
        elif infill is not None:
            encoded = self._encoded_rest(text, infill)
        else:
            encoded = self._encoder.encode(text)
        rows = np.arange(len(text))
        documents = Ragged(encoded.ids, encoded.offsets)
        special_tokens = encoded.special_tokens
        refused = np.empty(0, np.int64)
        if self._refuses and len(encoded.special_docs):
            refused = encoded.special_docs
            special_tokens = 0
            is_good = ~np.isin(rows, refused)
            rows = rows[is_good]
            documents = documents.select(is_good)
            text = text.filter(pa.array(is_good))
            if infill is not None:
                infill = infill.take(rows)
        # 2. Apply the length policy.
        ids = marked(documents.ids, counts_toward_loss) if self._masked else documents.ids
        fitted = self.lengths.apply(ids, documents.offsets, text if self.lengths.needs_text else None)
        tokens = len(ids)
        # 3. Reorder for fill-in-the-middle.
        if self._infilling is not None and infill is not None:
            fitted = self._infilled(self._infilling, fitted, self._stretches(fitted, infill))
            tokens = len(fitted.ids)
        # 4. Put BOS and EOS around rendered documents.
        fitted = fitted.without_empty()
        if self._finish is not None and len(fitted.origin):
            fitted = self._finish.apply(fitted)
        return replace(
            fitted,
            origin=rows[fitted.origin],
            left_out={reason: rows[indices] for reason, indices in fitted.left_out.items()},
            tokens=tokens,
            special_tokens=special_tokens,
            refused=refused,
        )

    def _encoded_rest(self, text: pa.LargeStringArray, infill: Stretches) -> Encoded:
        """Encode n texts, except those that fill-in-the-middle reorders as a whole: these have no ids yet."""
        if self._infilling is None or not self.lengths.keeps_all:
            return self._encoder.encode(text)
        stays = ~self._infilling.chosen(infill)
        encoded = self._encoder.encode(text.filter(pa.array(stays)))
        lengths = np.zeros(len(text), np.int64)
        lengths[stays] = np.diff(encoded.offsets)
        rows, counts = self._encoder.special_tokens(text)
        return replace(encoded, offsets=offsets_of(lengths), special_docs=rows, special_counts=counts)

    def _stretches(self, fitted: Fitted, whole: Stretches) -> Stretches:
        """Return which parts of the whole texts the documents, or parts of split documents, were made of."""
        origin = fitted.origin
        first_part = np.searchsorted(origin, origin)
        number = np.arange(len(origin)) - first_part  # of the part in its document
        begin = np.zeros(len(origin), np.int64)
        end = whole.end[origin]
        further = np.flatnonzero(number)
        if len(further):
            # A part begins at the character at which its first token begins, and ends where the next one begins.
            rows, index = np.unique(whole.row[origin[further]], return_inverse=True)
            encoded, starts, _ = self._encoder.encode_places(whole.text.take(pa.array(rows, pa.int64())))
            tokens_before = fitted.offsets[further] - fitted.offsets[first_part[further]]
            begin[further] = starts[encoded.offsets[index] + tokens_before]
            end[further - 1] = begin[further]
        return replace(whole.take(origin), begin=begin, end=end, number=number)

    def _infilled(self, infilling: Infilling, fitted: Fitted, of: Stretches) -> Fitted:
        """Reorder the chosen documents, or parts of them. Those that are then too long for a row stay as they are."""
        rows = np.flatnonzero(infilling.chosen(of))
        reordered, is_spm = infilling.apply(of.take(rows))
        sentinels = len(infilling.sentinels)
        fits = reordered.lengths > sentinels
        if not self.lengths.keeps_all:
            fits &= reordered.lengths <= infilling.room(self._max_length)
        # The reordered ids are put after all others, and taken from there.
        new_ids = marked(reordered.ids) if self._masked else reordered.ids
        ids = np.concatenate([fitted.ids, new_ids])
        start = fitted.offsets[:-1].copy()
        stop = fitted.offsets[1:].copy()
        start[rows[fits]] = len(fitted.ids) + reordered.offsets[:-1][fits]
        stop[rows[fits]] = len(fitted.ids) + reordered.offsets[1:][fits]
        joined = Ragged.taken(ids, start, stop)
        counts = {
            "fim_psm": int((fits & ~is_spm).sum()),
            "fim_spm": int((fits & is_spm).sum()),
            "fim_sentinels": int(fits.sum()) * sentinels,
            "fim_too_long": 0 if self.lengths.keeps_all else int((~fits).sum()),
        }
        touched = fitted.touched | {name: count for name, count in counts.items() if count}
        return replace(fitted, ids=joined.ids, offsets=joined.offsets, touched=touched)
