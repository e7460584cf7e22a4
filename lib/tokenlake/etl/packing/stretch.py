"""Stretches: tokens of consecutive documents on their way into rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

import numpy as np

from tokenlake.base.arrays import Bools, Int32, Int64


@final
@dataclass(frozen=True, slots=True)
class Stretch:
    """Documents laid end to end.

    The first may have begun in an earlier stretch, and the last may continue in the
    next.

    Attributes:
        ids: Tokens of all documents, int32[total].
        length: Tokens of each document in this stretch, int64[n].
        start: Index of the first of these tokens within the document, int64[n].
        file: Id of the file that each document comes from, int64[n].
        position: Position of each document in its file, int64[n].
        ends: True for a document that ends in this stretch, bool[n].
    """

    ids: Int32
    length: Int64
    start: Int64
    file: Int64
    position: Int64
    ends: Bools

    @classmethod
    def nothing(cls) -> Stretch:
        """Return a stretch without documents."""
        no_numbers = np.empty(0, np.int64)
        no_ids = np.empty(0, np.int32)
        return cls(
            no_ids,
            no_numbers,
            no_numbers,
            no_numbers,
            no_numbers,
            np.empty(0, np.bool_),
        )

    @classmethod
    def one(
        cls, ids: Int32, start: int, file: int, position: int, *, ends: bool
    ) -> Stretch:
        """Return a stretch of a single document, or of a part of one.

        Args:
            ids: Tokens of the document, int32[total].
            start: Index of the first of them within the document.
            file: Id of the document's file.
            position: Position of the document in its file.
            ends: True if the document ends with these tokens.
        """
        return cls(
            ids,
            length=np.array([len(ids)], np.int64),
            start=np.array([start], np.int64),
            file=np.array([file], np.int64),
            position=np.array([position], np.int64),
            ends=np.array([ends]),
        )

    def split(self, tokens: int, step: int) -> tuple[Stretch, Stretch]:
        """Cut after at least `tokens` tokens; return both halves.

        The cut is at a document's end, or inside a document at a multiple of `step`
        tokens from its beginning in this stretch.
        """
        ends = np.cumsum(self.length)
        document = int(np.searchsorted(ends, tokens))
        if document == len(ends):
            return self, Stretch.nothing()
        document_end = int(ends[document])
        # Steps are whole rows, so that the document continues at the beginning of a
        # row.
        document_begin = document_end - int(self.length[document])
        steps = -(-(tokens - document_begin) // step)
        return self.cut(min(document_begin + steps * step, document_end))

    def cut(self, tokens: int) -> tuple[Stretch, Stretch]:
        """Return the first `tokens` tokens and the others, both as views of the ids."""
        ends = np.cumsum(self.length)
        whole_documents = int(np.searchsorted(ends, tokens, side="right"))
        tokens_inside = tokens
        if whole_documents:
            tokens_inside -= int(ends[whole_documents - 1])
        is_inside = tokens_inside > 0
        head = self._documents(0, whole_documents + is_inside, self.ids[:tokens])
        tail = self._documents(whole_documents, None, self.ids[tokens:])
        if is_inside:
            # The cut document ends the head, and continues in the tail.
            head.length[-1] = tokens_inside
            head.ends[-1] = False
            tail.length[0] -= tokens_inside
            tail.start[0] += tokens_inside
        return head, tail

    def _documents(self, first: int, last: int | None, ids: Int32) -> Stretch:
        """Return the documents ``first:last`` with copied columns and the given ids."""
        return Stretch(
            ids,
            self.length[first:last].copy(),
            self.start[first:last].copy(),
            self.file[first:last].copy(),
            self.position[first:last].copy(),
            self.ends[first:last].copy(),
        )

    @classmethod
    def joined(cls, parts: Sequence[Self], ids: Int32 | None = None) -> Self:
        """Return all parts as one stretch.

        A document that does not end is joined with the one after it.

        Args:
            parts: Stretches, at least one.
            ids: Ids of all parts, if they lie together already.
        """
        # 1. Columns of all parts.
        lengths: list[Int64] = []
        starts: list[Int64] = []
        files: list[Int64] = []
        positions: list[Int64] = []
        part_ends: list[Bools] = []
        for part in parts:
            lengths.append(part.length)
            starts.append(part.start)
            files.append(part.file)
            positions.append(part.position)
            part_ends.append(part.ends)
        if ids is None:
            ids = np.concatenate([part.ids for part in parts])
        # 2. A document begins after each one that ends. Of its pieces the first one has
        #    its start, and the last one its end.
        ends = np.concatenate(part_ends)
        first_pieces = np.flatnonzero(np.append(True, ends[:-1]))
        last_pieces = np.append(first_pieces[1:], len(ends)) - 1
        return cls(
            ids,
            length=np.add.reduceat(np.concatenate(lengths), first_pieces),
            start=np.concatenate(starts)[first_pieces],
            file=np.concatenate(files)[first_pieces],
            position=np.concatenate(positions)[first_pieces],
            ends=ends[last_pieces],
        )
