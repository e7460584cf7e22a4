"""The ends of documents: BOS before the first id and EOS after the last.

A template spells some of them itself, so that each rendered document is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from tokenlake.arrays import Bools, Int32, Int64, Ragged
from tokenlake.config.resolved import ResolvedPrompt
from tokenlake.etl.unit.fitted import Fitted
from tokenlake.packing.segments import learned, marked, plain


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
