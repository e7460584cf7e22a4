"""Building one unit of texts: prepare, leave out, split, encode, fit, finish, pack, write, account.

The unit is a pure function of its job and the bytes of its inputs; nothing here looks at a clock, a host or another
unit. A document's identity is (file, position): its split is decided by a hash of that alone, so that a document keeps
its split when data is added, units move or other documents are taken down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any, final

import numpy as np
import numpy.typing as npt

from tokenlake.arrays import Bools, Int32
from tokenlake.errors import AccountError, TooManyBadRecordsError
from tokenlake.etl.job import UnitJob
from tokenlake.etl.output.packed_rows import open_sink
from tokenlake.etl.output.preference_rows import PreferenceSink, open_pairs
from tokenlake.etl.output.quarantine import QuarantineWriter
from tokenlake.etl.output.sink import AddedIds, TokenDocuments
from tokenlake.etl.produced_by import produced_by
from tokenlake.etl.unit.bos_eos import Finish
from tokenlake.etl.unit.documents import TextDocuments, taken
from tokenlake.etl.unit.long_documents import Lengths
from tokenlake.etl.unit.recipe import Prepared, Recipe
from tokenlake.etl.worker_io import begin
from tokenlake.mixing.random import Int64, splitmix64
from tokenlake.packing.loss_mask import marked
from tokenlake.sources.batch import RAW_LIMIT, BadRecord, refuse
from tokenlake.sources.inputs import FileRange, InputFile
from tokenlake.store.account import Account
from tokenlake.store.base import Store
from tokenlake.store.entries import InputEntry
from tokenlake.store.layout import Layout
from tokenlake.store.ledger import UnitRecord
from tokenlake.text.preference.columns import MOVED
from tokenlake.tokenizers.encoder import Encoder


def split_indices(file: Int64, position: Int64, shares: Sequence[float]) -> npt.NDArray[np.int8]:
    """Index of the split of each document.

    Args:
        file: int64[n], ids of the documents' files.
        position: int64[n], positions in the files.
        shares: fraction of documents per split, summing to 1; at most 127.

    Returns:
        int8[n]. A split's documents are those whose hash, as a fraction of 2^64, falls into its
        stretch of the cumulative shares.
    """
    draws = splitmix64(splitmix64(position.astype(np.uint64)) ^ file.astype(np.uint64))
    bounds = np.cumsum(np.asarray(shares, np.float64))[:-1]
    limits = np.minimum(bounds * 2.0**64, np.nextafter(2.0**64, 0)).astype(np.uint64)
    return np.searchsorted(limits, draws, side="right").astype(np.int8)


def kept(position: Int64, excluded: Sequence[int]) -> npt.NDArray[np.bool_]:
    """bool[n], False where a document's position is in ``excluded``."""
    return ~np.isin(position, np.asarray(excluded, np.int64))


Progress = Callable[[dict[str, Any]], None]

#: Bytes of text that are encoded at a time, at least; a document is never cut.
_ENCODE_BYTES = 4 << 20

#: Bytes of text from which a document is encoded piece by piece.
_LONG_BYTES = 24 << 20


@final
class UnitTally:
    """The counts of one unit.

    Attributes:
        tokens, text_bytes, special_tokens: of the texts that were encoded.
        skipped, filtered, quarantined, normalized, dropped: by reason, as in :class:`tokenlake.store.account.Account`.
    """

    def __init__(self, *, packed: bool) -> None:
        self._packed = packed
        self._rows_read = self._kept = self._expanded = 0
        self.tokens = self.text_bytes = self.special_tokens = 0
        self.skipped: Counter[str] = Counter()
        self.filtered: Counter[str] = Counter()
        self.quarantined: Counter[str] = Counter()
        self.normalized: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()

    def read(self, batch: Prepared) -> None:
        """Count the records of a batch; bad ones are counted where they are set aside."""
        self._rows_read += batch.rows_read
        self.normalized.update(batch.normalized)
        self.filtered.update(batch.filtered)
        self.skipped.update(batch.skipped)

    def settle(self, count: int, origin: Int64, extra: Bools | None, left_out: Mapping[str, Int64]) -> None:
        """Count `count` documents, of which those in `origin` (a piece each) go on.

        Args:
            origin: int64[m], ascending.
            extra: bool[count], True for a document that is not the first of its row; None where none is.
            left_out: documents that are gone whole, by reason; what else is gone had no token.
        """
        first = np.ones(len(origin), np.bool_)
        first[1:] = np.diff(origin) > 0
        if self._packed:  # there the pieces of a document stay segments of one
            origin, first = origin[first], first[first]
        again = ~first if extra is None else ~first | extra[origin]
        self._kept += int((~again).sum())
        self._expanded += int(again.sum())
        # What is gone counts as a row only where it stood for one.
        gone = np.ones(count, np.bool_) if extra is None else ~extra
        gone[origin] = False
        for reason, rows in left_out.items():
            self.filtered[reason] += int(gone[rows].sum())
            gone[rows] = False
        if gone.any():
            self.filtered["empty"] += int(gone.sum())

    def account(self, sinks: Iterable[Counter[str]], unit: int) -> Account:
        """Return the unit's account; the sinks know what became of the tokens.

        Raises:
            AccountError: tokens are missing, which would be a bug.
        """
        sums: Counter[str] = Counter()
        for counts in sinks:
            sums.update(counts)
        if self._packed and sums["content"] != self.tokens - self.dropped.total():
            raise AccountError(
                f"unit {unit}: {self.tokens} tokens drawn, {self.dropped.total()} dropped, but {sums['content']} "
                "packed; this is a bug, nothing was committed"
            )
        return Account(
            rows_read=self._rows_read,
            rows_skipped=dict(self.skipped),
            filtered=dict(self.filtered),
            quarantined=dict(self.quarantined),
            normalized=dict(self.normalized),
            kept=self._kept,
            expanded=self._expanded,
            documents=sums["documents"],
            tokens=self.tokens,
            content_packed=sums["content"],
            dropped=dict(self.dropped),
            bos=sums["bos"],
            eos=sums["eos"],
            eos_existing=sums["eos_existing"],
            pad=sums["pad"],
            sequences=sums["sequences"],
            slots=sums["slots"],
            special_tokens_in_text=self.special_tokens,
            text_bytes=self.text_bytes,
        )


@final
class TextBuild:
    """One unit while it is being built."""

    def __init__(
        self, job: UnitJob, store: Store, encoder: Encoder, recipe: Recipe, progress: Progress
    ) -> None:
        self._job = job
        self._recipe = recipe
        self._encoder = encoder
        self._progress = progress
        self._done: Counter[str] = Counter()
        self._waiting: list[TextDocuments] = []
        self._waiting_bytes = 0
        self._paths: dict[int, InputFile] = {}
        self._tally = UnitTally(packed=job.pack is not None)
        self._names = [name for name, _ in job.source.splits]
        self._shares = [share for _, share in job.source.splits]
        layout = Layout(job.dataset, job.version)
        around = ((), ()) if recipe.rendered else (encoder.prefix, encoder.suffix)
        preference = job.source.texts.preference
        self._pairs = (
            {}
            if preference is None
            else {name: open_pairs(job, preference, store, layout, name, encoder) for name in self._names}
        )
        rest = [name for name in self._names if name not in self._pairs]
        self._sinks = {name: open_sink(job, store, layout, name, *around) for name in rest}
        self._outputs = [*self._sinks.values(), *self._pairs.values()]
        self._finish = Finish.of(job, encoder.prefix, encoder.suffix) if recipe.rendered else None
        self._lengths = Lengths(job.source.tokenizer, encoder, self._finish, masked=job.loss_mask)
        self._quarantine = QuarantineWriter(store, layout, job.unit)

    def build(self) -> UnitRecord:
        try:
            for part in self._job.ranges:
                self._read(part)
            self._flush()
            parts = [entry for sink in self._outputs for entry in sink.finish()]
            quarantine = self._quarantine.publish()
        except BaseException:
            for sink in self._outputs:
                sink.discard()
            self._quarantine.discard()
            raise
        account = self._tally.account((sink.counts for sink in self._outputs), self._job.unit)
        account.check(self._job.pack.seq_length if self._job.pack else None)
        return UnitRecord(
            unit=self._job.unit,
            fingerprint=self._job.fingerprint,
            source=self._job.source.name,
            inputs=tuple(_input_entry(part) for part in self._job.ranges),
            parts=tuple(parts),
            account=account,
            quarantine=quarantine,
            engine=self._job.engine,
            produced_by=produced_by(self._job.engine),
        )

    def _read(self, part: FileRange) -> None:
        """Read a range, encoding whenever enough documents wait."""
        begin("reading", part.file)
        batches = self._recipe.read(part)
        while (batch := next(batches, None)) is not None:
            self._take(batch)
            del batch  # it may hold a text of 200 MB, which only the encoder still needs
            if self._waiting_bytes >= _ENCODE_BYTES:
                self._flush()
                begin("reading", part.file)

    def _take(self, batch: Prepared) -> None:
        """Account for a batch and queue its documents."""
        self._tally.read(batch)
        self._set_aside(batch.bad)
        self._paths[batch.file.file_id] = batch.file
        documents = self._leave_out(batch.documents, batch.file.file_id)
        self._waiting.append(documents)
        self._waiting_bytes += documents.held_bytes
        self._done["bytes"] += batch.bytes_read
        self._done["documents"] += batch.rows_read

    def _flush(self) -> None:
        """Encode what waits, split by split, and report progress."""
        before = self._tally.tokens
        if self._waiting:
            first = self._waiting[0]
            if len(first):
                begin("encoding the documents of", self._paths[int(first.file[0])], first.position)
            box = [TextDocuments.concat(self._waiting)]
            self._waiting, self._waiting_bytes = [], 0
            if len(self._names) == 1:
                self._encode_all(self._names[0], box)
            else:
                for name, chosen in self._by_split(box.pop()):
                    self._encode_all(name, [chosen])
        if self._done:
            self._progress(dict(self._done) | {"tokens": self._tally.tokens - before})
            self._done.clear()

    def _set_aside(self, bad: tuple[BadRecord, ...]) -> None:
        """Quarantine bad records, and give up when the build cannot succeed any more."""
        self._quarantine.add(bad)
        for record in bad:
            self._tally.quarantined[record.reason] += 1
        total = self._tally.quarantined.total()
        if total > self._job.bad_budget:
            source = self._job.source
            first = self._quarantine.first
            raise TooManyBadRecordsError(
                f"source {source.name!r}: {total} bad records in one unit are more than "
                f"max_bad_fraction={source.max_bad_fraction} of all its records can be; the first: {first}. "
                "Fix the input, or raise max_bad_fraction if the loss is acceptable",
                source=source.name,
                bad=total,
            )

    def _leave_out(self, documents: TextDocuments, file: int) -> TextDocuments:
        """Drop the documents that `exclude` names."""
        if not (excluded := self._job.excluded.get(file)):
            return documents
        mask = kept(documents.position, excluded)
        gone = ~mask if documents.extra is None else ~mask & ~documents.extra
        left = int(gone.sum())
        if mask.all():
            return documents
        self._tally.filtered["excluded"] += left
        return documents.select(mask)

    def _by_split(self, documents: TextDocuments) -> Iterator[tuple[str, TextDocuments]]:
        """Each split that has documents here, with them."""
        indices = split_indices(documents.file, documents.position, self._shares)
        for index, name in enumerate(self._names):
            mask = indices == index
            if mask.all():
                yield name, documents
            elif mask.any():
                yield name, documents.select(mask)

    def _encode_all(self, split: str, box: list[TextDocuments]) -> None:
        """Encode documents in order, long ones each by itself."""
        if self._pairs:
            self._encode_pairs(self._pairs[split], box.pop())
            return
        long = [int(row) for row in np.flatnonzero(box[0].text_sizes > _LONG_BYTES)]
        if not long:
            self._encode(split, box)
            return
        documents = box.pop()
        edges = sorted({0, len(documents), *long, *(row + 1 for row in long)})
        for first, last in pairwise(edges):
            part = documents.slice(first, last)
            if first not in long or not self._encode_long(split, part):
                self._encode(split, [part])

    def _encode_pairs(self, sink: PreferenceSink, documents: TextDocuments) -> None:
        """Encode the texts of documents that have several, and let their sink join them."""
        encoded = self._encoder.encode(documents.text)
        joined = sink.add(documents, encoded)
        self._tally.tokens += joined.tokens
        self._tally.text_bytes += sink.text_bytes(documents)
        self._tally.special_tokens += encoded.special_tokens if not self._recipe.control_tokens else 0
        self._tally.dropped.update(joined.dropped)
        self._tally.normalized.update({MOVED: joined.moved} if joined.moved else {})
        self._tally.settle(len(documents), joined.origin, documents.extra, joined.left_out)

    def _encode_long(self, split: str, document: TextDocuments) -> bool:
        """Encode and pack one long document in bounded memory; False where it must be encoded whole."""
        settings = self._job.source.tokenizer
        masked = self._recipe.rendered or self._job.loss_mask
        whole = masked or document.kept is not None or not self._lengths.keeps_all
        encoded = None if whole else self._encoder.encode_long(document.text)
        if encoded is None or (encoded.special_tokens and settings.special_tokens_in_text == "fail"):
            return False
        self._tally.text_bytes += document.text_bytes
        self._tally.special_tokens += encoded.special_tokens
        windows = (ids for ids in encoded.pieces if len(ids))
        if (head := next(windows, None)) is None:
            self._tally.settle(1, np.empty(0, np.int64), document.extra, {})
            return True
        self._tally.settle(1, np.zeros(1, np.int64), document.extra, {})
        file, position = int(document.file[0]), int(document.position[0])
        self._sinks[split].add_long(self._drawn(chain([head], windows)), file, position)
        return True

    def _drawn(self, windows: Iterable[Int32]) -> Iterator[Int32]:
        for ids in windows:
            self._tally.tokens += len(ids)
            yield ids

    def _encode(self, split: str, box: list[TextDocuments]) -> None:
        """Encode documents, taken out of their box so that the text is freed before packing, and pack them."""
        documents = box.pop()
        ids, offsets, documents = self._ids_of(documents)
        file, position, extra, kept = documents.file, documents.position, documents.extra, documents.kept
        text = documents.text if self._lengths.needs_text else None
        del documents
        self._tally.tokens += len(ids)
        fitted = self._lengths.apply(ids, offsets, text).without_empty()
        del text
        self._tally.dropped.update(fitted.dropped)
        self._tally.normalized.update(fitted.touched)
        self._tally.settle(len(position), fitted.origin, extra, fitted.left_out)
        tokens = TokenDocuments(
            ids=fitted.ids,
            offsets=fitted.offsets,
            file=file[fitted.origin],
            position=position[fitted.origin],
            again=fitted.again,
            kept=taken(kept, fitted.origin),
        )
        self._sinks[split].add(self._finished(tokens, fitted.ends) if self._recipe.rendered else tokens)

    def _finished(self, tokens: TokenDocuments, ends: Bools | None) -> TokenDocuments:
        """Put around rendered documents what they lack; `ends`, bool[n], is False where one was cut off."""
        assert self._finish is not None
        done = self._finish.apply(tokens.ids, tokens.offsets, ends)
        existing = min(done.eos_existing, len(tokens) - tokens.further)
        around = AddedIds(bos=done.bos, eos=done.eos, eos_existing=existing)
        return replace(tokens, ids=done.ids, offsets=done.offsets, around=around)

    def _ids_of(self, documents: TextDocuments) -> tuple[Int32, Int64, TextDocuments]:
        """Return the ids of documents (marked, in a build with a loss mask), and those that were encoded."""
        if documents.spans is not None:
            encoded, touched = self._encoder.encode_spans(documents.text, documents.spans)
            self._tally.text_bytes += documents.text_bytes
            return marked(encoded.ids, touched), encoded.offsets, documents
        encoded = self._encoder.encode(documents.text)
        if len(encoded.special_docs) and self._job.source.tokenizer.special_tokens_in_text == "fail":
            documents = self._refuse_special(documents, encoded.special_docs)
            encoded = self._encoder.encode(documents.text)
        self._tally.text_bytes += documents.text_bytes
        self._tally.special_tokens += encoded.special_tokens
        return marked(encoded.ids) if self._job.loss_mask else encoded.ids, encoded.offsets, documents

    def _refuse_special(self, documents: TextDocuments, rows: Int64) -> TextDocuments:
        """With `special_tokens_in_text: fail`, a document that spells one out is a bad record."""
        bad = tuple(self._special_record(documents, int(row)) for row in rows)
        if self._job.source.on_bad_record == "fail":
            raise refuse(bad[0], self._paths[bad[0].file_id])
        self._set_aside(bad)
        mask = np.ones(len(documents), np.bool_)
        mask[rows] = False
        return documents.select(mask)

    def _special_record(self, documents: TextDocuments, row: int) -> BadRecord:
        file = self._paths[int(documents.file[row])]
        return BadRecord(
            file=file.path,
            file_id=file.file_id,
            position=int(documents.position[row]),
            line=None,
            reason="special_token_in_text",
            detail="the text spells out a special token of the tokenizer",
            raw=str(documents.text[row].as_py()).encode()[:RAW_LIMIT],
        )


def _input_entry(part: Any) -> InputEntry:
    file = part.file
    return InputEntry(
        source=file.source,
        path=file.path,
        size=file.size,
        token=file.token,
        file_id=file.file_id,
        start=part.start,
        stop=part.stop,
    )
