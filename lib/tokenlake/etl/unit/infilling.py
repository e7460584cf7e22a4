"""Fill-in-the-middle: a document is cut twice, and its parts are put in another order behind sentinel tokens.

::

    PSM   <prefix> prefix <suffix> suffix <middle> middle
    SPM   <prefix> <suffix> suffix <middle> prefix middle

as in Bavarian et al. 2022 (arXiv:2207.14255; of its appendix D the form of SPM that shares sentinels with PSM).
The document is cut at characters, not at tokens, and each part is encoded by itself, as it is where a model completes
what somebody is typing: that paper finds models that never saw half a token at a cut to do badly there. A tokenizer
that puts a blank before a text puts none before a part that goes on, as in Rozière et al. 2023 (arXiv:2308.12950).

Whether, in which form and where a document is cut are hashes of the seed and of its identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import Bools, Ragged, offsets_of, string_buffers, text_over
from tokenlake.config.resolved import FIM_ROOM, ResolvedFim
from tokenlake.errors import TokenizerError
from tokenlake.etl.tokenizers.encoder import Encoder
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.runtime.mixing.random import Int64, UInt64, extended, key_of

_STREAM: Final = 0x46494D  # tells these draws from all others of the seed
_RATE, _FORM, _CUTS = 0, 1, (2, 3)
_PARTS: Final = 3
_CONTINUES: Final = 0x80  # of the form 10xxxxxx: not the first byte of a character
_LEADS: Final = "☺☃♞¤\n"
_PROBES: Final = ("a", "Zq", "1")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """Texts, or pieces of texts, n of them.

    Attributes:
        text: large_string[m].
        row: int64[n], the text that each is of.
        begin, end: int64[n], UTF-8 bytes of the text.
        number: int64[n], 0 for what begins a text, and counting on inside it.
        file, position: int64[n], the documents' identities.
    """

    text: pa.LargeStringArray
    row: Int64
    begin: Int64
    end: Int64
    number: Int64
    file: Int64
    position: Int64

    @classmethod
    def whole(cls, text: pa.LargeStringArray, file: Int64, position: Int64) -> Stretches:
        """Return n whole texts, of documents with these identities, int64[n] each."""
        none, sizes = np.zeros(len(text), np.int64), np.diff(string_buffers(text)[0])
        where = {"file": file, "position": position}
        return cls(text=text, row=np.arange(len(text)), begin=none, end=sizes, number=none, **where)

    def take(self, rows: Int64) -> Stretches:
        """Return the stretches `rows` (int64[k])."""
        names = ("row", "begin", "end", "number", "file", "position")
        return Stretches(text=self.text, **{name: getattr(self, name)[rows] for name in names})


@final
class Infilling:
    """Puts stretches of text in another order.

    Args:
        settings: with the names of the sentinels.
        encoder: of the parts.

    Attributes:
        sentinels: ids that each stretch gets, int32[3] or [4].
    """

    def __init__(self, settings: ResolvedFim, encoder: Encoder) -> None:
        self._settings, self._encoder = settings, encoder
        names = settings.tokens or ()
        self.sentinels = np.array([encoder.files.token_id(name) for name in names], np.int32)
        self._key = key_of(settings.seed, _STREAM)

    def room(self, max_length: int) -> int:
        """Return how many ids an infilled piece may have, of pieces of at most `max_length` ids."""
        around = len(self._encoder.prefix) + len(self._encoder.suffix)
        return max_length + FIM_ROOM - 1 - around

    def chosen(self, of: Stretches) -> Bools:
        """Return which of n stretches are put in another order: bool[n]."""
        return (self._draws(of, _RATE) < self._settings.rate) & (of.end > of.begin)

    def apply(self, of: Stretches) -> tuple[Ragged, Bools]:
        """Put all of n stretches in another order.

        Returns:
            their ids, some of which are the sentinels; bool[n], those in the form SPM.

        Raises:
            as :meth:`tokenlake.etl.tokenizers.encoder.Encoder.encode`.
        """
        spm = self._draws(of, _FORM) < self._settings.spm
        return self._joined(self._encoded(of, self._edges(of)), spm), spm

    def _draws(self, of: Stretches, which: int) -> npt.NDArray[np.float64]:
        """Return numbers from 0 to 1, float64[n]; `which` tells the draws of a stretch from each other."""
        keys: UInt64 = extended(extended(self._key, of.file), of.position)
        drawn = extended(extended(keys, of.number), np.full(len(of.row), which))
        return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def _edges(self, of: Stretches) -> Int64:
        """Return where the three parts of each stretch begin and the last ends, bytes of all texts: int64[n, 4]."""
        starts, data = string_buffers(of.text)
        sizes = of.end - of.begin
        cuts = [(self._draws(of, which) * (sizes + 1)).astype(np.int64) for which in _CUTS]
        first, second = np.minimum(*cuts), np.maximum(*cuts)
        edges = np.stack([np.zeros_like(sizes), first, second, sizes], axis=1)
        edges += (starts[of.row] + of.begin)[:, None]
        for _ in range(3 if len(data) else 0):  # back to the first byte of the character
            inside = edges < edges[:, 3:]
            edges -= inside & (data[np.minimum(edges, len(data) - 1)] & 0xC0 == _CONTINUES)
        return edges

    def _encoded(self, of: Stretches, edges: Int64) -> Ragged:
        """Return the ids of prefix, middle and suffix of each stretch: 3n runs."""
        goes_on = np.ones((len(of.row), _PARTS), np.bool_)
        goes_on[:, 0] = of.number > 0
        lead, ids = self._lead
        flags = goes_on.reshape(-1) & bool(lead)
        view = string_buffers(of.text)[1].data
        columns = (edges[:, :-1].reshape(-1), edges[:, 1:].reshape(-1), flags)
        spans = zip(*(column.tolist() for column in columns), strict=True)
        texts = [lead + bytes(view[start:stop]) if flag else view[start:stop] for start, stop, flag in spans]
        joined = text_over(offsets_of([len(text) for text in texts]), pa.py_buffer(b"".join(texts)))
        encoded = self._encoder.encode(joined)
        found = Ragged(encoded.ids, encoded.offsets)
        if not flags.any():
            return found
        if not found.begins_with(ids)[flags].all():
            raise TokenizerError(
                f"tokenizer {self._encoder.files.name!r}: the ids of a text that goes on after {lead.decode()!r} "
                "do not begin with those of it, so that nobody can tell how a part of a document is encoded; leave "
                "`fim` out"
            )
        return Ragged.taken(found.ids, found.offsets[:-1] + flags * len(ids), found.offsets[1:])

    def _joined(self, parts: Ragged, spm: Bools) -> Ragged:
        """Put sentinels and parts one behind the other."""
        count, base = len(spm), len(parts.ids)
        ids = np.concatenate([parts.ids, self.sentinels])
        start = parts.offsets[:-1].reshape(count, _PARTS)
        stop = parts.offsets[1:].reshape(count, _PARTS)
        mark = base + np.tile(np.arange(len(self.sentinels)), (count, 1))
        start, stop = np.concatenate([start, mark], axis=1), np.concatenate([stop, mark + 1], axis=1)
        columns = _PARTS + len(self.sentinels)
        forms = [np.array([each for each in form if each < columns]) for form in (_SPM, _PSM)]
        order = np.where(spm[:, None], *forms)
        begins, ends = np.take_along_axis(start, order, 1), np.take_along_axis(stop, order, 1)
        runs = Ragged.taken(ids, begins.reshape(-1), ends.reshape(-1))
        return Ragged(runs.ids, runs.offsets[:: order.shape[1]])

    @cached_property
    def _lead(self) -> tuple[bytes, tuple[int, ...]]:
        return lead_of(self._encoder)


# Columns of what is joined: the parts as they stand in the text, then the sentinels as they are named.
_PREFIX, _MIDDLE, _SUFFIX, _PRE, _SUF, _MID, _END = range(7)
_PSM: Final = (_PRE, _PREFIX, _SUF, _SUFFIX, _MID, _MIDDLE, _END)
_SPM: Final = (_PRE, _SUF, _SUFFIX, _MID, _PREFIX, _MIDDLE, _END)


def lead_of(encoder: Encoder) -> tuple[bytes, tuple[int, ...]]:
    """Return a character behind which a text is encoded as going on, and its ids; nothing where any text is so.

    Raises:
        TokenizerError: there is none such.
    """

    def ids(texts: Sequence[str]) -> Ragged:
        found = encoder.encode(pa.array(texts, pa.large_string()))
        return Ragged(found.ids, found.offsets)

    alone = ids(_PROBES).rows()
    for lead in _LEADS:
        own, *behind = ids([lead, *(lead + probe for probe in _PROBES)]).rows()
        if not all(each[: len(own)].tolist() == own.tolist() for each in behind):
            continue
        if all(each[len(own) :].tolist() == bare.tolist() for each, bare in zip(behind, alone, strict=True)):
            return b"", ()
        if not _joins(encoder.files, lead):
            return lead.encode(), tuple(own.tolist())
    raise TokenizerError(
        f"tokenizer {encoder.files.name!r}: it puts something before each text, and each of {', '.join(_LEADS[:-1])} "
        "joins what follows, so that nobody can tell how a part of a document is encoded; leave `fim` out"
    )


def _joins(files: TokenizerFiles, lead: str) -> bool:
    """Whether a token of the vocabulary has something behind a character."""
    return any(lead in token and not token.endswith(lead) for token in files.tokens)
