"""Ids of texts become the ids of a prompt and of its answers, and a trainer's columns.

The law: the ids of a prompt followed by the ids of an answer are those of the whole
text, encoded at once. So no piece of text is lost, doubled or spelled in a way in which
the tokenizer would never spell it. Where a token of the whole text lies across the
border, the border moves back to the last place up to which the ids of the prompt alone,
and of the prompt with each answer, are equal. The chosen and the rejected answer always
follow the same prompt ids, which are a beginning of ``encode(prompt)``. Prompts whose
border moved are counted. For example::

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

from collections.abc import Mapping
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
        # 1. Parts without BOS and EOS, and the beginnings of prompts that are cut away.
        parts, has_moved = _split_at_border(self.method, Ragged(ids, offsets))
        content_lengths = total_lengths(list(parts.values()))
        document_count = len(content_lengths)
        if "prompt" in parts:
            parts["prompt"] = self._cut_prompt(parts["prompt"])
        # 2. BOS and EOS, where the texts lack them.
        lacks_bos = self._lacks_bos(parts)
        lacks_eos = self._lacks_eos(parts)
        with_affixes: dict[Part, Ragged] = {}
        for name, runs in parts.items():
            with_affixes[name] = self._closed(
                runs, lacks_bos.get(name), lacks_eos.get(name)
            )
        # 3. The limit of answers, then the policy of long documents.
        limited_answers = self._limit_answers(with_affixes)
        truncated_parts = self._truncate(limited_answers)
        left_out = self._left_out(limited_answers, truncated_parts)
        is_kept = np.ones(document_count, np.bool_)
        for document_indices in left_out.values():
            is_kept[document_indices] = False
        all_tokens = 0
        remaining_parts: dict[Part, Ragged] = {}
        for name, runs in truncated_parts.items():
            remaining_parts[name] = runs.select(is_kept)
            all_tokens += len(remaining_parts[name].ids)
        # 4. The counts. An EOS that we added is gone where its answer was cut.
        bos_count = 0
        for is_added in lacks_bos.values():
            bos_count += int(is_added[is_kept].sum()) * len(self.prefix)
        # A document has an EOS of its own where none of its answers got one from us.
        eos_count = 0
        has_answers = bool(lacks_eos)
        has_own_eos = np.full(document_count, has_answers)
        for name, is_added in lacks_eos.items():
            is_whole = truncated_parts[name].lengths == with_affixes[name].lengths
            eos_count += int((is_added & is_whole)[is_kept].sum())
            has_own_eos &= ~is_added
        written_tokens = all_tokens - eos_count - bos_count
        return Joined(
            parts=remaining_parts,
            origin=np.flatnonzero(is_kept),
            tokens=int(content_lengths.sum()),
            bos=bos_count,
            eos=eos_count,
            eos_existing=int(has_own_eos[is_kept].sum()),
            moved=int(has_moved[is_kept].sum()),
            dropped=_dropped_ids(content_lengths, left_out, written_tokens),
            left_out=left_out,
        )

    def _cut_prompt(self, prompt: Ragged) -> Ragged:
        """Return prompts of which long ones have lost their beginnings.

        BOS will be put before them again.
        """
        if self.max_prompt is None:
            return prompt
        # A prompt that begins with BOS itself gets none, so that its own counts in its
        # length.
        prefix_size = len(self.prefix)
        added = np.where(prompt.begins_with(self.prefix), 0, prefix_size)
        is_long = prompt.lengths + added > self.max_prompt
        room = max(self.max_prompt - prefix_size, 0)
        return prompt.end(np.where(is_long, room, prompt.lengths))

    def _lacks_bos(self, parts: dict[Part, Ragged]) -> dict[Part, Bools]:
        """Return which runs get BOS, for the parts that begin a text.

        These are the prompt, or all parts where there is none.
        """
        if not self.prefix:
            return {}
        beginnings: tuple[Part, ...] = tuple(parts)
        if "prompt" in parts:
            beginnings = ("prompt",)
        return {name: ~parts[name].begins_with(self.prefix) for name in beginnings}

    def _lacks_eos(self, parts: dict[Part, Ragged]) -> dict[Part, Bools]:
        """Return which answers get EOS."""
        lacks_eos: dict[Part, Bools] = {}
        for name, runs in parts.items():
            if name != "prompt":
                lacks_eos[name] = ~runs.holds(self.eos_id)
        return lacks_eos

    def _closed(
        self, part: Ragged, lacks_bos: Bools | None, lacks_eos: Bools | None
    ) -> Ragged:
        """Return a part with BOS before and EOS after the runs that lack them.

        Args:
            part: Runs of the part.
            lacks_bos: Runs that get BOS, bool[n]; None: none of this part.
            lacks_eos: Runs that get EOS, bool[n]; None: none of this part.
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
        for name, runs in parts.items():
            if name != "prompt":
                limits = np.full(len(runs), self.max_completion, np.int64)
                limited[name] = runs.cut(limits)
        return limited

    def _truncate(self, parts: dict[Part, Ragged]) -> dict[Part, Ragged]:
        """Return the parts with answers that fit behind their prompts.

        Answers are cut only where that is the policy.
        """
        if self.long_documents != "truncate":
            return parts
        truncated = dict(parts)
        for name, runs in parts.items():
            if name == "prompt":
                continue
            # A prompt that fills the row leaves no room; its document is left out later.
            room = np.full(len(runs), self.max_length, np.int64)
            if "prompt" in parts:
                room -= parts["prompt"].lengths
            truncated[name] = runs.cut(np.maximum(room, 0))
        return truncated

    def _left_out(
        self, limited: dict[Part, Ragged], fitted: dict[Part, Ragged]
    ) -> dict[str, Int64]:
        """Return the documents that are not kept, by their first reason.

        Args:
            limited: Parts before the policy of long documents has cut any.
            fitted: Parts after that.
        """
        # 1. Lengths, and documents with an empty part.
        document_count = len(next(iter(limited.values())))
        prompt_lengths = np.zeros(document_count, np.int64)
        longest_answers = np.zeros(document_count, np.int64)
        is_empty = np.zeros(document_count, np.bool_)
        for name, runs in limited.items():
            is_empty |= runs.lengths == 0
            if name == "prompt":
                prompt_lengths = runs.lengths
            else:
                longest_answers = np.maximum(longest_answers, runs.lengths)
        # 2. All faults of each document, in the order in which they count.
        has_answers = limited.keys() != {"prompt"}
        faults: dict[str, Bools] = {"empty": is_empty}
        if self.long_documents != "keep":
            # An answer needs room for at least one id.
            room = self.max_length - prompt_lengths
            faults["prompt_too_long"] = room <= 0 if has_answers else room < 0
        if self.long_documents == "drop" and has_answers:
            faults["too_long"] = prompt_lengths + longest_answers > self.max_length
        if "rejected" in fitted:
            # Cuts can make two answers equal, of which no preference can be learned.
            faults["equal_answers"] = _are_equal(fitted["chosen"], fitted["rejected"])
        # 3. The first fault of each document.
        left_out: dict[str, Int64] = {}
        is_counted = np.zeros(document_count, np.bool_)
        for reason, is_faulty in faults.items():
            document_indices = np.flatnonzero(is_faulty & ~is_counted)
            if len(document_indices):
                left_out[reason] = document_indices
            is_counted |= is_faulty
        return left_out


def _are_equal(left: Ragged, right: Ragged) -> Bools:
    """Return which runs of two sequences are equal: bool[n]."""
    is_prefix = common_prefix(left, right) == left.lengths
    return is_prefix & (left.lengths == right.lengths)


def _split_at_border(method: Method, texts: Ragged) -> tuple[dict[Part, Ragged], Bools]:
    """Return the parts of documents without BOS and EOS, and which borders moved.

    Args:
        method: Training method.
        texts: Ids of the texts of n documents, which lie together.

    Returns:
        Parts, n runs each; and whether the border of each prompt moved, bool[n].
    """
    parts = parts_of(method)
    texts_per_document = {"grpo": 1, "reward": 2}.get(method, len(parts))
    begins = texts.offsets[:-1]
    ends = texts.offsets[1:]
    # 1. The first texts of all documents, their second texts, and so on.
    columns: list[Ragged] = []
    for text_number in range(texts_per_document):
        every_document = slice(text_number, None, texts_per_document)
        columns.append(
            Ragged.taken(texts.ids, begins[every_document], ends[every_document])
        )
    # 2. Prompts alone, and whole texts, have no border.
    if method in ("grpo", "reward"):
        has_moved = np.zeros(len(columns[0]), np.bool_)
        return dict(zip(parts, columns, strict=True)), has_moved
    # 3. The border is the last place up to which the prompt and all whole texts are
    #    equal.
    prompt = columns[0]
    whole_texts = columns[1:]
    shared_lengths = [common_prefix(prompt, whole_text) for whole_text in whole_texts]
    border = np.minimum.reduce(shared_lengths)
    split_parts: dict[Part, Ragged] = {"prompt": prompt.cut(border)}
    for name, whole_text in zip(parts[1:], whole_texts, strict=True):
        answer_begins = whole_text.offsets[:-1] + border
        split_parts[name] = Ragged.taken(
            whole_text.ids, answer_begins, whole_text.offsets[1:]
        )
    return split_parts, border < prompt.lengths


def _dropped_ids(
    content_lengths: Int64, left_out: Mapping[str, Int64], written_tokens: int
) -> dict[str, int]:
    """Return the number of ids that are not written, by reason.

    Args:
        content_lengths: Ids of each document's own texts, int64[n].
        left_out: Reason -> indices of the documents that are left out.
        written_tokens: Ids of the documents' own texts that are written.
    """
    dropped: dict[str, int] = {}
    for reason, document_indices in left_out.items():
        dropped[reason] = int(content_lengths[document_indices].sum())
    # All other ids that are not written were cut away.
    content_tokens = int(content_lengths.sum())
    truncated_tokens = content_tokens - written_tokens - sum(dropped.values())
    if truncated_tokens:
        dropped["truncated"] = truncated_tokens
    return dropped


# ---- columns -------------------------------------------------------------------------


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
    columns = columns_for(settings.method, settings.trainer)
    arrays: list[Any] = []
    for column, field in zip(columns, fields, strict=True):
        if column.holds == "label":
            assert label is not None
            arrays.append(_ARROW.array(label[joined.origin]))
        elif column.holds == "text":
            # The first n texts are the prompts, so that a document's index finds its own.
            arrays.append(text.take(_ARROW.array(joined.origin)))
        else:
            runs = _runs(column, joined.parts)
            arrays.append(_list_array(runs, field.type))
    return _ARROW.RecordBatch.from_arrays(arrays, schema=_ARROW.schema(fields))


def _list_array(runs: Ragged, kind: Any) -> Any:
    """Return runs as an Arrow array of lists of a type."""
    # The type of a column may be narrower than int32, such as uint8 of a mask.
    values = _ARROW.array(runs.ids.astype(dtype_of(kind.value_type), copy=False))
    offsets = _ARROW.array(runs.offsets.astype(np.int32))
    return _ARROW.ListArray.from_arrays(offsets, values, type=kind)


def _runs(column: TrainerColumn, parts: dict[Part, Ragged]) -> Ragged:
    """Return the values of a column: ids of its parts, or their labels or mask.

    The parts of a document follow each other.
    """
    runs_of_parts = [parts[part] for part in column.parts]
    if column.holds == "mask":
        return Ragged.filled(1, total_lengths(runs_of_parts))
    if column.holds == "labels":
        # Only the last part, the answer, is learned.
        for number, runs in enumerate(runs_of_parts[:-1]):
            runs_of_parts[number] = Ragged.filled(IGNORED, runs.lengths)
    return Ragged.joined(runs_of_parts)
