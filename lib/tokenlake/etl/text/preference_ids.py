"""Ids of texts become the ids of a prompt and of its answers, and the columns that a
trainer reads.

The law: the ids of a prompt followed by the ids of an answer are those of the whole text, encoded at once. So no piece
of text is lost, doubled or spelled in a way in which the tokenizer would never spell it. Where a token of the whole
text lies across the border, the border moves back to the last place up to which the ids of the prompt alone, and of
the prompt with each answer, are equal. The chosen and the rejected answer always follow the same prompt ids, which are
a beginning of ``encode(prompt)``. Prompts whose border moved are counted. For example::

    encode("A: ")     A:  _            the prompt alone
    encode("A: yes")  A:  _yes         the last token of the prompt is not a token of the whole text
    border                1            prompt [A:], answer [_yes]

A document is joined in these steps:

1. Split the texts into parts at the border.
2. Cut a prompt that is too long at its beginning.
3. Put BOS before the prompt and EOS after each answer, where they lack it.
4. Cut answers at their ends, and leave documents out, as the policy of long documents
   says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import (
    Bools,
    Int32,
    Int64,
    Ragged,
    common_prefix,
    dtype_of,
    total_lengths,
)
from tokenlake.base.columns import (
    IGNORED,
    Method,
    Part,
    TrainerColumn,
    columns_for,
    parts_of,
)
from tokenlake.config.resolved import ResolvedPreference
from tokenlake.runtime.schema import preference_fields

MOVED: Final = "prompt_border_moved"
"""Name under which documents are counted whose prompt gave ids to its answers."""

_ARROW: Final[Any] = pa


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The m documents that are kept of n.

    Attributes:
        parts: Runs of ids of each part, m runs each; BOS and EOS included.
        origin: int64[m], ascending: index of each document among the n.
        tokens: Number of ids of all n documents without BOS and EOS that we added; each
            part counted once.
        bos: Number of ids of BOS that we added and that are kept.
        eos: Number of ids of EOS that we added and that are kept.
        eos_existing: Number of kept documents whose answers all had an EOS.
        moved: Number of kept documents whose prompt's border moved.
        dropped: Number of ids that are not kept, by reason.
        left_out: int64[k] by reason: indices of the documents that are not kept.
    """

    parts: dict[Part, Ragged]
    origin: Int64
    tokens: int
    bos: int
    eos: int
    eos_existing: int
    moved: int
    dropped: dict[str, int]
    left_out: dict[str, Int64]

    @property
    def lengths(self) -> Int64:
        """int64[m]: number of ids of each document, each part counted once."""
        return total_lengths(list(self.parts.values()))


@final
@dataclass(frozen=True, slots=True)
class Joiner:
    """Joins the texts of documents for one training method.

    Attributes:
        method: Training method.
        prefix: Ids (BOS) that a prompt, or a text without one, begins with.
        eos_id: Id that an answer ends with unless it holds one: a template may end a
            turn with it and a line break.
        max_length: Maximum number of ids of a prompt with an answer.
        long_documents: Treatment of longer documents. ``keep`` keeps them; ``truncate``
            cuts the ends of answers and leaves out documents whose prompt leaves no
            room for an answer (it cuts no prompt); ``drop`` leaves them out.
        max_prompt: Maximum number of ids of a prompt, which loses its beginning, but
            not BOS; None: no limit.
        max_completion: Maximum number of ids of an answer, which loses its end; None:
            no limit.
    """

    method: Method
    prefix: tuple[int, ...]
    eos_id: int
    max_length: int
    long_documents: str
    max_prompt: int | None = None
    max_completion: int | None = None

    def join(self, ids: Int32, offsets: Int64) -> Joined:
        """Join the texts of n documents.

        Args:
            ids: int32[total]: ids of all texts; the texts of a document lie together.
            offsets: int64[n * texts + 1]: index of the first id of each text.
        """
        parts, has_moved = _split_at_border(self.method, Ragged(ids, offsets))
        content_lengths = total_lengths(list(parts.values()))
        count = len(content_lengths)
        if "prompt" in parts:
            parts["prompt"] = self._cut_prompt(parts["prompt"])
        # BOS and EOS, where the texts lack them.
        lacks_bos = self._lacks_bos(parts)
        lacks_eos = self._lacks_eos(parts)
        closed: dict[Part, Ragged] = {}
        for name, part in parts.items():
            closed[name] = self._closed(part, lacks_bos.get(name), lacks_eos.get(name))
        # The policy of long documents.
        limited = self._limit_answers(closed)
        fitted = self._truncate(limited)
        left_out = self._left_out(limited, fitted)
        is_kept = np.ones(count, np.bool_)
        for rows in left_out.values():
            is_kept[rows] = False
        kept_parts: dict[Part, Ragged] = {
            name: part.select(is_kept) for name, part in fitted.items()
        }
        # The counts. An EOS that we added is gone where its answer was cut.
        bos = 0
        for is_added in lacks_bos.values():
            bos += int(is_added[is_kept].sum()) * len(self.prefix)
        eos = 0
        has_own_eos = np.full(count, bool(lacks_eos))
        for name, is_added in lacks_eos.items():
            is_whole = fitted[name].lengths == closed[name].lengths
            eos += int((is_added & is_whole)[is_kept].sum())
            has_own_eos &= ~is_added
        dropped = {
            reason: int(content_lengths[rows].sum())
            for reason, rows in left_out.items()
        }
        total = int(content_lengths.sum())
        written = sum(len(part.ids) for part in kept_parts.values()) - eos - bos
        truncated = total - written - sum(dropped.values())
        if truncated:
            dropped["truncated"] = truncated
        return Joined(
            parts=kept_parts,
            origin=np.flatnonzero(is_kept),
            tokens=total,
            bos=bos,
            eos=eos,
            eos_existing=int(has_own_eos[is_kept].sum()),
            moved=int(has_moved[is_kept].sum()),
            dropped=dropped,
            left_out=left_out,
        )

    def _cut_prompt(self, prompt: Ragged) -> Ragged:
        """Return prompts of which long ones have lost their beginnings; BOS will be
        put before them again.
        """
        if self.max_prompt is None:
            return prompt
        prefix_size = len(self.prefix)
        added = np.where(prompt.begins_with(self.prefix), 0, prefix_size)
        is_long = prompt.lengths + added > self.max_prompt
        room = max(self.max_prompt - prefix_size, 0)
        return prompt.end(np.where(is_long, room, prompt.lengths))

    def _lacks_bos(self, parts: dict[Part, Ragged]) -> dict[Part, Bools]:
        """Return which runs get BOS, for the parts that begin a text: the prompt, or
        all where there is none.
        """
        if not self.prefix:
            return {}
        beginnings: tuple[Part, ...] = (
            ("prompt",) if "prompt" in parts else tuple(parts)
        )
        return {name: ~parts[name].begins_with(self.prefix) for name in beginnings}

    def _lacks_eos(self, parts: dict[Part, Ragged]) -> dict[Part, Bools]:
        """Return which answers get EOS."""
        return {
            name: ~part.holds(self.eos_id)
            for name, part in parts.items()
            if name != "prompt"
        }

    def _closed(
        self, part: Ragged, lacks_bos: Bools | None, lacks_eos: Bools | None
    ) -> Ragged:
        """Return a part with BOS before and EOS after the runs that lack them; None:
        that is not for this part.
        """
        runs: list[Ragged] = []
        if lacks_bos is not None:
            runs.append(Ragged.alike(self.prefix, lacks_bos))
        runs.append(part)
        if lacks_eos is not None:
            runs.append(Ragged.alike((self.eos_id,), lacks_eos))
        return Ragged.joined(runs)

    def _limit_answers(self, parts: dict[Part, Ragged]) -> dict[Part, Ragged]:
        """Return the parts with answers of at most `max_completion` ids."""
        if self.max_completion is None:
            return parts
        limited = dict(parts)
        for name, part in parts.items():
            if name != "prompt":
                limited[name] = part.cut(
                    np.full(len(part), self.max_completion, np.int64)
                )
        return limited

    def _truncate(self, parts: dict[Part, Ragged]) -> dict[Part, Ragged]:
        """Return the parts with answers that fit behind their prompts, where the
        policy is to cut them.
        """
        if self.long_documents != "truncate":
            return parts
        truncated = dict(parts)
        for name, part in parts.items():
            if name != "prompt":
                room = np.full(len(part), self.max_length, np.int64)
                if "prompt" in parts:
                    room -= parts["prompt"].lengths
                truncated[name] = part.cut(np.maximum(room, 0))
        return truncated

    def _left_out(
        self, limited: dict[Part, Ragged], fitted: dict[Part, Ragged]
    ) -> dict[str, Int64]:
        """Return the documents that are not kept, by reason; the first reason of a
        document counts.

        Args:
            limited: Parts before the policy of long documents has cut any.
            fitted: Parts after that.
        """
        count = len(next(iter(limited.values())))
        prompt_lengths = np.zeros(count, np.int64)
        longest_answers = np.zeros(count, np.int64)
        is_empty = np.zeros(count, np.bool_)
        for name, part in limited.items():
            is_empty |= part.lengths == 0
            if name == "prompt":
                prompt_lengths = part.lengths
            else:
                longest_answers = np.maximum(longest_answers, part.lengths)
        has_answers = limited.keys() != {"prompt"}
        faults: dict[str, Bools] = {"empty": is_empty}
        if self.long_documents != "keep":
            # An answer needs room for at least one id.
            room = self.max_length - prompt_lengths
            faults["prompt_too_long"] = room <= 0 if has_answers else room < 0
        if self.long_documents == "drop" and has_answers:
            faults["too_long"] = prompt_lengths + longest_answers > self.max_length
        if "rejected" in fitted:
            faults["equal_answers"] = _are_equal(fitted["chosen"], fitted["rejected"])
        left_out: dict[str, Int64] = {}
        is_counted = np.zeros(count, np.bool_)
        for reason, is_faulty in faults.items():
            rows = np.flatnonzero(is_faulty & ~is_counted)
            if len(rows):
                left_out[reason] = rows
            is_counted |= is_faulty
        return left_out


def _are_equal(left: Ragged, right: Ragged) -> Bools:
    """Return which runs of two sequences are equal: bool[n]."""
    is_prefix = common_prefix(left, right) == left.lengths
    return is_prefix & (left.lengths == right.lengths)


def _split_at_border(method: Method, texts: Ragged) -> tuple[dict[Part, Ragged], Bools]:
    """Return the parts of documents without BOS and EOS, and which prompts' borders
    moved: bool[n].
    """
    parts = parts_of(method)
    texts_of_document = {"grpo": 1, "reward": 2}.get(method, len(parts))
    begins = texts.offsets[:-1]
    ends = texts.offsets[1:]
    # The first texts of all documents, their second texts, and so on.
    columns: list[Ragged] = []
    for number in range(texts_of_document):
        every_document = slice(number, None, texts_of_document)
        columns.append(
            Ragged.taken(texts.ids, begins[every_document], ends[every_document])
        )
    if method in ("grpo", "reward"):
        return dict(zip(parts, columns, strict=True)), np.zeros(
            len(columns[0]), np.bool_
        )
    prompt = columns[0]
    whole_texts = columns[1:]
    # The border is the last place up to which the prompt and all whole texts are equal.
    border = np.minimum.reduce(
        [common_prefix(prompt, whole_text) for whole_text in whole_texts]
    )
    split: dict[Part, Ragged] = {"prompt": prompt.cut(border)}
    for part, text in zip(parts[1:], whole_texts, strict=True):
        split[part] = Ragged.taken(
            text.ids, text.offsets[:-1] + border, text.offsets[1:]
        )
    return split, border < prompt.lengths


# ---- columns
# -----------------------------------------------------------------------------------------------


def preference_batch(
    settings: ResolvedPreference,
    joined: Joined,
    label: Bools | None,
    text: pa.LargeStringArray,
) -> pa.RecordBatch:
    """Return the rows of `joined` as the columns of the trainer of `settings`.

    Args:
        settings: Section ``preference``.
        joined: The m documents that are kept of n.
        label: bool[n]: label of each document; needed for judged answers.
        text: large_string: the first n of them are the prompts; needed for prompts
            alone.
    """
    fields = preference_fields(settings.method, settings.trainer)
    arrays: list[Any] = []
    for column, field in zip(
        columns_for(settings.method, settings.trainer), fields, strict=True
    ):
        if column.holds == "label":
            assert label is not None
            arrays.append(_ARROW.array(label[joined.origin]))
        elif column.holds == "text":
            arrays.append(text.take(_ARROW.array(joined.origin)))
        else:
            arrays.append(_list_array(_runs(column, joined.parts), field.type))
    return _ARROW.RecordBatch.from_arrays(arrays, schema=_ARROW.schema(fields))


def _list_array(runs: Ragged, kind: Any) -> Any:
    """Return runs as an Arrow array of lists of a type."""
    values = _ARROW.array(runs.ids.astype(dtype_of(kind.value_type), copy=False))
    offsets = _ARROW.array(runs.offsets.astype(np.int32))
    return _ARROW.ListArray.from_arrays(offsets, values, type=kind)


def _runs(column: TrainerColumn, parts: dict[Part, Ragged]) -> Ragged:
    """Return the values of a column: ids of its parts, one after the other, or their
    labels or mask.
    """
    runs = [parts[part] for part in column.parts]
    if column.holds == "mask":
        return Ragged.filled(1, total_lengths(runs))
    if column.holds == "labels":
        # Only the last part, the answer, is learned.
        runs = [*(Ragged.filled(IGNORED, run.lengths) for run in runs[:-1]), runs[-1]]
    return Ragged.joined(runs)
