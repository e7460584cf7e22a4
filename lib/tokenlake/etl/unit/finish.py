"""The ends of rendered documents: BOS before the first id and EOS after the last.

A template may spell some of them itself, so that the ends of each rendered document are
looked at.

Example: prefix (1,), suffix (2,), and the documents 1 7 and 7 2. The first one lacks
the suffix, the second one the prefix, and both become 1 7 2.
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
    """Ids that every document must begin and end with.

    Attributes:
        prefix: Ids that the tokenizer's post-processor puts before a document (BOS).
        suffix: Ids that the tokenizer's post-processor puts after a document (EOS).
        eos_id: Id that a packed document ends with beyond that; None if documents are
            not packed, and for prompts, whose EOS is the end of `suffix`.
        prompts: True for prompts: an EOS put after a document counts toward the loss if
            any of its tokens does. More of the template may follow an answer, and a
            model that learns the answer must learn to stop.
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
        """Return the ids that documents of a source begin and end with.

        Args:
            prompt: Options of prompts; None if documents are no prompts.
            eos_id: Id of EOS.
            prefix: Ids that the post-processor puts before a document.
            suffix: Ids that the post-processor puts after a document.
            packed: True if documents are packed.
        """
        # A prompt ends with its answer: EOS of packing would be a second one.
        packing_eos = eos_id if packed else None
        if prompt is None:
            return cls(prefix, suffix, packing_eos)
        if not prompt.add_bos:
            prefix = ()
        if not prompt.add_eos:
            return cls(prefix, (), None, prompts=True)
        if prompt.format_type == "chat":  # the template decides how an answer ends
            return cls(prefix, suffix, packing_eos)
        if suffix[-1:] != (eos_id,):
            suffix = (*suffix, eos_id)
        return cls(prefix, suffix, None, prompts=True)

    def lacks(self, ids: Int32, offsets: Int64) -> tuple[Bools, Bools]:
        """Return which documents lack the prefix, and which lack the suffix, bool[n].

        Args:
            ids: Ids of all documents, at least one.
            offsets: Beginnings of the documents in `ids`, and the end of the last one,
                int64[n + 1].
        """
        documents = Ragged(ids, offsets)
        document_count = len(offsets) - 1
        # The loss marks of the ends alone are removed: otherwise all ids would be
        # copied.
        heads = documents.cut(np.full(document_count, len(self.prefix)))
        tails = documents.end(np.full(document_count, len(self.suffix)))
        has_prefix = Ragged(plain(heads.ids), heads.offsets).begins_with(self.prefix)
        has_suffix = Ragged(plain(tails.ids), tails.offsets).ends_with(self.suffix)
        return ~has_prefix, ~has_suffix

    def apply(self, documents: Fitted) -> Fitted:
        """Return documents with the ids that they lack; none may be empty.

        An EOS put after a document counts toward the loss if the document's last token
        does (for prompts: if any token does): a model that learns the last word of an
        answer must learn to stop after it, but not where the answer was cut off.
        """
        token_ids = documents.ids
        offsets = documents.offsets
        # 1. Find the ids that each document lacks.
        lacks_prefix, lacks_suffix = self.lacks(token_ids, offsets)
        lacks_eos = self._lacks_eos(token_ids, offsets, lacks_suffix)
        existing = self._existing_eos(lacks_suffix, lacks_eos)
        bos_count = int(lacks_prefix.sum()) * len(self.prefix)
        suffix_ids = int(lacks_suffix.sum()) * len(self.suffix)
        eos_count = suffix_ids + int(lacks_eos.sum())
        if not bos_count and not eos_count:
            return replace(documents, eos_existing=existing)
        # 2. Decide whether the ids that are put after a document count toward the loss.
        if self.prompts:
            is_learned_id = learned(token_ids[: offsets[-1]])
            is_learned = np.logical_or.reduceat(is_learned_id, offsets[:-1])
        else:
            is_learned = learned(token_ids[offsets[1:] - 1])
        # A document that was cut off has no end to be learned.
        if documents.ends is not None:
            is_learned = is_learned & documents.ends
        # 3. Join prefix, document, suffix and EOS.
        runs = [
            Ragged.alike(self.prefix, lacks_prefix),
            Ragged(token_ids[offsets[0] : offsets[-1]], offsets - offsets[0]),
            _appended(self.suffix, lacks_suffix, is_learned),
        ]
        if self.eos_id is not None:
            runs.append(_appended((self.eos_id,), lacks_eos, is_learned))
        finished = Ragged.joined(runs)
        return replace(
            documents,
            ids=finished.ids,
            offsets=finished.offsets,
            bos=bos_count,
            eos=eos_count,
            eos_existing=existing,
        )

    def _lacks_eos(self, ids: Int32, offsets: Int64, lacks_suffix: Bools) -> Bools:
        """Return True for the documents that lack the EOS of packing, bool[n]."""
        if self.eos_id is None:
            return np.zeros(len(offsets) - 1, np.bool_)
        lacks_eos = plain(ids[offsets[1:] - 1]) != self.eos_id
        if self.suffix:  # a suffix that is put after a document may end with EOS
            lacks_eos = np.where(
                lacks_suffix, self.suffix[-1] != self.eos_id, lacks_eos
            )
        return lacks_eos

    def _existing_eos(self, lacks_suffix: Bools, lacks_eos: Bools) -> int:
        """Return the number of documents with an EOS where none is added.

        Packing, or the prompt, would add it.
        """
        if self.prompts:
            if not self.suffix:
                return 0
            return int((~lacks_suffix).sum())
        if self.eos_id is None:
            return 0
        return int((~lacks_eos).sum())


def _appended(run: tuple[int, ...], is_put: Bools, is_learned: Bools) -> Ragged:
    """Return `run` for some of n documents, marked with the loss mask.

    Args:
        run: Ids to append.
        is_put: True for the documents that get them, bool[n].
        is_learned: True for the documents in which they count toward the loss, bool[n].
    """
    runs = Ragged.alike(run, is_put)
    is_learned_id = np.repeat(is_learned[is_put], len(run))
    return Ragged(marked(runs.ids, is_learned_id), runs.offsets)
