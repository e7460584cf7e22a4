"""Rendered documents to marked ids, with what belongs around them, and long ones fitted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import numpy as np
import numpy.typing as npt

from tokenlake.build.finish import Finish
from tokenlake.build.lengths import Lengths
from tokenlake.config.resolved import ResolvedSource, ResolvedTokenizer
from tokenlake.errors import ConfigError
from tokenlake.faults import Fault
from tokenlake.packing.marks import LEARNED, marked
from tokenlake.ragged import Ragged
from tokenlake.tokenizers import Encoder, TokenizerFiles, choose_encoder
from tokenlake.transforms.rendering import Rendered, Renderer

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
_SPELLED = Fault("special_token_in_text", "the text spells out a special token of the tokenizer")


def _none() -> dict[int, Fault]:
    return {}


@final
@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Documents as ids.

    Attributes:
        documents: m of them, whole, marked where that was asked for; see :mod:`tokenlake.packing.marks`.
        origin: int64[m], index of the text that each is made of.
        bad: index of a text that cannot be used, and why.
    """

    documents: Ragged
    origin: Int64
    bad: dict[int, Fault] = field(default_factory=_none)


@final
class RowEncoding:
    """Encodes as a build does that packs, or one that does not.

    Encoders are made when the first text comes, and kept.
    """

    def __init__(self, files: TokenizerFiles, *, eos_id: int | None, packing: bool) -> None:
        """Take the tokenizer.

        Args:
            eos_id: what ends a packed document; None where nobody names one.
            packing: whether documents that spell their own special tokens end with EOS in any case.
        """
        self._files, self.eos_id, self._packing = files, eos_id, packing
        self._encoders: dict[tuple[str, bool, bool], Encoder] = {}

    def encode(
        self, source: ResolvedSource, rendered: Rendered, renderer: Renderer, *, masked: bool
    ) -> EncodedRows:
        """Return the documents of n texts.

        Args:
            source: settled.
            rendered: the texts; those with spans come whole.
            masked: whether ids are marked that bear loss.

        Raises:
            ConfigError: `max_length` leaves no room for a text.
            EngineMismatchError, TokenizerError: as :meth:`Encoder.encode`.
        """
        settings, spans = source.tokenizer, rendered.spans
        mode = "encode" if renderer.control_tokens else settings.special_tokens_in_text
        encoder = self._encoder(settings, mode, places=spans is not None)
        bad: dict[int, Fault] = {}
        if spans is not None:
            encoded, touched = encoder.encode_spans(rendered.text, spans)
            ids = marked(encoded.ids, touched)
        else:
            encoded = encoder.encode(rendered.text)
            ids = marked(encoded.ids) if masked else encoded.ids
            if mode == "fail":
                bad = {int(place): _SPELLED for place in encoded.special_docs}
        finish = self._finish(source, encoder) if spans is not None else None
        _require_room(settings, finish or encoder, self._files.name)
        lengths = Lengths(settings, encoder, finish, masked=masked)
        text = rendered.text if lengths.needs_text else None
        fitted = lengths.apply(ids, encoded.offsets, text).without_empty()
        if finish is None:
            documents = _surrounded(Ragged(fitted.ids, fitted.offsets), encoder, masked=masked)
        elif len(fitted.origin):
            done = finish.apply(fitted.ids, fitted.offsets, fitted.ends)
            documents = Ragged(done.ids, done.offsets)
        else:
            documents = Ragged(fitted.ids, fitted.offsets)
        return EncodedRows(documents, fitted.origin, bad)

    def _finish(self, source: ResolvedSource, encoder: Encoder) -> Finish:
        eos = -1 if self.eos_id is None else self.eos_id
        prompt = source.texts.prompt
        return Finish.around(prompt, eos, encoder.prefix, encoder.suffix, packed=self._packing)

    def _encoder(self, settings: ResolvedTokenizer, mode: str, *, places: bool) -> Encoder:
        key = mode, settings.add_special_tokens, places
        if key not in self._encoders:
            _, self._encoders[key] = choose_encoder(
                self._files,
                settings.engine,
                mode,
                add_special_tokens=settings.add_special_tokens,
                places=places,
            )
        return self._encoders[key]


def _surrounded(documents: Ragged, encoder: Encoder, *, masked: bool) -> Ragged:
    """Put around every document what the post-processor does; its end is learned as the text is."""
    count = len(documents)
    suffix = [token | LEARNED for token in encoder.suffix] if masked else encoder.suffix
    return Ragged.joined([Ragged.alike(encoder.prefix, count), documents, Ragged.alike(suffix, count)])


def _require_room(settings: ResolvedTokenizer, around: Finish | Encoder, name: str) -> None:
    special = len(around.prefix) + len(around.suffix)
    if settings.long_documents != "keep" and settings.max_length <= special:
        raise ConfigError(
            f"max_length: {settings.max_length} leaves no room for a text beside the {special} special tokens that "
            f"tokenizer {name!r} puts around it; make it larger, or use add_special_tokens: false"
        )
