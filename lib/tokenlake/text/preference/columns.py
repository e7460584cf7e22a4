"""The ids of texts become the ids of a prompt and of its answers, and the columns that a trainer reads.

The law: a prompt's ids followed by an answer's ids are those of the whole text, encoded at once, so that no piece of
text is lost, doubled or spelled in a way that the tokenizer would never spell it. Where a token of the whole text
lies across the border ("Answer: " and "yes" become "Answer:" and " yes"), the border moves back to the last place
that the prompt alone, and the prompt with each answer, have in common: the chosen and the rejected answer always
follow the same prompt ids, which are a beginning of ``encode(prompt)``. Prompts whose border moved are counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.config.resolved import ResolvedPreference
from tokenlake.preference_columns import IGNORED, Method, Part, TrainerColumn, columns_for, parts_of
from tokenlake.ragged import Bools, Int32, Int64, Ragged, common_prefix, total_lengths
from tokenlake.schema import preference_fields

MOVED: Final = "prompt_border_moved"
"""Under which documents are counted whose prompt gave ids to its answers."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Documents of n, those left out left out.

    Attributes:
        parts: runs of each part, m each; BOS and EOS included.
        origin: int64[m], ascending: which of the documents each is.
        tokens: ids of all n documents without what was put around them: each part counted once.
        bos, eos: put there by us, and still there.
        eos_existing: documents whose answers all had an EOS.
        moved: documents whose prompt's border moved.
        dropped: ids that are gone, by reason.
        left_out: documents that are gone, by reason: int64[k], their indices.
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
        """int64[m], ids of each document, each part counted once."""
        return total_lengths(list(self.parts.values()))


@final
@dataclass(frozen=True, slots=True)
class Joiner:
    """Makes documents of one method.

    Attributes:
        prefix: what a prompt (or a text that stands for itself) begins with: BOS.
        eos_id: what an answer ends with, unless it holds one: a template may end a turn with it and a line break.
        max_length: most ids of a prompt with an answer.
        long_documents: ``keep``; ``truncate``: answers lose their ends, and a document whose prompt leaves no room
            for an answer is left out (prompts are never cut); ``drop``: documents with more are left out.
    """

    method: Method
    prefix: tuple[int, ...]
    eos_id: int
    max_length: int
    long_documents: str

    def join(self, ids: Int32, offsets: Int64) -> Joined:
        """Join the texts of n documents, as many runs of ids for each."""
        return _Joining(self, _bare(self.method, Ragged(ids, offsets))).run()


@final
@dataclass(frozen=True, slots=True)
class _Bare:
    """Parts without anything around them, and which prompts' borders moved."""

    parts: dict[Part, Ragged]
    moved: Bools


def _bare(method: Method, texts: Ragged) -> _Bare:
    parts = parts_of(method)
    per = {"grpo": 1, "reward": 2}.get(method, len(parts))
    columns = [
        Ragged.taken(texts.ids, texts.offsets[:-1][index::per], texts.offsets[1:][index::per])
        for index in range(per)
    ]
    if method in ("grpo", "reward"):
        same: dict[Part, Ragged] = dict(zip(parts, columns, strict=True))
        return _Bare(same, np.zeros(len(columns[0]), np.bool_))
    prompt, *wholes = columns
    border = np.minimum.reduce([common_prefix(prompt, whole) for whole in wholes])
    found: dict[Part, Ragged] = {"prompt": prompt.cut(border)}
    for part, whole in zip(parts[1:], wholes, strict=True):
        found[part] = Ragged.taken(whole.ids, whole.offsets[:-1] + border, whole.offsets[1:])
    return _Bare(found, border < prompt.lengths)


@final
@dataclass(slots=True)
class _Joining:
    """One batch on its way; what leaves it is counted when it leaves."""

    by: Joiner
    bare: _Bare
    dropped: Counter[str] = field(default_factory=Counter[str])
    left_out: dict[str, Int64] = field(default_factory=dict[str, Int64])

    def run(self) -> Joined:
        bare = self.bare.parts
        count = len(next(iter(bare.values())))
        content = total_lengths(list(bare.values()))
        head, tail = self._heads(bare), self._tails(bare)
        whole: dict[Part, Ragged] = {
            name: self._around(name, part, head, tail) for name, part in bare.items()
        }
        keep, cut = self._fitted(whole, content)
        parts: dict[Part, Ragged] = {name: part.select(keep) for name, part in cut.items()}
        # An EOS that we put there is gone where its answer was cut.
        eos = sum(
            int((there & (cut[name].lengths == whole[name].lengths))[keep].sum())
            for name, there in tail.items()
        )
        bos = sum(int(there[keep].sum()) for there in head.values()) * len(self.by.prefix)
        tokens = int(content.sum())
        written = sum(len(part.ids) for part in parts.values()) - eos - bos
        gone = tokens - written - self.dropped.total()
        closed = ~np.logical_or.reduce([*tail.values(), np.full(count, not tail)])
        return Joined(
            parts=parts,
            origin=np.flatnonzero(keep),
            tokens=tokens,
            bos=bos,
            eos=eos,
            eos_existing=int(closed[keep].sum()),
            moved=int(self.bare.moved[keep].sum()),
            dropped=dict(self.dropped) | ({"truncated": gone} if gone else {}),
            left_out=self.left_out,
        )

    def _heads(self, parts: dict[Part, Ragged]) -> dict[Part, Bools]:
        """Which runs lack their BOS."""
        names: tuple[Part, ...] = ("prompt",) if "prompt" in parts else tuple(parts)
        return {name: ~parts[name].begins_with(self.by.prefix) for name in names} if self.by.prefix else {}

    def _tails(self, parts: dict[Part, Ragged]) -> dict[Part, Bools]:
        """Which answers lack their EOS."""
        return {name: ~part.holds(self.by.eos_id) for name, part in parts.items() if name != "prompt"}

    def _around(self, name: Part, part: Ragged, head: dict[Part, Bools], tail: dict[Part, Bools]) -> Ragged:
        before = [Ragged.alike(self.by.prefix, head[name])] if name in head else []
        after = [Ragged.alike((self.by.eos_id,), tail[name])] if name in tail else []
        return Ragged.joined([*before, part, *after])

    def _fitted(self, parts: dict[Part, Ragged], content: Int64) -> tuple[Bools, dict[Part, Ragged]]:
        """Return which documents stay, and all parts, cut where the policy says so."""
        parts, keep = dict(parts), np.ones(len(content), np.bool_)
        empty = np.logical_or.reduce([part.lengths == 0 for part in parts.values()])
        keep = self._leave(keep, empty, "empty", content)
        prompt = parts["prompt"].lengths if "prompt" in parts else np.zeros(len(content), np.int64)
        answers: dict[Part, Ragged] = {name: part for name, part in parts.items() if name != "prompt"}
        most = self.by.max_length
        if self.by.long_documents != "keep":
            full = prompt >= most if answers else prompt > most
            keep = self._leave(keep, full, "prompt_too_long", content)
        if self.by.long_documents == "drop" and answers:
            longest = np.maximum.reduce([part.lengths for part in answers.values()])
            keep = self._leave(keep, prompt + longest > most, "too_long", content)
        if self.by.long_documents == "truncate":
            room = np.maximum(most - prompt, 0)
            for name, part in answers.items():
                parts[name] = part.cut(room)
        if "rejected" in parts:
            keep = self._leave(keep, _equal(parts["chosen"], parts["rejected"]), "equal_answers", content)
        return keep, parts

    def _leave(self, keep: Bools, gone: Bools, reason: str, content: Int64) -> Bools:
        leaving = keep & gone
        if leaving.any():
            self.left_out[reason] = np.flatnonzero(leaving)
            self.dropped[reason] += int(content[leaving].sum())
        return keep & ~gone


def _equal(left: Ragged, right: Ragged) -> Bools:
    return (left.lengths == right.lengths) & (common_prefix(left, right) == left.lengths)


_ARROW: Final[Any] = pa


def preference_batch(
    settings: ResolvedPreference,
    joined: Joined,
    label: Bools | None,
    text: pa.LargeStringArray,
) -> pa.RecordBatch:
    """Return the rows of `joined` as the columns of the trainer of `settings`.

    Args:
        label: bool[n], of all documents that were joined; for judged answers.
        text: large_string, the first n of them; for prompts alone.
    """
    fields = preference_fields(settings.method, settings.trainer)
    arrays: list[Any] = []
    for column, kind in zip(columns_for(settings.method, settings.trainer), fields, strict=True):
        if column.holds == "label":
            assert label is not None
            arrays.append(_ARROW.array(label[joined.origin]))
        elif column.holds == "text":
            arrays.append(text.take(_ARROW.array(joined.origin)))
        else:
            arrays.append(_lists(_runs(column, joined.parts), kind.type))
    return _ARROW.RecordBatch.from_arrays(arrays, schema=_ARROW.schema(fields))


def _runs(column: TrainerColumn, parts: dict[Part, Ragged]) -> Ragged:
    runs = [parts[part] for part in column.parts]
    if column.holds == "labels":
        runs = [*(Ragged.filled(IGNORED, run.lengths) for run in runs[:-1]), runs[-1]]
    if column.holds == "mask":
        return Ragged.filled(1, total_lengths(runs))
    return Ragged.joined(runs)


def _lists(runs: Ragged, kind: Any) -> Any:
    values = _ARROW.array(runs.ids.astype(kind.value_type.to_pandas_dtype(), copy=False))
    return pa.ListArray.from_arrays(_ARROW.array(runs.offsets.astype(np.int32)), values, type=kind)
