"""From texts to whole documents of ids: encoded, fitted to ``max_length``, begun with BOS and ended with EOS.

A template spells some of BOS and EOS itself, so that each rendered document is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, final

import numpy as np
import pyarrow as pa

from tokenlake.arrays import Bools, Int32, Int64, Ragged, offsets_of
from tokenlake.config.resolved import ResolvedFim, ResolvedPrompt, ResolvedTokenizer
from tokenlake.etl.unit.infilling import Infilling, Stretches
from tokenlake.packing.segments import learned, marked, plain
from tokenlake.text.truncation import continuing_tokens, cut_texts, pieces, whole_cut
from tokenlake.tokenizers.encoder import Encoded, Encoder
from tokenlake.tokenizers.offsets import Spans


@final
@dataclass(frozen=True, slots=True)
class Finish:
    """What every document must begin and end with.

    Attributes:
        prefix, suffix: what the tokenizer's post-processor puts around a document (BOS, EOS).
        eos_id: what a packed document ends with beyond that; None where documents are not packed, and for prompts,
            whose EOS is the end of `suffix`.
        prompts: whether an EOS put after a document bears loss where anything in it does: after an answer may come more
            of the template, and who learns the answer must learn to stop.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    eos_id: int | None
    prompts: bool = False

    @classmethod
    def around(
        cls,
        prompt: ResolvedPrompt | None,
        eos_id: int,
        prefix: tuple[int, ...],
        suffix: tuple[int, ...],
        *,
        packed: bool,
    ) -> Finish:
        """Return what documents that are prompts, or are not (None), and are `packed` or not, begin and end with.

        Args:
            prefix, suffix: what the post-processor puts around a document.
        """
        if prompt is None:
            return cls(prefix, suffix, eos_id if packed else None)
        before = prefix if prompt.add_bos else ()
        if not prompt.add_eos:
            return cls(before, (), None, prompts=True)
        if prompt.format_type == "chat":  # its template says how an answer ends
            return cls(before, suffix, eos_id if packed else None)
        return cls(before, suffix if suffix[-1:] == (eos_id,) else (*suffix, eos_id), None, prompts=True)

    def lacks(self, ids: Int32, offsets: Int64) -> tuple[Bools, Bools]:
        """Return which of n documents lack the prefix, and which the suffix: bool[n] each; some id there must be."""
        lacking: list[Bools] = []
        for run, first in ((self.prefix, True), (self.suffix, False)):
            # The ends alone: to look at all ids would cost a copy of them.
            most, documents = np.full(len(offsets) - 1, len(run)), Ragged(ids, offsets)
            some = documents.cut(most) if first else documents.end(most)
            found = Ragged(plain(some.ids), some.offsets)
            lacking.append(~(found.begins_with(run) if first else found.ends_with(run)))
        return lacking[0], lacking[1]

    def apply(self, documents: Fitted) -> Fitted:
        """Put around each of n documents what it lacks; none may be empty.

        An EOS put after a document bears loss where the document's last token does (of prompts: where any does): who
        learns the last word of an answer must learn to stop after it, but not where the answer was cut off.
        """
        ids, offsets, ends = documents.ids, documents.offsets, documents.ends
        head, tail = self.lacks(ids, offsets)
        last = np.zeros(len(offsets) - 1, np.bool_)
        if self.eos_id is not None:
            last = plain(ids[offsets[1:] - 1]) != self.eos_id
            if self.suffix:
                last = np.where(tail, self.suffix[-1] != self.eos_id, last)
        existing = 0  # documents that ended in EOS already, of which some need one
        if self.prompts:
            existing = int((~tail).sum()) if self.suffix else 0
        elif self.eos_id is not None:
            existing = int((~last).sum())
        bos, eos = int(head.sum()) * len(self.prefix), int(tail.sum()) * len(self.suffix) + int(last.sum())
        if not bos and not eos:
            return replace(documents, eos_existing=existing)
        if self.prompts:
            mark = np.logical_or.reduceat(learned(ids[: offsets[-1]]), offsets[:-1])
        else:
            mark = learned(ids[offsets[1:] - 1])
        mark = mark if ends is None else mark & ends
        inside = Ragged(ids[offsets[0] : offsets[-1]], offsets - offsets[0])
        parts = [Ragged.alike(self.prefix, head), inside, _after(self.suffix, tail, mark)]
        if self.eos_id is not None:
            parts.append(_after((self.eos_id,), last, mark))
        whole = Ragged.joined(parts)
        return replace(
            documents, ids=whole.ids, offsets=whole.offsets, bos=bos, eos=eos, eos_existing=existing
        )


def _after(run: tuple[int, ...], there: Bools, mark: Bools) -> Ragged:
    """Return `run` behind the documents where `there` is true, bearing loss where `mark` is: bool[n] each."""
    put = Ragged.alike(run, there)
    return Ragged(marked(put.ids, np.repeat(mark[there], len(run))), put.offsets)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Documents after the policy.

    Attributes:
        ids, offsets: int32[total], int64[m + 1].
        origin: int64[m], ascending: index of the document that each is, or is a piece of.
        ends: bool[m], False for one that does not hold its document's end; None where all do.
        dropped: tokens that are gone, by reason.
        left_out: documents that are gone whole, by reason: int64[k], their indices.
        touched: documents that were cut, by what was done.
        tokens: ids of all texts that were not refused.
        special_tokens: occurrences of special-token strings in these texts.
        refused: int64[k], the texts that spell out a special token where they must not.
        bos, eos, eos_existing: ids that were put around rendered documents, and documents that had an EOS already.
    """

    ids: Int32
    offsets: Int64
    origin: Int64
    ends: Bools | None = None
    dropped: dict[str, int] = field(default_factory=dict[str, int])
    left_out: dict[str, Int64] = field(default_factory=dict[str, Int64])
    touched: dict[str, int] = field(default_factory=dict[str, int])
    tokens: int = 0
    special_tokens: int = 0
    refused: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    bos: int = 0
    eos: int = 0
    eos_existing: int = 0

    @property
    def again(self) -> Bools | None:
        """bool[m], True for a piece that is not its document's first; None where none is."""
        found = np.zeros(len(self.origin), np.bool_)
        found[1:] = np.diff(self.origin) == 0
        return found if found.any() else None

    def without_empty(self) -> Fitted:
        """Leave out documents without ids."""
        full = np.diff(self.offsets) > 0
        if full.all():
            return self
        # An empty document has no ids, so the others' stay contiguous.
        return replace(
            self,
            offsets=np.concatenate([self.offsets[:1], self.offsets[1:][full]]),
            origin=self.origin[full],
            ends=None if self.ends is None else self.ends[full],
        )


@final
@dataclass(frozen=True, slots=True)
class _Stretches:
    """What is kept of n documents: stretches of their ids, document by document; int64[m] each."""

    origin: Int64
    begin: Int64
    end: Int64

    def select(self, mask: Bools) -> _Stretches:
        return _Stretches(self.origin[mask], self.begin[mask], self.end[mask])


@final
class Lengths:
    """The policy of one source.

    Args:
        settings: the policy and ``max_length``, which counts special tokens.
        encoder: what made the ids; its prefix and suffix are put around every document afterwards.
        finish: for documents that spell their own special tokens: what is put around them instead, where it is missing.
        masked: whether ids are marked, see :mod:`tokenlake.packing.segments`.
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
        self._prefix = len((finish or encoder).prefix)
        self._suffix = len((finish or encoder).suffix)
        self._masked = masked

    @property
    def keeps_all(self) -> bool:
        """Whether no document is ever changed, so that a long one need not be whole in memory."""
        return self._settings.long_documents == "keep"

    @property
    def needs_text(self) -> bool:
        """Whether :meth:`apply` looks at texts."""
        return self._settings.long_documents == "truncate" and self._settings.truncation_strategy != "simple"

    def apply(self, ids: Int32, offsets: Int64, text: pa.LargeStringArray | None = None) -> Fitted:
        """Fit n documents.

        Args:
            ids, offsets: int32[total], int64[n + 1].
            text: large_string[n], what the ids were made of, where :attr:`needs_text`.
        """
        whole = _Stretches(np.arange(len(offsets) - 1), offsets[:-1], offsets[1:])
        if self.keeps_all or not len(ids):
            return Fitted(ids=ids, offsets=offsets, origin=whole.origin)
        before, after = self._around(ids, offsets)
        long = np.diff(offsets) > self._settings.max_length - before - after
        if not long.any():
            return Fitted(ids=ids, offsets=offsets, origin=whole.origin)
        if self._settings.long_documents == "drop":
            kept = whole.select(~long)
        elif self._settings.long_documents == "split":
            kept = self._split(ids, whole, np.flatnonzero(long))
        else:
            kept = self._truncated(ids, whole, np.flatnonzero(long), before, after, text)
        return self._fitted(ids, offsets, long, kept)

    def _around(self, ids: Int32, offsets: Int64) -> tuple[Int64, Int64]:
        """int64[n] each: how many special tokens will be put before and after each document."""
        before, after = self._prefix, self._suffix
        if self._finish is None:
            count = len(offsets) - 1
            return np.full(count, before), np.full(count, after)
        lacks_head, lacks_tail = self._finish.lacks(ids, offsets)
        return lacks_head * before, lacks_tail * after

    def _split(self, ids: Int32, whole: _Stretches, rows: Int64) -> _Stretches:
        most = max(1, self._settings.max_length - self._prefix - self._suffix)
        goes_on = self._goes_on(ids)
        begins = [pieces(goes_on, int(whole.begin[row]), int(whole.end[row]), most) for row in rows]
        counts = np.ones(len(whole.origin), np.int64)
        counts[rows] = [len(begin) for begin in begins]
        origin = np.repeat(whole.origin, counts)
        begin, end = whole.begin[origin], whole.end[origin]
        inside = counts[origin] > 1
        begin[inside] = np.concatenate([begin[:0], *(begin for begin in begins if len(begin) > 1)])
        again = np.flatnonzero(np.diff(origin) == 0) + 1
        end[again - 1] = begin[again]
        return _Stretches(origin, begin, end)

    def _truncated(
        self,
        ids: Int32,
        whole: _Stretches,
        rows: Int64,
        before: Int64,
        after: Int64,
        text: pa.LargeStringArray | None,
    ) -> _Stretches:
        # At the side that is cut, what a document spells itself is gone, and must be put there.
        right = self._settings.truncation_side == "right"
        around = before[rows] + self._suffix if right else self._prefix + after[rows]
        room = np.maximum(0, self._settings.max_length - around)
        begin, end = whole.begin.copy(), whole.end.copy()
        if text is None:
            goes_on = self._goes_on(ids)
            if right:
                end[rows] = whole_cut(goes_on, begin[rows] + room, begin[rows])
            else:
                begin[rows] = whole_cut(goes_on, end[rows] - room, end[rows])
            return _Stretches(whole.origin, begin, end)
        own = Ragged.taken(plain(ids) if self._masked else ids, begin[rows], end[rows])
        texts: Any = text.take(pa.array(rows, pa.int64()))
        strategy, side = self._settings.truncation_strategy, self._settings.truncation_side
        first, last = cut_texts(self._encoder, texts, own.ids, own.offsets, room, strategy, side)
        begin[rows], end[rows] = begin[rows] + first, begin[rows] + last
        return _Stretches(whole.origin, begin, end)

    def _fitted(self, ids: Int32, offsets: Int64, long: Bools, kept: _Stretches) -> Fitted:
        """Take what is kept, and account for what is not."""
        policy = self._settings.long_documents
        reason = "truncated" if policy == "truncate" else "too_long"
        left_out = {"too_long": np.flatnonzero(long)} if policy == "drop" else {}
        full = (kept.end > kept.begin) | ~long[kept.origin]
        if not full.all():  # not even one character fits
            left_out["too_long"] = kept.origin[~full]
            kept = kept.select(full)
        dropped = {reason: len(ids) - int((kept.end - kept.begin).sum())}
        if self._masked:
            kept = self._leave_out_unlearned(ids, offsets, long, kept, dropped, left_out)
        fitted = Ragged.taken(ids, kept.begin, kept.end)
        ends = kept.end == offsets[kept.origin + 1]
        return Fitted(
            ids=fitted.ids,
            offsets=fitted.offsets,
            origin=kept.origin,
            ends=None if ends.all() else ends,
            dropped={name: count for name, count in dropped.items() if count},
            left_out=left_out,
            touched={} if policy == "drop" else {f"long_documents_{policy}": int(long.sum())},
        )

    def _leave_out_unlearned(
        self,
        ids: Int32,
        offsets: Int64,
        long: Bools,
        kept: _Stretches,
        dropped: dict[str, int],
        left_out: dict[str, Int64],
    ) -> _Stretches:
        """Leave out what has lost all the tokens that bear loss: a row of context alone teaches nothing."""
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(learned(ids))])
        had = before[offsets[1:]] > before[offsets[:-1]]
        useless = (before[kept.end] == before[kept.begin]) & (long & had)[kept.origin]
        if not useless.any():
            return kept
        left = kept.select(~useless)
        dropped["nothing_to_learn"] = int((kept.end - kept.begin)[useless].sum())
        gone = np.setdiff1d(kept.origin[useless], left.origin)
        if len(gone):
            left_out["nothing_to_learn"] = gone
        return left

    def _goes_on(self, ids: Int32) -> Bools:
        """bool[total], which tokens begin in the midst of a character."""
        return self._continuing.take(plain(ids) if self._masked else ids, mode="clip")

    @cached_property
    def _continuing(self) -> Bools:
        return continuing_tokens(self._encoder.files)


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
