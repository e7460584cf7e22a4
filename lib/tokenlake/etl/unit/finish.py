"""The ends of documents: BOS before the first id and EOS after the last.

A template spells some of them itself, so that each rendered document is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from tokenlake.base.arrays import Bools, Int32, Int64, Ragged
from tokenlake.config.resolved import ResolvedPrompt
from tokenlake.etl.packing.loss_marks import learned, marked, plain
from tokenlake.etl.unit.fitted import Fitted


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
        documents = Ragged(ids, offsets)
        count = len(offsets) - 1
        # The ends alone are unmarked and compared: all ids would be copied.
        heads = documents.cut(np.full(count, len(self.prefix)))
        tails = documents.end(np.full(count, len(self.suffix)))
        has_prefix = Ragged(plain(heads.ids), heads.offsets).begins_with(self.prefix)
        has_suffix = Ragged(plain(tails.ids), tails.offsets).ends_with(self.suffix)
        return ~has_prefix, ~has_suffix

    def apply(self, documents: Fitted) -> Fitted:
        """Put around each of n documents what it lacks; none may be empty.

        An EOS put after a document bears loss where the document's last token does (of prompts: where any does): who
        learns the last word of an answer must learn to stop after it, but not where the answer was cut off.
        """
        ids = documents.ids
        offsets = documents.offsets
        # 1. What each document lacks.
        lacks_prefix, lacks_suffix = self.lacks(ids, offsets)
        lacks_eos = np.zeros(len(offsets) - 1, np.bool_)
        if self.eos_id is not None:
            lacks_eos = plain(ids[offsets[1:] - 1]) != self.eos_id
            if self.suffix:  # a suffix that is put there may end in EOS
                lacks_eos = np.where(lacks_suffix, self.suffix[-1] != self.eos_id, lacks_eos)
        existing = 0  # documents that end in EOS without one being put there
        if self.prompts:
            existing = int((~lacks_suffix).sum()) if self.suffix else 0
        elif self.eos_id is not None:
            existing = int((~lacks_eos).sum())
        bos = int(lacks_prefix.sum()) * len(self.prefix)
        eos = int(lacks_suffix.sum()) * len(self.suffix) + int(lacks_eos.sum())
        if not bos and not eos:
            return replace(documents, eos_existing=existing)
        # 2. Whether what is put after a document is learned.
        if self.prompts:
            is_learned = np.logical_or.reduceat(learned(ids[: offsets[-1]]), offsets[:-1])
        else:
            is_learned = learned(ids[offsets[1:] - 1])
        if documents.ends is not None:
            is_learned = is_learned & documents.ends
        # 3. Join prefix, document, suffix and EOS.
        inside = Ragged(ids[offsets[0] : offsets[-1]], offsets - offsets[0])
        parts = [
            Ragged.alike(self.prefix, lacks_prefix),
            inside,
            _after(self.suffix, lacks_suffix, is_learned),
        ]
        if self.eos_id is not None:
            parts.append(_after((self.eos_id,), lacks_eos, is_learned))
        whole = Ragged.joined(parts)
        return replace(
            documents, ids=whole.ids, offsets=whole.offsets, bos=bos, eos=eos, eos_existing=existing
        )


def _after(run: tuple[int, ...], is_put: Bools, is_learned: Bools) -> Ragged:
    """Return `run` for the documents where `is_put` is true, as learned where `is_learned` is: bool[n] each."""
    runs = Ragged.alike(run, is_put)
    return Ragged(marked(runs.ids, np.repeat(is_learned[is_put], len(run))), runs.offsets)
