"""Building one unit: read, leave out, split, encode, pack, write, account.

The unit is a pure function of its job and the bytes of its inputs; nothing here looks at a clock, a
host or another unit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.account import Account
from tokenlake.build.assign import kept, split_indices
from tokenlake.build.job import EngineJob, UnitJob
from tokenlake.build.produced import produced_by
from tokenlake.build.quarantine import QuarantineWriter
from tokenlake.build.sinks import open_sink
from tokenlake.errors import AccountError, TooManyBadRecordsError
from tokenlake.manifest import InputEntry, UnitRecord
from tokenlake.sources.batch import BadRecord, TextBatch, refuse
from tokenlake.sources.records import read_range
from tokenlake.storage import Layout, Store, open_store
from tokenlake.tokenizers import Encoder, TokenizerFiles, choose_engine

Progress = Callable[[dict[str, Any]], None]
Int64 = npt.NDArray[np.int64]

#: Documents and characters that the gate's probe takes from the start of a source, and of one document:
#: the reference encodes 4 MB/s, so this is a tenth of a second.
_PROBE_DOCUMENTS = 200
_PROBE_CHARACTERS = 1 << 18
_PROBE_CHARACTERS_EACH = 1 << 14


@final
class Workbench:
    """What a worker process keeps between jobs: tokenizers, which are slow to load."""

    def __init__(self) -> None:
        self._encoders: dict[tuple[Any, ...], Encoder] = {}

    def build_unit(self, job: UnitJob, progress: Progress) -> UnitRecord:
        """Build one unit and publish its parts; the caller publishes the record."""
        store = open_store(job.store)
        files = _tokenizer_files(store, job.tokenizer)
        settings = job.source.tokenizer
        key = (files.json_bytes, job.engine, settings.special_tokens_in_text, settings.add_special_tokens)
        if key not in self._encoders:
            self._encoders[key] = Encoder(
                files,
                engine=job.engine,
                special_tokens_in_text=settings.special_tokens_in_text,
                add_special_tokens=settings.add_special_tokens,
            )
        return _Unit(job, store, self._encoders[key], progress).build()

    def choose_engine(self, job: EngineJob) -> dict[str, Any]:
        """The gate's verdict for one source: ``{"engine", "reason"}``."""
        files = _tokenizer_files(open_store(job.store), job.tokenizer)
        settings = job.source.tokenizer
        sample = list(_first_documents(job))
        choice = choose_engine(files, settings.engine, settings.special_tokens_in_text, sample)
        return {"engine": choice.engine, "reason": choice.reason}


@final
class _Unit:
    """One unit while it is being built."""

    def __init__(self, job: UnitJob, store: Store, encoder: Encoder, progress: Progress) -> None:
        self._job = job
        self._encoder = encoder
        self._progress = progress
        self._counts: Counter[str] = Counter()
        self._reasons: dict[str, Counter[str]] = {
            name: Counter() for name in ("filtered", "quarantined", "normalized", "dropped")
        }
        self._names = [name for name, _ in job.source.splits]
        self._shares = [share for _, share in job.source.splits]
        layout = Layout(job.dataset, job.version)
        self._sinks = {
            name: open_sink(job, store, layout, name, encoder.prefix, encoder.suffix) for name in self._names
        }
        self._quarantine = QuarantineWriter(store, layout, job.unit)

    def build(self) -> UnitRecord:
        try:
            for part in self._job.ranges:
                for batch in read_range(part, self._job.source):
                    self._add(batch)
            parts = [entry for sink in self._sinks.values() for entry in sink.finish()]
        except BaseException:
            for sink in self._sinks.values():
                sink.discard()
            self._quarantine.discard()
            raise
        account = self._account()
        account.check(self._job.pack.seq_length if self._job.pack else None)
        return UnitRecord(
            unit=self._job.unit,
            fingerprint=self._job.fingerprint,
            source=self._job.source.name,
            inputs=tuple(_input_entry(part) for part in self._job.ranges),
            parts=tuple(parts),
            account=account,
            quarantine=self._quarantine.publish(),
            engine=self._job.engine,
            produced_by=produced_by(self._job.engine),
        )

    def _add(self, batch: TextBatch) -> None:
        """Carry one batch of documents through to the sinks."""
        before = self._tokens()
        self._counts["rows_read"] += batch.rows_read
        self._reasons["normalized"].update(batch.normalized)
        self._set_aside(batch.bad)
        text, position = self._leave_out(batch)
        for name, mask in self._by_split(batch.file.file_id, position):
            if mask is None:
                self._encode(name, batch, text, position)
            else:
                self._encode(name, batch, text.filter(pa.array(mask)), position[mask])
        self._progress(
            {"bytes": batch.bytes_read, "documents": batch.rows_read, "tokens": self._tokens() - before}
        )

    def _tokens(self) -> int:
        return self._counts["tokens"]

    def _set_aside(self, bad: tuple[BadRecord, ...]) -> None:
        """Quarantine bad records, and give up when the build cannot succeed any more."""
        self._quarantine.add(bad)
        for record in bad:
            self._reasons["quarantined"][record.reason] += 1
        total = self._reasons["quarantined"].total()
        if total > self._job.bad_budget:
            source = self._job.source
            first = self._quarantine.first
            raise TooManyBadRecordsError(
                f"source {source.name!r}: {total} bad records in one unit are more than "
                f"max_bad_fraction={source.max_bad_fraction} of all its records can be; the first: {first}. "
                "Mend the input, or raise max_bad_fraction if the loss is acceptable",
                source=source.name,
                bad=total,
            )

    def _leave_out(self, batch: TextBatch) -> tuple[pa.LargeStringArray, Int64]:
        """Drop the documents that `exclude` names."""
        excluded = self._job.excluded.get(batch.file.file_id)
        if excluded:
            mask = kept(batch.positions, excluded)
            left = len(mask) - int(mask.sum())
            if left:
                self._reasons["filtered"]["excluded"] += left
                return batch.text.filter(pa.array(mask)), batch.positions[mask]
        return batch.text, batch.positions

    def _by_split(self, file: int, position: Int64) -> Iterator[tuple[str, npt.NDArray[np.bool_] | None]]:
        """Each split with the mask of its documents, None for all."""
        if len(self._names) == 1:
            yield self._names[0], None
            return
        indices = split_indices(file, position, self._shares)
        for index, name in enumerate(self._names):
            mask = indices == index
            if mask.any():
                yield name, mask

    def _encode(self, split: str, batch: TextBatch, text: pa.LargeStringArray, position: Int64) -> None:
        """Encode documents and hand those that have tokens to the split's sink."""
        encoded = self._encoder.encode(text)
        if len(encoded.special_docs) and self._job.source.tokenizer.special_tokens_in_text == "fail":
            text, position = self._refuse_special(batch, text, position, encoded.special_docs)
            encoded = self._encoder.encode(text)
        self._counts["text_bytes"] += _text_bytes(text)
        self._counts["special_tokens_in_text"] += encoded.special_tokens
        self._counts["tokens"] += len(encoded.ids)
        ids, offsets = self._truncate(encoded.ids, encoded.offsets)
        full = np.diff(offsets) > 0
        empty = len(full) - int(full.sum())
        if empty:
            # An empty document has no ids, so the others' stay contiguous.
            self._reasons["filtered"]["empty"] += empty
            offsets = np.concatenate([offsets[:1], offsets[1:][full]])
            position = position[full]
        self._counts["kept"] += len(position)
        self._sinks[split].add(ids, offsets, batch.file.file_id, position)

    def _refuse_special(
        self, batch: TextBatch, text: pa.LargeStringArray, position: Int64, rows: Int64
    ) -> tuple[pa.LargeStringArray, Int64]:
        """With `special_tokens_in_text: fail`, a document that spells one out is a bad record."""
        bad = tuple(
            BadRecord(
                file=batch.file.path,
                file_id=batch.file.file_id,
                position=int(position[row]),
                line=None,
                reason="special_token_in_text",
                detail="the text spells out a special token of the tokenizer",
                raw=text[int(row)].as_py().encode()[: 1 << 16],
            )
            for row in rows
        )
        if self._job.source.on_bad_record == "fail":
            raise refuse(bad[0], batch.file.url)
        self._set_aside(bad)
        mask = np.ones(len(position), np.bool_)
        mask[rows] = False
        return text.filter(pa.array(mask)), position[mask]

    def _truncate(self, ids: npt.NDArray[np.int32], offsets: Int64) -> tuple[npt.NDArray[np.int32], Int64]:
        """With an explicit truncation, keep the first ``max_length`` tokens, special ones counted."""
        settings = self._job.source.tokenizer
        if not settings.truncation:
            return ids, offsets
        limit = max(0, settings.max_length - len(self._encoder.prefix) - len(self._encoder.suffix))
        lengths = np.diff(offsets)
        short = np.minimum(lengths, limit)
        dropped = int((lengths - short).sum())
        if not dropped:
            return ids, offsets
        self._reasons["dropped"]["truncated"] += dropped
        at = np.concatenate([[0], np.cumsum(short)])
        inside = np.arange(at[-1]) - np.repeat(at[:-1], short)
        return ids[np.repeat(offsets[:-1], short) + inside], at

    def _account(self) -> Account:
        """The unit's account; the sinks know what became of the tokens."""
        sums: Counter[str] = Counter()
        for sink in self._sinks.values():
            sums.update(sink.counts)
        counts = self._counts
        if self._job.pack and sums["content"] != counts["tokens"] - self._reasons["dropped"].total():
            raise AccountError(
                f"unit {self._job.unit}: {counts['tokens']} tokens drawn, {self._reasons['dropped'].total()} dropped, "
                f"but {sums['content']} packed; this is a bug, nothing was committed"
            )
        return Account(
            rows_read=counts["rows_read"],
            rows_skipped={},
            filtered=dict(self._reasons["filtered"]),
            quarantined=dict(self._reasons["quarantined"]),
            normalized=dict(self._reasons["normalized"]),
            kept=counts["kept"],
            expanded=0,
            documents=sums["documents"],
            tokens=counts["tokens"],
            content_packed=sums["content"],
            dropped=dict(self._reasons["dropped"]),
            bos=sums["bos"],
            eos=sums["eos"],
            eos_existing=sums["eos_existing"],
            pad=sums["pad"],
            sequences=sums["sequences"],
            slots=sums["slots"],
            special_tokens_in_text=counts["special_tokens_in_text"],
            text_bytes=counts["text_bytes"],
        )


def _text_bytes(text: pa.LargeStringArray) -> int:
    """Bytes of UTF-8 in all strings."""
    if not len(text):
        return 0
    buffer: Any = text.buffers()[1]
    offsets = np.frombuffer(buffer, np.int64)[text.offset : text.offset + len(text) + 1]
    return int(offsets[-1] - offsets[0])


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


def _tokenizer_files(store: Store, prefix: str) -> TokenizerFiles:
    return TokenizerFiles.read(store.local_path(prefix))


def _first_documents(job: EngineJob) -> Iterator[str]:
    """The beginnings of a source's first documents, up to 200; bad records are not our concern here."""
    size = count = 0
    for part in job.ranges[:1]:
        for batch in read_range(part, job.source):
            for value in batch.text:
                text: str = value.as_py()[:_PROBE_CHARACTERS_EACH]
                size += len(text)
                count += 1
                yield text
                if count >= _PROBE_DOCUMENTS or size >= _PROBE_CHARACTERS:
                    return
