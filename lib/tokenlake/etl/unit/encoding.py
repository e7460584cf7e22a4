""":class:`DocumentEncoder`: texts become whole documents of ids."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import numpy as np
import pyarrow as pa

from tokenlake.arrays import Ragged, offsets_of
from tokenlake.config.resolved import ResolvedFim, ResolvedTokenizer
from tokenlake.etl.unit.finish import Finish
from tokenlake.etl.unit.fitted import Fitted
from tokenlake.etl.unit.infilling import Infilling, Stretches
from tokenlake.etl.unit.length_policy import Lengths
from tokenlake.packing.segments import marked
from tokenlake.tokenizers.encoder import Encoded, Encoder
from tokenlake.tokenizers.offsets import Spans


@final
class DocumentEncoder:
    """Makes the documents of one source.

    Args:
        settings: the policy on lengths and special tokens.
        finish: what is put around documents that spell their own special tokens; None: they do not.
        masked: whether ids are marked, see :mod:`tokenlake.packing.segments`.
        fim: how plain texts are put in another order; None: they are not.
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
        self._encoder, self._finish, self._masked = encoder, finish, masked
        self._refuses = settings.special_tokens_in_text == "fail"
        self._infilling = None if fim is None else Infilling(fim, encoder)
        self._max_length = settings.max_length
        self.lengths = Lengths(settings, encoder, finish, masked=masked)

    def encode(
        self, text: pa.LargeStringArray, spans: Spans | None = None, infill: Stretches | None = None
    ) -> Fitted:
        """Encode n texts.

        Args:
            spans: of the texts: what bears loss; None for plain text, all of which does.
            infill: the whole texts, where some of them are put in another order.

        Raises:
            EngineMismatchError, TokenizerError: as :meth:`tokenlake.tokenizers.encoder.Encoder.encode`.
        """
        rows, refused, bears_loss = np.arange(len(text)), np.empty(0, np.int64), True
        if spans is not None:
            encoded, bears_loss = self._encoder.encode_spans(text, spans)
        elif infill is not None:
            encoded = self._encoded_rest(text, infill)
        else:
            encoded = self._encoder.encode(text)
        found, special = Ragged(encoded.ids, encoded.offsets), encoded.special_tokens
        if self._refuses and len(encoded.special_docs):
            refused, special = encoded.special_docs, 0
            good = ~np.isin(rows, refused)
            found, rows, text = found.select(good), rows[good], text.filter(pa.array(good))
            infill = None if infill is None else infill.take(rows)
        ids = marked(found.ids, bears_loss) if self._masked else found.ids
        whole = text if self.lengths.needs_text else None
        fitted = self.lengths.apply(ids, found.offsets, whole)
        tokens = len(ids)
        if self._infilling is not None and infill is not None:
            fitted = self._infilled(self._infilling, fitted, self._stretches(fitted, infill))
            tokens = len(fitted.ids)
        fitted = fitted.without_empty()
        if self._finish is not None and len(fitted.origin):
            fitted = self._finish.apply(fitted)
        left_out = {reason: rows[gone] for reason, gone in fitted.left_out.items()}
        facts = {"tokens": tokens, "special_tokens": special, "refused": refused}
        return replace(fitted, origin=rows[fitted.origin], left_out=left_out, **facts)

    def _encoded_rest(self, text: pa.LargeStringArray, infill: Stretches) -> Encoded:
        """Encode n texts but those that will be put in another order as a whole, which get no ids yet."""
        if self._infilling is None or not self.lengths.keeps_all:
            return self._encoder.encode(text)
        stays = ~self._infilling.chosen(infill)
        encoded = self._encoder.encode(text.filter(pa.array(stays)))
        lengths = np.zeros(len(text), np.int64)
        lengths[stays] = np.diff(encoded.offsets)
        rows, counts = self._encoder.special_tokens(text)
        return replace(encoded, offsets=offsets_of(lengths), special_docs=rows, special_counts=counts)

    def _stretches(self, fitted: Fitted, whole: Stretches) -> Stretches:
        """Return what of whole texts the documents, or pieces of documents, were made of."""
        origin = fitted.origin
        first = np.searchsorted(origin, origin)
        number = np.arange(len(origin)) - first
        begin, end = np.zeros(len(origin), np.int64), whole.end[origin]
        further = np.flatnonzero(number)
        if len(further):
            cut, at = np.unique(whole.row[origin[further]], return_inverse=True)
            encoded, places, _ = self._encoder.encode_places(whole.text.take(pa.array(cut, pa.int64())))
            tokens = fitted.offsets[further] - fitted.offsets[first[further]]
            begin[further] = places[encoded.offsets[at] + tokens]
            end[further - 1] = begin[further]
        return replace(whole.take(origin), begin=begin, end=end, number=number)

    def _infilled(self, infilling: Infilling, fitted: Fitted, of: Stretches) -> Fitted:
        """Put some of the documents, or pieces, in another order; what does not fit into a row then stays as it is."""
        rows = np.flatnonzero(infilling.chosen(of))
        made, spm = infilling.apply(of.take(rows))
        sentinels, lengths = len(infilling.sentinels), made.lengths
        fits = lengths > sentinels
        if not self.lengths.keeps_all:
            fits &= lengths <= infilling.room(self._max_length)
        ids = np.concatenate([fitted.ids, marked(made.ids) if self._masked else made.ids])
        start, stop = fitted.offsets[:-1].copy(), fitted.offsets[1:].copy()
        start[rows[fits]] = len(fitted.ids) + made.offsets[:-1][fits]
        stop[rows[fits]] = len(fitted.ids) + made.offsets[1:][fits]
        joined = Ragged.taken(ids, start, stop)
        counts = {
            "fim_psm": int((fits & ~spm).sum()),
            "fim_spm": int((fits & spm).sum()),
            "fim_sentinels": int(fits.sum()) * sentinels,
            "fim_too_long": 0 if self.lengths.keeps_all else int((~fits).sum()),
        }
        touched = fitted.touched | {name: count for name, count in counts.items() if count}
        return replace(fitted, ids=joined.ids, offsets=joined.offsets, touched=touched)
