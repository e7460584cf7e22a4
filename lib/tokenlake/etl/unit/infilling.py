"""Fill-in-the-middle: a document is cut twice, and its parts change their order.

Sentinel tokens stand between the parts.

::

    PSM   <prefix> prefix <suffix> suffix <middle> middle
    SPM   <prefix> <suffix> suffix <middle> prefix middle

as in Bavarian et al. 2022 (arXiv:2207.14255; of its appendix D the form of SPM that
shares sentinels with PSM). The document is cut at characters, not at tokens, and each
part is encoded by itself, as it is where a model completes a text that is being typed:
that paper shows that models that never saw half a token at a cut do badly there. A
tokenizer that puts a blank before a text puts none before a part that continues a text,
as in Rozière et al. 2023 (arXiv:2308.12950).

1. Hashes of the seed, of the document's identity and of the number of the stretch
   decide whether a stretch is reordered, in which form and where it is cut. A stretch
   is a whole document or, with ``level: context``, a piece that fits into a row.
2. Its parts are encoded. A part that continues a text is encoded after a lead
   character, whose ids are removed.
3. Parts and sentinels are joined in the order of the form.

Example: "abcdef" cut at 2 and 4 has prefix "ab", middle "cd" and suffix "ef". PSM is
``<prefix>ab<suffix>ef<middle>cd`` and SPM ``<prefix><suffix>ef<middle>abcd``.
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

_STREAM: Final = 0x46494D
"""Number that separates these draws from all others of the seed."""

_RATE_DRAW: Final = 0
_FORM_DRAW: Final = 1
_CUT_DRAWS: Final = (2, 3)
"""Numbers that separate the draws of one stretch."""

_PARTS: Final = 3
_CONTINUATION_MASK: Final = 0xC0
_CONTINUATION: Final = 0x80
"""A byte of the form 10xxxxxx is not the first byte of a character."""

_LEADS: Final = "☺☃♞¤\n"
"""Characters to try as lead."""

_PROBES: Final = ("a", "Zq", "1")
"""Texts to try leads with."""

# Columns of the runs that are joined: the parts in the order of the text, then the
# sentinels in the order of the configuration. The sentinel at the end is optional.
_PREFIX, _MIDDLE, _SUFFIX, _PREFIX_TOKEN, _SUFFIX_TOKEN, _MIDDLE_TOKEN, _END_TOKEN = (
    range(7)
)
_PSM: Final = (
    _PREFIX_TOKEN,
    _PREFIX,
    _SUFFIX_TOKEN,
    _SUFFIX,
    _MIDDLE_TOKEN,
    _MIDDLE,
    _END_TOKEN,
)
_SPM: Final = (
    _PREFIX_TOKEN,
    _SUFFIX_TOKEN,
    _SUFFIX,
    _MIDDLE_TOKEN,
    _PREFIX,
    _MIDDLE,
    _END_TOKEN,
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """Texts, or parts of texts, n of them.

    Attributes:
        text: Texts, large_string[m].
        row: Index of the text that each stretch is of, int64[n].
        begin: First UTF-8 byte of the stretch in its text, int64[n].
        end: Byte after its last one, int64[n].
        number: 0 for a stretch that begins a text, 1, 2, 3 ... for further ones,
            int64[n].
        file: Id of each document's file, int64[n].
        position: Position of each document in its file, int64[n].
    """

    text: pa.LargeStringArray
    row: Int64
    begin: Int64
    end: Int64
    number: Int64
    file: Int64
    position: Int64

    @classmethod
    def whole(
        cls, text: pa.LargeStringArray, file: Int64, position: Int64
    ) -> Stretches:
        """Return n whole texts.

        Args:
            text: Texts, large_string[n].
            file: Id of each document's file, int64[n].
            position: Position of each document in its file, int64[n].
        """
        zeros = np.zeros(len(text), np.int64)
        text_edges = string_buffers(text)[0]
        return cls(
            text=text,
            row=np.arange(len(text)),
            begin=zeros,
            end=np.diff(text_edges),
            number=zeros,
            file=file,
            position=position,
        )

    def take(self, rows: Int64) -> Stretches:
        """Return the stretches `rows` (int64[k])."""
        return Stretches(
            text=self.text,
            row=self.row[rows],
            begin=self.begin[rows],
            end=self.end[rows],
            number=self.number[rows],
            file=self.file[rows],
            position=self.position[rows],
        )


@final
class Infilling:
    """Puts the parts of stretches in another order.

    Args:
        settings: Options, with the names of the sentinels.
        encoder: Encoder of the parts.

    Attributes:
        sentinels: Ids that each stretch gets, int32[3] or [4].
    """

    def __init__(self, settings: ResolvedFim, encoder: Encoder) -> None:
        self._settings = settings
        self._encoder = encoder
        sentinel_ids = list(map(encoder.files.token_id, settings.tokens or ()))
        self.sentinels = np.array(sentinel_ids, np.int32)
        self._key = key_of(settings.seed, _STREAM)

    def room(self, max_length: int) -> int:
        """Return the largest number of ids of a reordered part.

        Args:
            max_length: Number of ids that parts have at most.
        """
        # A part has room for sentinels beyond `max_length`, except that for its prefix
        # and suffix, which every row needs.
        affixes = len(self._encoder.prefix) + len(self._encoder.suffix)
        return max_length + FIM_ROOM - 1 - affixes

    def chosen(self, of: Stretches) -> Bools:
        """Return True for the stretches that are reordered, bool[n]."""
        is_drawn = self._draws(of, _RATE_DRAW) < self._settings.rate
        return is_drawn & (of.end > of.begin)

    def apply(self, of: Stretches) -> tuple[Ragged, Bools]:
        """Reorder all of n stretches.

        Returns:
            Ids of the stretches, sentinels included; and True for those in the form
            SPM, bool[n].

        Raises:
            as :meth:`tokenlake.etl.tokenizers.encoder.Encoder.encode`.
        """
        is_spm = self._draws(of, _FORM_DRAW) < self._settings.spm
        parts = self._encoded(of, self._part_edges(of))
        return self._joined(parts, is_spm), is_spm

    def _draws(self, of: Stretches, draw: int) -> npt.NDArray[np.float64]:
        """Return numbers from 0 to 1, float64[n].

        Args:
            of: Stretches.
            draw: Number that separates the draws of a stretch.
        """
        document_keys: UInt64 = extended(extended(self._key, of.file), of.position)
        stretch_keys = extended(document_keys, of.number)
        random_bits = extended(stretch_keys, np.full(len(of.row), draw))
        # The upper 53 bits are as many as a float holds.
        return (random_bits >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def _part_edges(self, of: Stretches) -> Int64:
        """Return where the parts of each stretch begin and the last one ends, int64[n, 4].

        Edges are byte offsets into the data of all texts.
        """
        text_begins, data = string_buffers(of.text)
        # 1. Two cuts, each at any byte of the stretch or at its end.
        sizes = of.end - of.begin
        cut = (self._draws(of, _CUT_DRAWS[0]) * (sizes + 1)).astype(np.int64)
        other_cut = (self._draws(of, _CUT_DRAWS[1]) * (sizes + 1)).astype(np.int64)
        first_cut = np.minimum(cut, other_cut)
        second_cut = np.maximum(cut, other_cut)
        edges = np.stack([np.zeros_like(sizes), first_cut, second_cut, sizes], axis=1)
        edges += (text_begins[of.row] + of.begin)[:, None]
        # 2. Back to the first byte of the character, which has at most three bytes
        #    after it.
        if len(data):
            for _ in range(3):
                is_before_end = edges < edges[:, 3:]
                bytes_at_edges = data[np.minimum(edges, len(data) - 1)]
                leading_bits = bytes_at_edges & _CONTINUATION_MASK
                edges -= is_before_end & (leading_bits == _CONTINUATION)
        return edges

    def _encoded(self, of: Stretches, edges: Int64) -> Ragged:
        """Return the ids of prefix, middle and suffix of each stretch, 3n runs.

        Args:
            of: Stretches.
            edges: Edges of their parts, int64[n, 4].
        """
        lead, lead_ids = self._lead
        # 1. Texts of the parts. Those that continue a text are put after the lead, if
        #    one is needed.
        continues = np.ones((len(of.row), _PARTS), np.bool_)
        continues[:, 0] = of.number > 0
        has_lead = continues.reshape(-1) & bool(lead)
        begins = edges[:, :-1].reshape(-1).tolist()
        ends = edges[:, 1:].reshape(-1).tolist()
        utf8_data = string_buffers(of.text)[1].data
        part_texts: list[bytes | memoryview] = []
        for begin, end, is_led in zip(begins, ends, has_lead.tolist(), strict=True):
            part_text = utf8_data[begin:end]
            part_texts.append(lead + bytes(part_text) if is_led else part_text)
        offsets = offsets_of([len(part_text) for part_text in part_texts])
        # 2. Encode.
        joined_texts = pa.py_buffer(b"".join(part_texts))
        encoded = self._encoder.encode(text_over(offsets, joined_texts))
        parts = Ragged(encoded.ids, encoded.offsets)
        if not has_lead.any():
            return parts
        # 3. Remove the ids of the lead.
        if not parts.begins_with(lead_ids)[has_lead].all():
            raise TokenizerError(
                f"tokenizer {self._encoder.files.name!r}: the ids of a text after {lead.decode()!r} do not begin "
                "with the ids of that character, so the ids of a part of a document cannot be determined; leave "
                "`fim` out"
            )
        part_begins = parts.offsets[:-1] + has_lead * len(lead_ids)
        return Ragged.taken(parts.ids, part_begins, parts.offsets[1:])

    def _joined(self, parts: Ragged, is_spm: Bools) -> Ragged:
        """Join the parts and sentinels of n stretches.

        Args:
            parts: Prefix, middle and suffix of each stretch, 3n runs.
            is_spm: True for the form SPM, bool[n].
        """
        stretch_count = len(is_spm)
        sentinel_count = len(self.sentinels)
        # 1. One table of runs: a row for each stretch, with its parts and the sentinels
        #    as columns.
        all_ids = np.concatenate([parts.ids, self.sentinels])
        sentinel_row = len(parts.ids) + np.arange(sentinel_count)
        sentinel_begins = np.tile(sentinel_row, (stretch_count, 1))
        part_begins = parts.offsets[:-1].reshape(stretch_count, _PARTS)
        part_ends = parts.offsets[1:].reshape(stretch_count, _PARTS)
        begins = np.concatenate([part_begins, sentinel_begins], axis=1)
        ends = np.concatenate([part_ends, sentinel_begins + 1], axis=1)
        # 2. Columns in the order of the form of each stretch. Without a sentinel at the
        #    end its column is missing.
        columns = _PARTS + sentinel_count
        spm_order = np.array([column for column in _SPM if column < columns])
        psm_order = np.array([column for column in _PSM if column < columns])
        order = np.where(is_spm[:, None], spm_order, psm_order)
        begins = np.take_along_axis(begins, order, 1)
        ends = np.take_along_axis(ends, order, 1)
        # 3. Join the runs; the runs of a stretch become one.
        runs = Ragged.taken(all_ids, begins.reshape(-1), ends.reshape(-1))
        return Ragged(runs.ids, runs.offsets[:: order.shape[1]])

    @cached_property
    def _lead(self) -> tuple[bytes, tuple[int, ...]]:
        return lead_of(self._encoder)


def lead_of(encoder: Encoder) -> tuple[bytes, tuple[int, ...]]:
    """Return a character after which a text is encoded as one that continues.

    Returns:
        Character and its ids. Both are empty if every text is encoded in this way.

    Raises:
        TokenizerError: There is no such character.
    """
    files = encoder.files
    ids_alone = _ids_of(encoder, _PROBES)
    for lead in _LEADS:
        led_probes = [lead + probe for probe in _PROBES]
        lead_ids, *led_ids = _ids_of(encoder, [lead, *led_probes])
        # 1. The ids of the lead must stay the same before every text.
        lead_size = len(lead_ids)
        if any(probe_ids[:lead_size] != lead_ids for probe_ids in led_ids):
            continue
        # 2. Behind it, a text has the ids that it has alone: no lead is needed.
        if [probe_ids[lead_size:] for probe_ids in led_ids] == ids_alone:
            return b"", ()
        # 3. No token joins the lead and a text that the probes do not show.
        if not _joins_next(files, lead):
            return lead.encode(), tuple(lead_ids)
    raise TokenizerError(
        f"tokenizer {files.name!r}: it puts something before each text, and each of {', '.join(_LEADS[:-1])} joins "
        "the text after it, so the ids of a part of a document cannot be determined; leave `fim` out"
    )


def _ids_of(encoder: Encoder, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of each text."""
    encoded = encoder.encode(pa.array(texts, pa.large_string()))
    documents = Ragged(encoded.ids, encoded.offsets).rows()
    return [token_ids.tolist() for token_ids in documents]


def _joins_next(files: TokenizerFiles, lead: str) -> bool:
    """Return True if a token of the vocabulary has another character after `lead`."""
    return any(lead in token and not token.endswith(lead) for token in files.tokens)
