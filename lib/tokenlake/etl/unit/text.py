"""Building one unit of texts, from its ranges of inputs to its record.

1. Ranges of inputs are read in batches of documents
   (:mod:`~tokenlake.etl.unit.documents`). Bad records are set aside, and excluded
   documents left out.
2. When enough text waits, documents are divided into splits
   (:mod:`~tokenlake.etl.unit.splits`) and encoded
   (:mod:`~tokenlake.etl.unit.encoding`). Very long documents are encoded and packed
   piece by piece.
3. The sink of each split packs and writes them (:mod:`~tokenlake.etl.unit.sink`).
4. The account of the unit is checked: every row and every token that was read is
   written, or counted as left out.

The unit is a pure function of its job and the bytes of its inputs; nothing here looks
at a clock, a host or another unit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Final, TypeAlias, final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.errors import TooManyBadRecordsError
from tokenlake.etl.job import Progress, UnitJob, begin, produced_by
from tokenlake.etl.sources.bad_records import BadRecord, Fault, refuse
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.line_counter import LineCounter
from tokenlake.etl.step_clock import CLOCK
from tokenlake.etl.text.preference_ids import MOVED
from tokenlake.etl.tokenizers.encoder import Encoder
from tokenlake.etl.unit.bad_rows import bad_record
from tokenlake.etl.unit.documents import Prepared, Recipe
from tokenlake.etl.unit.encoding import DocumentEncoder
from tokenlake.etl.unit.finish import Finish
from tokenlake.etl.unit.fitted import Fitted
from tokenlake.etl.unit.imported import ids_of
from tokenlake.etl.unit.infilling import Stretches
from tokenlake.etl.unit.preference_sink import PreferenceSink
from tokenlake.etl.unit.quarantine import QuarantineWriter
from tokenlake.etl.unit.sink import Sink, open_sink
from tokenlake.etl.unit.splits import kept, split_indices
from tokenlake.etl.unit.tally import UnitTally
from tokenlake.etl.unit.text_documents import TextDocuments, taken
from tokenlake.etl.unit.token_files import TokenDocuments
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import (
    InputEntry,
    QuarantineEntry,
    ShardEntry,
    UnitRecord,
)

_ENCODE_BYTES = 4 << 20
"""Bytes of text that are encoded at a time, at least; a document is never cut."""

_LONG_BYTES = 24 << 20
"""Bytes of text from which a document is encoded piece by piece."""

_SPELLED: Final = Fault(
    "special_token_in_text", "the text contains a special token of the tokenizer"
)

ReadRanges: TypeAlias = Callable[[Sequence[FileRange]], Iterator[Prepared]]


@final
class TextBuild:
    """One unit while it is being built.

    Args:
        job: Job of the unit.
        store: Store of the version.
        encoder: Encoder of the texts.
        recipe: Preparation of documents.
        progress: Function that receives bytes, documents and tokens.
        read: Function that reads ranges in batches; None: that of `recipe`.
    """

    def __init__(
        self,
        job: UnitJob,
        store: Store,
        encoder: Encoder,
        recipe: Recipe,
        progress: Progress,
        read: ReadRanges | None = None,
    ) -> None:
        self._job = job
        self._recipe = recipe
        self._encoder = encoder
        self._progress = progress
        self._read_ranges = read or recipe.read_all
        self._tally = UnitTally(packed=job.pack is not None)
        self._split_names = job.source.split_names
        self._files: dict[int, InputFile] = {}  # by file id
        self._line_counter = LineCounter(job.source.storage_options)
        # Documents that wait to be encoded, and progress that is not reported yet.
        self._waiting: list[TextDocuments] = []
        self._waiting_bytes = 0
        self._unreported: Counter[str] = Counter()
        # Outputs.
        layout = Layout(job.dataset, job.version)
        self._quarantine = QuarantineWriter(store, layout, job.unit)
        self._preference_sinks: dict[str, PreferenceSink] = {}
        self._sinks: dict[str, Sink] = {}
        self._open_sinks(store, layout)
        self._all_sinks = [*self._sinks.values(), *self._preference_sinks.values()]
        self._documents = self._document_encoder()

    def build(self) -> UnitRecord:
        """Write the parts and return the record, which the caller publishes.

        Raises:
            AccountError: A row or a token is missing, which is a bug.
        """
        job = self._job
        entries: list[ShardEntry] = []
        try:
            for ranges in self._recipe.groups(job.ranges):
                self._read(ranges)
            self._flush()
            CLOCK.begin("pack")
            for sink in self._all_sinks:
                entries += sink.finish()
            quarantine = self._quarantine.publish()
            CLOCK.end()
        except BaseException:
            for sink in self._all_sinks:
                sink.discard()
            self._quarantine.discard()
            raise
        return self._record(entries, quarantine)

    def _open_sinks(self, store: Store, layout: Layout) -> None:
        """Open a sink for each split."""
        job = self._job
        preference = job.source.texts.preference
        # Rendered documents are finished before they come to a sink.
        prefix: tuple[int, ...] = ()
        suffix: tuple[int, ...] = ()
        if not self._recipe.rendered:
            prefix = self._encoder.prefix
            suffix = self._encoder.suffix
        for split in self._split_names:
            if preference is not None:
                sink = PreferenceSink(
                    job, preference, store, layout, split, self._encoder
                )
                self._preference_sinks[split] = sink
            else:
                self._sinks[split] = open_sink(
                    job, store, layout, split, prefix, suffix
                )

    def _document_encoder(self) -> DocumentEncoder:
        job = self._job
        texts = job.source.texts
        # Rendered documents bring special tokens of their own, so that only the missing
        # ones are put around them. A record that is a packed row needs no EOS of packing.
        finish: Finish | None = None
        if self._recipe.rendered:
            finish = Finish.around(
                texts.prompt,
                job.eos_id,
                self._encoder.prefix,
                self._encoder.suffix,
                packed=job.pack is not None and not job.source.has_whole_rows,
            )
        return DocumentEncoder(
            job.source.tokenizer,
            self._encoder,
            finish,
            masked=job.loss_mask,
            fim=texts.fim,
        )

    def _record(
        self, parts: Sequence[ShardEntry], quarantine: QuarantineEntry | None
    ) -> UnitRecord:
        """Return the record of the unit; its account must balance."""
        job = self._job
        # 1. The account, and the ranges that were read.
        account = self._tally.account(sink.counts for sink in self._all_sinks)
        width = None if job.pack is None else job.pack.width
        account.check(width, where=f"unit {job.unit}")
        inputs: list[InputEntry] = []
        for file_range in job.ranges:
            input_entry = InputEntry(
                start=file_range.start,
                stop=file_range.stop,
                source=file_range.file.source,
                path=file_range.file.path,
                size=file_range.file.size,
                token=file_range.file.token,
                file_id=file_range.file.file_id,
            )
            inputs.append(input_entry)
        # 2. The record.
        return UnitRecord(
            unit=job.unit,
            fingerprint=job.fingerprint,
            source=job.source.name,
            inputs=tuple(inputs),
            parts=tuple(parts),
            account=account,
            quarantine=quarantine,
            engine=job.engine,
            produced_by=produced_by(job.engine),
        )

    # 1. Reading

    def _read(self, ranges: Sequence[FileRange]) -> None:
        """Read a range, or several that are read together.

        Documents are encoded whenever enough of them wait.
        """
        begin("reading", ranges[0].file)
        CLOCK.begin("load")
        batches = self._read_ranges(ranges)
        while (batch := next(batches, None)) is not None:
            self._take(batch)
            file = batch.files[-1]
            # It may hold a text of 200 MB, which only the encoder still needs.
            del batch
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
        # Lists of documents to leave out are by file; a batch of small files has
        # several.
        for file in batch.files:
            self._files[file.file_id] = file
            documents = self._leave_out(documents, file.file_id)
        if len(documents):  # a unit smaller than its records may hold none
            self._waiting.append(documents)
        self._waiting_bytes += documents.held_bytes
        self._unreported.update(bytes=batch.bytes_read, documents=batch.rows_read)

    def _set_aside(self, bad_records: Sequence[BadRecord]) -> None:
        """Quarantine bad records, and give up when the build cannot succeed any more."""
        if not bad_records:
            return
        self._quarantine.add(bad_records)
        quarantined = self._tally.by["quarantined"]
        quarantined.update([record.reason for record in bad_records])
        source = self._job.source
        bad_count = quarantined.total()
        if bad_count > self._job.bad_budget:
            counts: list[str] = []
            for reason, records in sorted(quarantined.items()):
                counts.append(f"{reason} {records:,}")
            raise TooManyBadRecordsError(
                f"source {source.name!r}: {bad_count} bad records in one unit ({', '.join(counts)}) are more than "
                f"max_bad_fraction={source.max_bad_fraction} of all its records can be; the first: "
                f"{self._quarantine.first}. Fix the input, or raise max_bad_fraction if the loss is acceptable",
                source=source.name,
                bad=bad_count,
            )

    def _leave_out(self, documents: TextDocuments, file_id: int) -> TextDocuments:
        """Return the documents without those of a file that `exclude` names."""
        excluded = self._job.excluded.get(file_id)
        if not excluded:
            return documents
        is_kept = kept(documents.position, excluded) | (documents.file != file_id)
        if is_kept.all():
            return documents
        # Only the first document of a row counts as a row.
        is_excluded_row = ~is_kept
        if documents.extra is not None:
            is_excluded_row &= ~documents.extra
        self._tally.by["filtered"]["excluded"] += int(is_excluded_row.sum())
        return documents.select(is_kept)

    # 2. Encoding

    def _flush(self) -> None:
        """Encode the documents that wait, split by split, and report progress."""
        tokens_before = self._tally.numbers["tokens"]
        if self._waiting:
            # Errors and crashes name the first document that is encoded.
            first_documents = self._waiting[0]
            file = self._files[int(first_documents.file[0])]
            CLOCK.begin("tokenize")
            begin("encoding the documents of", file, first_documents.position)
            del first_documents
            # The list is emptied when its texts are encoded, so that they are freed
            # before packing.
            texts = [TextDocuments.concat(self._waiting)]
            self._waiting = []
            self._waiting_bytes = 0
            if len(self._split_names) == 1:
                self._write(self._split_names[0], texts)
            else:
                self._write_splits(texts.pop())
            CLOCK.end()
        if self._unreported:
            tokens = self._tally.numbers["tokens"] - tokens_before
            self._progress({**self._unreported, "tokens": tokens})
            self._unreported.clear()

    def _write_splits(self, documents: TextDocuments) -> None:
        """Write documents to the splits that they belong to."""
        source = self._job.source
        # The hash of a document decides its split. The held-out split comes last.
        shares = [share for _, share in source.splits]
        held_out_bound = None if source.held_out is None else source.held_out.below
        split_of_document = split_indices(
            documents.file, documents.position, shares, held_out_bound
        )
        for split_index, split_name in enumerate(self._split_names):
            is_in_split = split_of_document == split_index
            if is_in_split.all():
                self._write(split_name, [documents])
            elif is_in_split.any():
                self._write(split_name, [documents.select(is_in_split)])

    def _write(self, split: str, texts: list[TextDocuments]) -> None:
        """Encode documents in order, and hand them to their sink.

        Long documents are encoded each by itself.

        Args:
            split: Name of the split.
            texts: List of one element, the documents. It is emptied, so that no caller
                keeps the texts in memory.
        """
        CLOCK.begin("tokenize")
        if self._preference_sinks:
            self._write_preferences(self._preference_sinks[split], texts.pop())
            return
        sink = self._sinks[split]
        is_long = texts[0].text_sizes > _LONG_BYTES
        long_rows: list[int] = np.flatnonzero(is_long).tolist()
        if not long_rows:
            encoded = self._encoded(split, texts.pop())
            CLOCK.begin("pack")
            sink.add(encoded)
            return
        # Each long document is a part by itself. It is packed while it is encoded, and
        # all of that counts as tokenizing.
        documents = texts.pop()
        edges = {0, len(documents)}
        for row in long_rows:
            edges |= {row, row + 1}
        for first_row, end_row in pairwise(sorted(edges)):
            part = documents.slice(first_row, end_row)
            is_written = first_row in long_rows and self._write_long(sink, part)
            if not is_written:
                sink.add(self._encoded(split, part))

    def _encoded(self, split: str, documents: TextDocuments) -> TokenDocuments:
        """Encode documents and account for them."""
        # 1. Ids: imported ones are only fitted, texts are encoded.
        if documents.ids is not None:
            token_ids, offsets = ids_of(documents.ids)
            has_loss = self._job.source.masked
            fitted = self._documents.fit(token_ids, offsets, has_loss=has_loss)
        else:
            infill = self._infill_stretches(split, documents)
            fitted = self._documents.encode(documents.text, documents.spans, infill)
        # 2. Their account, and where they come from. A document in several parts has
        #    one end.
        self._count_encoded(documents, fitted)
        is_further_part = fitted.again
        whole_documents = len(fitted.origin)
        if is_further_part is not None:
            whole_documents -= int(is_further_part.sum())
        return TokenDocuments(
            ids=fitted.ids,
            offsets=fitted.offsets,
            file=documents.file[fitted.origin],
            position=documents.position[fitted.origin],
            bos=fitted.bos,
            eos=fitted.eos,
            eos_existing=min(fitted.eos_existing, whole_documents),
            again=is_further_part,
            kept=taken(documents.kept, fitted.origin),
        )

    def _infill_stretches(
        self, split: str, documents: TextDocuments
    ) -> Stretches | None:
        """Return the texts for fill-in-the-middle; None where it is off.

        Documents that are held out are evaluated as they are, however the training data
        is changed.
        """
        source = self._job.source
        if source.texts.fim is None:
            return None
        if source.held_out is not None and split == source.held_out.split:
            return None
        return Stretches.whole(documents.text, documents.file, documents.position)

    def _count_encoded(self, documents: TextDocuments, fitted: Fitted) -> None:
        """Account for encoded documents, and set aside those with special tokens."""
        tally = self._tally
        tally.numbers.update(
            tokens=fitted.tokens,
            special_tokens_in_text=fitted.special_tokens,
            text_bytes=documents.text_bytes,
        )
        # The bytes of bad records count as theirs, not as those of texts.
        if len(fitted.refused):
            self._refuse_special(documents, fitted.refused)
            refused_sizes = documents.text_sizes[fitted.refused]
            tally.numbers["text_bytes"] -= int(refused_sizes.sum())
        tally.by["dropped"].update(fitted.dropped)
        tally.by["normalized"].update(fitted.touched)
        tally.settle(
            len(documents),
            fitted.origin,
            documents.extra,
            fitted.left_out,
            fitted.refused,
        )

    def _refuse_special(self, documents: TextDocuments, rows: Int64) -> None:
        """Make bad records of documents that spell a special token.

        `special_tokens_in_text` is ``fail``.
        """
        bad_records: list[BadRecord] = []
        for row in rows.tolist():
            file = self._files[int(documents.file[row])]
            position = int(documents.position[row])
            raw_text = str(documents.text[row].as_py()).encode()
            record = bad_record(file, position, _SPELLED, raw_text)
            line = self._line_counter.line_of(file, position)
            bad_records.append(replace(record, line=line))
        if self._job.source.on_bad_record == "fail":
            raise refuse(bad_records[0], self._files[bad_records[0].file_id])
        self._set_aside(bad_records)

    def _write_preferences(
        self, sink: PreferenceSink, documents: TextDocuments
    ) -> None:
        """Encode prompts and answers, and let their sink join them."""
        encoded = self._encoder.encode(documents.text)
        CLOCK.begin("pack")
        joined = sink.add(documents, encoded)
        tally = self._tally
        tally.numbers.update(
            tokens=joined.tokens, text_bytes=sink.text_bytes(documents)
        )
        # Control tokens of texts are wanted: only others are counted.
        if not self._recipe.control_tokens:
            tally.numbers["special_tokens_in_text"] += encoded.special_tokens
        tally.by["dropped"].update(joined.dropped)
        if joined.moved:
            tally.by["normalized"][MOVED] += joined.moved
        tally.settle(len(documents), joined.origin, documents.extra, joined.left_out)

    def _write_long(self, sink: Sink, document: TextDocuments) -> bool:
        """Encode and pack one long document in bounded memory.

        Returns:
            False if it must be encoded as a whole; nothing is written then.
        """
        if not self._can_be_streamed(document):
            return False
        encoded = self._encoder.encode_long(document.text)
        if encoded is None:
            return False
        special_tokens, pieces = encoded
        # A document with a special token is refused as a whole.
        policy = self._job.source.tokenizer.special_tokens_in_text
        if special_tokens and policy == "fail":
            return False
        numbers = self._tally.numbers
        numbers.update(
            text_bytes=document.text_bytes, special_tokens_in_text=special_tokens
        )
        # The first piece with ids shows that the document is not empty; the others are
        # encoded while the sink packs.
        windows = (token_ids for token_ids in pieces if len(token_ids))
        first_window = next(windows, None)
        has_tokens = first_window is not None
        self._tally.settle(1, np.arange(int(has_tokens)), document.extra, {})
        if first_window is not None:
            tokens_before = sink.counts["content_packed"]
            sink.add_long(
                chain([first_window], windows),
                int(document.file[0]),
                int(document.position[0]),
            )
            numbers["tokens"] += sink.counts["content_packed"] - tokens_before
        return True

    def _can_be_streamed(self, document: TextDocuments) -> bool:
        """Return True if nothing but the encoder needs the document as a whole."""
        has_loss_marks = self._recipe.rendered or self._job.loss_mask
        has_infilling = self._job.source.texts.fim is not None
        if has_loss_marks or has_infilling or document.kept is not None:
            return False
        return self._documents.lengths.keeps_all
