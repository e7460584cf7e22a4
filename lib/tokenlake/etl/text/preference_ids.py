"""The ids of texts become the ids of a prompt and of its answers, and the columns that a trainer reads.

The law: a prompt's ids followed by an answer's ids are those of the whole text, encoded at once, so that no piece of
text is lost, doubled or spelled in a way that the tokenizer would never spell it. Where a token of the whole text
lies across the border ("Answer: " and "yes" become "Answer:" and " yes"), the border moves back to the last place
that the prompt alone, and the prompt with each answer, have in common: the chosen and the rejected answer always
follow the same prompt ids, which are a beginning of ``encode(prompt)``. Prompts whose border moved are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Bools, Int32, Int64, Ragged, common_prefix, dtype_of, total_lengths
from tokenlake.base.columns import IGNORED, Method, Part, TrainerColumn, columns_for, parts_of
from tokenlake.config.resolved import ResolvedPreference
from tokenlake.runtime.schema import preference_fields

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
            for an answer is left out (it cuts no prompt); ``drop``: documents with more are left out.
        max_prompt: most ids of a prompt, which loses its beginning, but for BOS; None: any number.
        max_completion: most ids of an answer, which loses its end; None: any number.
    """

    method: Method
    prefix: tuple[int, ...]
    eos_id: int
    max_length: int
    long_documents: str
    max_prompt: int | None = None
    max_completion: int | None = None

    def join(self, ids: Int32, offsets: Int64) -> Joined:
        """Join the texts of n documents, as many runs of ids for each."""
        bare, moved = _parted(self.method, Ragged(ids, offsets))
        content = total_lengths(list(bare.values()))
        if self.max_prompt is not None and "prompt" in bare:  # with more it loses its beginning, but for BOS
            prompt, around = bare["prompt"], len(self.prefix)
            before = np.where(prompt.begins_with(self.prefix), 0, around)
            long = prompt.lengths + before > self.max_prompt
            bare["prompt"] = prompt.end(np.where(long, max(self.max_prompt - around, 0), prompt.lengths))
        # Which runs lack their BOS, and which answers their EOS.
        begins: tuple[Part, ...] = ("prompt",) if "prompt" in bare else tuple(bare)
        head = {name: ~bare[name].begins_with(self.prefix) for name in begins if self.prefix}
        tail: dict[Part, Bools] = {
            name: ~part.holds(self.eos_id) for name, part in bare.items() if name != "prompt"
        }
        whole: dict[Part, Ragged] = {
            name: Ragged.joined(
                [
                    *([Ragged.alike(self.prefix, head[name])] if name in head else []),
                    part,
                    *([Ragged.alike((self.eos_id,), tail[name])] if name in tail else []),
                ]
            )
            for name, part in bare.items()
        }
        left_out, cut = self._fitted(whole)
        gone = np.zeros(len(content), np.bool_)
        for rows in left_out.values():
            gone[rows] = True
        keep = ~gone
        parts: dict[Part, Ragged] = {name: part.select(keep) for name, part in cut.items()}
        # An EOS that we put there is gone where its answer was cut.
        eos = sum(
            int((there & (cut[name].lengths == whole[name].lengths))[keep].sum())
            for name, there in tail.items()
        )
        bos = sum(int(there[keep].sum()) for there in head.values()) * len(self.prefix)
        dropped = {reason: int(content[rows].sum()) for reason, rows in left_out.items()}
        written = sum(len(part.ids) for part in parts.values()) - eos - bos
        truncated = int(content.sum()) - written - sum(dropped.values())
        closed = ~np.logical_or.reduce([*tail.values(), np.full(len(content), not tail)])
        return Joined(
            parts=parts,
            origin=np.flatnonzero(keep),
            tokens=int(content.sum()),
            bos=bos,
            eos=eos,
            eos_existing=int(closed[keep].sum()),
            moved=int(moved[keep].sum()),
            dropped=dropped | ({"truncated": truncated} if truncated else {}),
            left_out=left_out,
        )

    def _fitted(self, parts: dict[Part, Ragged]) -> tuple[dict[str, Int64], dict[Part, Ragged]]:
        """Return which documents are left out and why, and all parts, cut where the policy says so."""
        parts = dict(parts)
        answers: dict[Part, Ragged] = {name: part for name, part in parts.items() if name != "prompt"}
        nothing = np.zeros(len(next(iter(parts.values()))), np.int64)
        if self.max_completion is not None:
            answers = {name: part.cut(nothing + self.max_completion) for name, part in answers.items()}
            parts |= answers
        prompt, most = parts["prompt"].lengths if "prompt" in parts else nothing, self.max_length
        longest = np.maximum.reduce([nothing, *(part.lengths for part in answers.values())])
        wrong = {"empty": np.logical_or.reduce([part.lengths == 0 for part in parts.values()])}
        if self.long_documents != "keep":
            wrong["prompt_too_long"] = prompt >= most if answers else prompt > most
        if self.long_documents == "drop" and answers:
            wrong["too_long"] = prompt + longest > most
        if self.long_documents == "truncate":
            parts |= {name: part.cut(np.maximum(most - prompt, 0)) for name, part in answers.items()}
        if "rejected" in parts:
            chosen, rejected = parts["chosen"], parts["rejected"]
            same = common_prefix(chosen, rejected) == chosen.lengths
            wrong["equal_answers"] = (chosen.lengths == rejected.lengths) & same
        found: dict[str, Int64] = {}
        seen = np.zeros(len(nothing), np.bool_)
        for reason, rows in wrong.items():  # the first reason counts
            new = np.flatnonzero(rows & ~seen)
            if len(new):
                found[reason] = new
            seen |= rows
        return found, parts


def _parted(method: Method, texts: Ragged) -> tuple[dict[Part, Ragged], Bools]:
    """Return the parts without anything around them, and which prompts' borders moved."""
    parts = parts_of(method)
    per = {"grpo": 1, "reward": 2}.get(method, len(parts))
    columns = [
        Ragged.taken(texts.ids, texts.offsets[:-1][index::per], texts.offsets[1:][index::per])
        for index in range(per)
    ]
    if method in ("grpo", "reward"):
        return dict(zip(parts, columns, strict=True)), np.zeros(len(columns[0]), np.bool_)
    prompt, *wholes = columns
    border = np.minimum.reduce([common_prefix(prompt, whole) for whole in wholes])
    found: dict[Part, Ragged] = {"prompt": prompt.cut(border)}
    for part, whole in zip(parts[1:], wholes, strict=True):
        found[part] = Ragged.taken(whole.ids, whole.offsets[:-1] + border, whole.offsets[1:])
    return found, border < prompt.lengths


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
            runs, kind = _runs(column, joined.parts), kind.type
            values = _ARROW.array(runs.ids.astype(dtype_of(kind.value_type), copy=False))
            offsets = _ARROW.array(runs.offsets.astype(np.int32))
            arrays.append(_ARROW.ListArray.from_arrays(offsets, values, type=kind))
    return _ARROW.RecordBatch.from_arrays(arrays, schema=_ARROW.schema(fields))


def _runs(column: TrainerColumn, parts: dict[Part, Ragged]) -> Ragged:
    runs = [parts[part] for part in column.parts]
    if column.holds == "labels":
        runs = [*(Ragged.filled(IGNORED, run.lengths) for run in runs[:-1]), runs[-1]]
    if column.holds == "mask":
        return Ragged.filled(1, total_lengths(runs))
    return Ragged.joined(runs)
