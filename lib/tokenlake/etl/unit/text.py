"""Building one unit of texts: prepare, leave out, split, encode, fit, finish, pack, write, account.

The unit is a pure function of its job and the bytes of its inputs; nothing here looks at a clock, a host or another
unit. A document's identity is (file, position): its split is decided by a hash of that alone, so that a document keeps
its split when data is added, units move or other documents are taken down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Bools
from tokenlake.errors import TooManyBadRecordsError
from tokenlake.etl.job import Progress, UnitJob, begin, produced_by
from tokenlake.etl.sources.bad_records import BadRecord, Fault, refuse
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.step_clock import CLOCK
from tokenlake.etl.text.preference_ids import MOVED
from tokenlake.etl.tokenizers.encoder import Encoder
from tokenlake.etl.unit.bad_rows import bad_record
from tokenlake.etl.unit.documents import Prepared, Recipe
from tokenlake.etl.unit.encoding import DocumentEncoder
from tokenlake.etl.unit.finish import Finish
from tokenlake.etl.unit.infilling import Stretches
from tokenlake.etl.unit.preference_sink import PreferenceSink
from tokenlake.etl.unit.quarantine import QuarantineWriter
from tokenlake.etl.unit.sink import Sink, open_sink
from tokenlake.etl.unit.text_documents import TextDocuments, taken
from tokenlake.etl.unit.token_files import TokenDocuments
from tokenlake.runtime.mixing.random import Int64, UInt64, splitmix64
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import InputEntry, UnitRecord


def _draws(file: Int64, position: Int64) -> UInt64:
    return splitmix64(splitmix64(position.astype(np.uint64)) ^ file.astype(np.uint64))


def held_out_draws(file: Int64, position: Int64) -> Int64:
    """Return a number below 2^53 for each document, int64[n]: those with the smallest are held out.

    It is a hash of the hash that decides on splits, so that what is left is divided as if nothing had been held out.

    Args:
        file: int64[n], ids of the documents' files.
        position: int64[n], positions in the files.
    """
    return (splitmix64(_draws(file, position)) >> np.uint64(11)).astype(np.int64)


def split_indices(
    file: Int64, position: Int64, shares: Sequence[float], below: int | None = None
) -> npt.NDArray[np.int8]:
    """Index of the split of each document.

    Args:
        file: int64[n], ids of the documents' files.
        position: int64[n], positions in the files.
        shares: fraction of documents per split, summing to 1; at most 126.
        below: a document whose :func:`held_out_draws` is below is held out; None: none is.

    Returns:
        int8[n]. A split's documents are those whose hash, as a fraction of 2^64, falls into its
        stretch of the cumulative shares; ``len(shares)`` for those that are held out.
    """
    draws = _draws(file, position)
    bounds = np.cumsum(np.asarray(shares, np.float64))[:-1]
    limits = np.minimum(bounds * 2.0**64, np.nextafter(2.0**64, 0)).astype(np.uint64)
    found = np.searchsorted(limits, draws, side="right").astype(np.int8)
    if below is not None:
        found[held_out_draws(file, position) < below] = len(shares)
    return found


def kept(position: Int64, excluded: Sequence[int]) -> npt.NDArray[np.bool_]:
    """bool[n], False where a document's position is in ``excluded``."""
    return ~np.isin(position, np.asarray(excluded, np.int64))


#: Bytes of text that are encoded at a time, at least; a document is never cut.
_ENCODE_BYTES = 4 << 20

#: Bytes of text from which a document is encoded piece by piece.
_LONG_BYTES = 24 << 20


_SPELLED: Final = Fault("special_token_in_text", "the text spells out a special token of the tokenizer")
_REASONS: Final = ("rows_skipped", "filtered", "quarantined", "normalized", "dropped")
_OF_INPUT: Final = ("source", "path", "size", "token", "file_id")


@final
class UnitTally:
    """The counts of one unit, named as the fields of :class:`tokenlake.runtime.store.account.Account`.

    Attributes:
        numbers: those that are numbers.
        by: those that are by reason.
    """

    def __init__(self, *, packed: bool) -> None:
        self._packed = packed
        self.numbers: Counter[str] = Counter()
        self.by = {name: Counter[str]() for name in _REASONS}

    def read(self, batch: Prepared) -> None:
        """Count the records of a batch; bad ones are counted where they are set aside."""
        self.numbers["rows_read"] += batch.rows_read
        found = {"normalized": batch.normalized, "filtered": batch.filtered, "rows_skipped": batch.skipped}
        for name, counts in found.items():
            if counts:  # most files have none, and there may be very many files
                self.by[name].update(counts)

    def settle(
        self,
        count: int,
        origin: Int64,
        extra: Bools | None,
        left_out: Mapping[str, Int64],
        refused: Int64 | None = None,
    ) -> None:
        """Count `count` documents, of which those in `origin` (a piece each) go on.

        Args:
            origin: int64[m], ascending.
            extra: bool[count], True for a document that is not the first of its row; None where none is.
            left_out: documents that are gone whole, by reason; what else is gone had no token.
            refused: bad records, which are counted where they are set aside.
        """
        first = np.ones(len(origin), np.bool_)
        first[1:] = np.diff(origin) > 0
        if self._packed:  # there the pieces of a document stay segments of one
            origin, first = origin[first], first[first]
        again = ~first if extra is None else ~first | extra[origin]
        self.numbers.update(kept=int((~again).sum()), expanded=int(again.sum()))
        # What is gone counts as a row only where it stood for one.
        gone = np.ones(count, np.bool_) if extra is None else ~extra
        gone[origin] = False
        if refused is not None:
            gone[refused] = False
        for reason, rows in left_out.items():
            self.by["filtered"][reason] += int(gone[rows].sum())
            gone[rows] = False
        if gone.any():
            self.by["filtered"]["empty"] += int(gone.sum())

    def account(self, sinks: Iterable[Counter[str]]) -> Account:
        """Return the unit's account; the sinks know what became of the tokens."""
        numbers = Counter(self.numbers)
        for counts in sinks:
            numbers.update(counts)
        fields: dict[str, Any] = {**numbers, **{name: dict(counts) for name, counts in self.by.items()}}
        return Account(**fields)


@final
class TextBuild:
    """One unit while it is being built.

    Args:
        read: ranges in batches, where not `recipe` reads them.
    """

    def __init__(
        self,
        job: UnitJob,
        store: Store,
        encoder: Encoder,
        recipe: Recipe,
        progress: Progress,
        read: Callable[[Sequence[FileRange]], Iterator[Prepared]] | None = None,
    ) -> None:
        self._job, self._recipe, self._encoder, self._progress = job, recipe, encoder, progress
        self._batches = read or recipe.read_all
        self._done: Counter[str] = Counter()
        self._waiting: list[TextDocuments] = []
        self._waiting_bytes = 0
        self._paths: dict[int, InputFile] = {}
        self._tally = UnitTally(packed=job.pack is not None)
        self._names = job.source.split_names
        layout, texts = Layout(job.dataset, job.version), job.source.texts
        around, packed = (encoder.prefix, encoder.suffix), job.pack is not None
        self._pairs: dict[str, PreferenceSink] = {}
        self._sinks: dict[str, Sink] = {}
        own = ((), ()) if recipe.rendered else around
        for name in self._names:
            if texts.preference is not None:
                self._pairs[name] = PreferenceSink(job, texts.preference, store, layout, name, encoder)
            else:
                self._sinks[name] = open_sink(job, store, layout, name, *own)
        self._outputs = [*self._sinks.values(), *self._pairs.values()]
        finish = Finish.around(texts.prompt, job.eos_id, *around, packed=packed) if recipe.rendered else None
        self._documents = DocumentEncoder(
            job.source.tokenizer, encoder, finish, masked=job.loss_mask, fim=texts.fim
        )
        self._quarantine = QuarantineWriter(store, layout, job.unit)

    def build(self) -> UnitRecord:
        """Write the parts and return the record, which the caller publishes.

        Raises:
            AccountError: a row or a token is missing, which would be a bug.
        """
        job = self._job
        try:
            for parts in self._recipe.groups(job.ranges):
                self._read(parts)
            self._flush()
            CLOCK.begin("pack")
            parts = [entry for sink in self._outputs for entry in sink.finish()]
            quarantine = self._quarantine.publish()
            CLOCK.end()
        except BaseException:
            for sink in self._outputs:
                sink.discard()
            self._quarantine.discard()
            raise
        account = self._tally.account(sink.counts for sink in self._outputs)
        account.check(job.pack.width if job.pack else None, where=f"unit {job.unit}")
        return UnitRecord(
            unit=job.unit,
            fingerprint=job.fingerprint,
            source=job.source.name,
            inputs=tuple(
                InputEntry(
                    start=part.start,
                    stop=part.stop,
                    **{name: getattr(part.file, name) for name in _OF_INPUT},
                )
                for part in job.ranges
            ),
            parts=tuple(parts),
            account=account,
            quarantine=quarantine,
            engine=job.engine,
            produced_by=produced_by(job.engine),
        )

    def _read(self, parts: Sequence[FileRange]) -> None:
        """Read a range, or several that are read together, encoding whenever enough documents wait."""
        begin("reading", parts[0].file)
        CLOCK.begin("load")
        batches = self._batches(parts)
        while (batch := next(batches, None)) is not None:
            self._take(batch)
            file = batch.files[-1]
            del batch  # it may hold a text of 200 MB, which only the encoder still needs
            if self._waiting_bytes >= _ENCODE_BYTES:
                self._flush()
                begin("reading", file)
                CLOCK.begin("load")
        CLOCK.end()

    def _take(self, batch: Prepared) -> None:
        """Account for a batch and queue its documents."""
        self._tally.read(batch)
        self._set_aside(batch.bad)
        documents = batch.documents
        for file in batch.files:
            self._paths[file.file_id] = file
            documents = self._leave_out(documents, file.file_id)
        if len(documents):  # a unit smaller than its records may hold none
            self._waiting.append(documents)
        self._waiting_bytes += documents.held_bytes
        self._done.update(bytes=batch.bytes_read, documents=batch.rows_read)

    def _flush(self) -> None:
        """Encode what waits, split by split, and report progress."""
        before = self._tally.numbers["tokens"]
        if self._waiting:
            first = self._waiting[0]
            file = self._paths[int(first.file[0])]
            CLOCK.begin("tokenize")
            begin("encoding the documents of", file, first.position)
            del first
            # In a box, out of which texts are taken when they are encoded: they are freed before packing.
            box = [TextDocuments.concat(self._waiting)]
            self._waiting, self._waiting_bytes = [], 0
            if len(self._names) == 1:
                self._write(self._names[0], box)
            else:
                self._write_splits(box.pop())
            CLOCK.end()
        if self._done:
            self._progress(dict(self._done) | {"tokens": self._tally.numbers["tokens"] - before})
            self._done.clear()

    def _set_aside(self, bad: Sequence[BadRecord]) -> None:
        """Quarantine bad records, and give up when the build cannot succeed any more."""
        if not bad:
            return
        self._quarantine.add(bad)
        self._tally.by["quarantined"].update(record.reason for record in bad)
        total, source = self._tally.by["quarantined"].total(), self._job.source
        if total > self._job.bad_budget:
            raise TooManyBadRecordsError(
                f"source {source.name!r}: {total} bad records in one unit are more than "
                f"max_bad_fraction={source.max_bad_fraction} of all its records can be; the first: "
                f"{self._quarantine.first}. Fix the input, or raise max_bad_fraction if the loss is acceptable",
                source=source.name,
                bad=total,
            )

    def _leave_out(self, documents: TextDocuments, file: int) -> TextDocuments:
        """Drop the documents that `exclude` names."""
        if not (excluded := self._job.excluded.get(file)):
            return documents
        mask = kept(documents.position, excluded) | (documents.file != file)
        if mask.all():
            return documents
        gone = ~mask if documents.extra is None else ~mask & ~documents.extra
        self._tally.by["filtered"]["excluded"] += int(gone.sum())
        return documents.select(mask)

    def _write_splits(self, documents: TextDocuments) -> None:
        """Give each split the documents here that are its own."""
        source = self._job.source
        shares = [share for _, share in source.splits]
        below = None if source.held_out is None else source.held_out.below
        indices = split_indices(documents.file, documents.position, shares, below)
        for index, name in enumerate(self._names):
            mask = indices == index
            if mask.any():
                self._write(name, [documents if mask.all() else documents.select(mask)])

    def _write(self, split: str, box: list[TextDocuments]) -> None:
        """Encode documents in order, long ones each by itself, and give them to their sink."""
        CLOCK.begin("tokenize")
        if self._pairs:
            self._write_pairs(self._pairs[split], box.pop())
            return
        long = [int(row) for row in np.flatnonzero(box[0].text_sizes > _LONG_BYTES)]
        if not long:
            encoded = self._encoded(split, box.pop())
            CLOCK.begin("pack")
            self._sinks[split].add(encoded)
            return
        documents = box.pop()
        edges = sorted({0, len(documents), *long, *(row + 1 for row in long)})
        for first, last in pairwise(edges):
            part = documents.slice(first, last)
            if first not in long or not self._write_long(self._sinks[split], part):
                # Long documents are packed while they are encoded: all of this counts as tokenizing.
                self._sinks[split].add(self._encoded(split, part))

    def _encoded(self, split: str, texts: TextDocuments) -> TokenDocuments:
        """Encode documents and account for them."""
        source, numbers = self._job.source, self._tally.numbers
        # What is held out is evaluated as it is, whatever is done to what is trained on.
        plain = source.texts.fim is None or (source.held_out is not None and split == source.held_out.split)
        infill = None if plain else Stretches.whole(texts.text, texts.file, texts.position)
        made = self._documents.encode(texts.text, texts.spans, infill)
        numbers.update(
            tokens=made.tokens, special_tokens_in_text=made.special_tokens, text_bytes=texts.text_bytes
        )
        if len(made.refused):
            self._refuse_special(texts, made.refused)
            numbers["text_bytes"] -= int(texts.text_sizes[made.refused].sum())
        self._tally.by["dropped"].update(made.dropped)
        self._tally.by["normalized"].update(made.touched)
        self._tally.settle(len(texts), made.origin, texts.extra, made.left_out, made.refused)
        again = made.again
        whole = len(made.origin) - (0 if again is None else int(again.sum()))
        return TokenDocuments(
            ids=made.ids,
            offsets=made.offsets,
            file=texts.file[made.origin],
            position=texts.position[made.origin],
            bos=made.bos,
            eos=made.eos,
            eos_existing=min(made.eos_existing, whole),
            again=again,
            kept=taken(texts.kept, made.origin),
        )

    def _write_pairs(self, sink: PreferenceSink, documents: TextDocuments) -> None:
        """Encode the texts of documents that have several, and let their sink join them."""
        encoded = self._encoder.encode(documents.text)
        CLOCK.begin("pack")
        joined, tally = sink.add(documents, encoded), self._tally
        special = 0 if self._recipe.control_tokens else encoded.special_tokens
        tally.numbers.update(
            tokens=joined.tokens, text_bytes=sink.text_bytes(documents), special_tokens_in_text=special
        )
        tally.by["dropped"].update(joined.dropped)
        tally.by["normalized"].update({MOVED: joined.moved} if joined.moved else {})
        tally.settle(len(documents), joined.origin, documents.extra, joined.left_out)

    def _write_long(self, sink: Sink, document: TextDocuments) -> bool:
        """Encode and pack one long document in bounded memory; False where it must be encoded whole."""
        settings, numbers = self._job.source.tokenizer, self._tally.numbers
        masked = self._recipe.rendered or self._job.loss_mask or self._job.source.texts.fim is not None
        whole = masked or document.kept is not None or not self._documents.lengths.keeps_all
        encoded = None if whole else self._encoder.encode_long(document.text)
        if encoded is None or (encoded[0] and settings.special_tokens_in_text == "fail"):
            return False
        special_tokens, pieces = encoded
        numbers.update(text_bytes=document.text_bytes, special_tokens_in_text=special_tokens)
        windows = (ids for ids in pieces if len(ids))
        head = next(windows, None)
        self._tally.settle(1, np.arange(0 if head is None else 1), document.extra, {})
        if head is not None:
            before = sink.counts["content_packed"]
            sink.add_long(chain([head], windows), int(document.file[0]), int(document.position[0]))
            numbers["tokens"] += sink.counts["content_packed"] - before
        return True

    def _refuse_special(self, documents: TextDocuments, rows: Int64) -> None:
        """With `special_tokens_in_text: fail`, a document that spells one out is a bad record."""
        bad: list[BadRecord] = []
        for row in rows.tolist():
            file, raw = self._paths[int(documents.file[row])], str(documents.text[row].as_py()).encode()
            bad.append(bad_record(file, int(documents.position[row]), _SPELLED, raw))
        if self._job.source.on_bad_record == "fail":
            raise refuse(bad[0], self._paths[bad[0].file_id])
        self._set_aside(bad)
