"""BOS and EOS of rendered documents: a template spells some of them itself, so each document is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from tokenlake.arrays import Bools, Int32, Int64
from tokenlake.config.resolved import ResolvedPrompt
from tokenlake.etl.job import UnitJob
from tokenlake.packing.loss_mask import learned, marked, plain
from tokenlake.ragged import Ragged


@final
@dataclass(frozen=True, slots=True)
class Finished:
    """Whole documents: ids (marked), offsets, and how many BOS and EOS were put around them."""

    ids: Int32
    offsets: Int64
    bos: int
    eos: int
    eos_existing: int


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
    def of(cls, job: UnitJob, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> Finish:
        """Return what the documents of a job begin and end with, of what the post-processor puts around them."""
        return cls.around(job.source.texts.prompt, job.eos_id, prefix, suffix, packed=job.pack is not None)

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
        """Return the same of documents that are prompts, or are not (None), and are `packed` or not."""
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
        none = np.zeros(len(offsets) - 1, np.bool_)
        documents = Ragged(plain(ids), offsets)
        head = ~documents.begins_with(self.prefix) if self.prefix else none
        tail = ~documents.ends_with(self.suffix) if self.suffix else none
        return head, tail

    def apply(self, ids: Int32, offsets: Int64, ends: Bools | None = None) -> Finished:
        """Put around each of n documents what it lacks; none may be empty.

        An EOS put after a document bears loss where the document's last token does (of prompts: where any does): who
        learns the last word of an answer must learn to stop after it, but not where the answer was cut off.

        Args:
            ends: bool[n], False for a document whose end was cut away; None where all are whole.
        """
        size = np.diff(offsets)
        head, tail = self.lacks(ids, offsets)
        closed = plain(ids[offsets[1:] - 1]) == self.eos_id
        if self.suffix and self.eos_id is not None:
            closed = np.where(tail, self.suffix[-1] == self.eos_id, closed)
        last = ~closed if self.eos_id is not None else np.zeros(len(size), np.bool_)
        bos, eos = int(head.sum()) * len(self.prefix), int(tail.sum()) * len(self.suffix) + int(last.sum())
        if not bos and not eos:
            return Finished(ids, offsets, 0, 0, self._existing(tail, last))
        bears_loss = self._learned(ids, offsets)
        mark = bears_loss if ends is None else bears_loss & ends
        documents = Ragged(ids[offsets[0] : offsets[-1]], offsets - offsets[0])
        parts = [Ragged.alike(self.prefix, head), documents, _after(self.suffix, tail, mark)]
        if self.eos_id is not None:
            parts.append(_after((self.eos_id,), last, mark))
        whole = Ragged.joined(parts)
        return Finished(whole.ids, whole.offsets, bos, eos, self._existing(tail, last))

    def _existing(self, tail: Bools, last: Bools) -> int:
        """Return how many documents ended in EOS already, of which some need one."""
        if self.prompts:
            return int((~tail).sum()) if self.suffix else 0
        return int((~last).sum()) if self.eos_id is not None else 0

    def _learned(self, ids: Int32, offsets: Int64) -> Bools:
        """Return after which documents (none empty) an EOS bears loss."""
        if self.prompts:
            return np.logical_or.reduceat(learned(ids[: offsets[-1]]), offsets[:-1])
        return learned(ids[offsets[1:] - 1])


def _after(run: tuple[int, ...], there: Bools, mark: Bools) -> Ragged:
    """Return `run` behind the documents where `there` is true, bearing loss where `mark` is: bool[n] each."""
    put = Ragged.alike(run, there)
    return Ragged(marked(put.ids, np.repeat(mark[there], len(run))), put.offsets)
