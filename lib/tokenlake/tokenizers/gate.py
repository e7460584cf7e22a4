"""The exactness gate: which engine a tokenizer may use.

A fast engine is chosen only if tokenizer.json is on the allow-list (:mod:`tokenlake.tokenizers.allowlist`) and
then gives the reference's ids on adversarial texts and on samples of the documents to come. While the build
runs, :class:`~tokenlake.tokenizers.encoder.Encoder` keeps checking.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Final, final

import numpy as np
import pyarrow as pa

from tokenlake._version import __version__
from tokenlake.arrays import select, text_of_strings
from tokenlake.cache.disk import DiskCache
from tokenlake.config.values import require_one_of
from tokenlake.errors import MissingExtraError, TokenizerError
from tokenlake.tokenizers.allowlist import UnicodeGuard, model_type, objection
from tokenlake.tokenizers.encoder import ENGINES, SPECIAL_TOKENS_IN_TEXT, Encoder, fast_engine
from tokenlake.tokenizers.engines import FEW, WINDOW, IdEngine, ReferenceEngine, require_equal
from tokenlake.tokenizers.files import TokenizerFiles
from tokenlake.tokenizers.fingerprint import adversarial_texts
from tokenlake.tokenizers.offsets import Locator
from tokenlake.tokenizers.segments import is_sentencepiece

REQUESTS: Final = ("auto", *ENGINES)
SEGMENTS_FROM: Final = 160 << 20
"""Bytes of text from which on the segment cache is worth its start, a CPU second in each process."""
WORDS_FROM: Final = 16 << 20
"""The same for WordPiece and Unigram, for which there is only the reference otherwise."""
# The reference encodes 2-4 MB/s: with this the probe stays below two seconds.
SAMPLE_BYTES: Final = 2 << 20
_ADDED_TOKENS: Final = 512
_APART: Final = 1024  # texts that are probed a few at a time
# Offsets cost the reference three times as much as ids alone.
_PLACED: Final = 10
_PLACED_BYTES: Final = 1 << 18
_PACKAGES: Final = ("gigatoken", "tokenizers", "numpy", "pyarrow")


@final
@dataclass(frozen=True, slots=True)
class EngineChoice:
    """Which engine runs ("segments", "gigatoken" or "tokenizers"), and why."""

    engine: str
    reason: str


def choose_encoder(
    files: TokenizerFiles,
    requested: str = "auto",
    special_tokens_in_text: str = "literal",
    sample_texts: Sequence[str] = (),
    size: int = 0,
    *,
    add_special_tokens: bool = True,
    places: bool = False,
    known: DiskCache | None = None,
) -> tuple[EngineChoice, Encoder]:
    """Choose the engine for a build, and return an encoder made of the engines that were probed.

    Args:
        files: the tokenizer.
        requested: "auto", or one of :data:`~tokenlake.tokenizers.encoder.ENGINES`.
        special_tokens_in_text: "literal", "encode" or "fail"; as in the build.
        sample_texts: documents of the build; the first :data:`SAMPLE_BYTES` of them are used.
        size: about how many bytes of text there are; "auto" takes "segments" from :data:`SEGMENTS_FROM` on.
        add_special_tokens: as of :class:`Encoder`.
        places: the probe also compares where tokens lie: for builds that need :meth:`Encoder.encode_spans`.
        known: probes that need not be made again; those of gigatoken are looked up and remembered.

    Raises:
        ConfigError: an unknown request or mode.
        TokenizerError: a fast engine is requested for a tokenizer that is not its, or the tokenizer does not load.
        EngineMismatchError: a fast engine is requested and differs on a probe.
    """
    require_one_of("engine", requested, REQUESTS)
    require_one_of("special_tokens_in_text", special_tokens_in_text, SPECIAL_TOKENS_IN_TEXT)
    reference = ReferenceEngine(files, literal=special_tokens_in_text != "encode")
    choice, fast, locator = _chosen(reference, requested, sample_texts, size, places, known)
    encoder = Encoder(
        files,
        engine=choice.engine,
        special_tokens_in_text=special_tokens_in_text,
        add_special_tokens=add_special_tokens,
        loaded=(reference, fast),
        locator=locator,
    )
    return choice, encoder


def _chosen(
    reference: ReferenceEngine,
    requested: str,
    sample_texts: Sequence[str],
    size: int,
    places: bool,
    known: DiskCache | None,
) -> tuple[EngineChoice, IdEngine | None, Locator | None]:
    if requested == "tokenizers":
        return EngineChoice("tokenizers", "requested"), None, None
    files, literal, asked = reference.files, reference.literal, requested != "auto"
    words = model_type(files) != "BPE"
    large = size >= (WORDS_FROM if words else SEGMENTS_FROM) and (words or is_sentencepiece(files))
    engine = requested if asked else "segments" if large else "gigatoken"
    why_not = objection(files, engine, literal=literal)
    if why_not is not None:
        if not asked:
            return EngineChoice("tokenizers", f"not for {engine}: {why_not}"), None, None
        raise TokenizerError(
            f"tokenizer {files.name!r}: engine {engine!r} is requested, but {why_not}; its ids could differ "
            "from the reference. Use engine: auto or engine: tokenizers",
            tokenizer=files.name,
            reason=why_not,
        )
    try:
        try:
            fast = fast_engine(engine, files, literal=literal)
        except MissingExtraError:  # gigatoken does where the segment cache cannot run and nobody asked for it
            if asked or engine != "segments" or words:
                raise
            engine, fast = "gigatoken", fast_engine("gigatoken", files, literal=literal)
        # The segment cache is for large inputs, of which a probe is no part worth remembering.
        known = known if engine == "gigatoken" else None
        texts = [*_made_up(files), *_bounded(sample_texts)]
        key, locator = "", Locator(reference, engine) if places else None
        if known is not None:
            # A probe depends on nothing else; a text that is another asks the engines again.
            digest, settings = hashlib.sha256(_world()), repr((engine, literal, places)).encode()
            for part in (files.json_bytes, settings, *(text.encode() for text in texts)):
                digest.update(len(part).to_bytes(8, "little") + part)
            key = digest.hexdigest()
        if known is None or not known.contains(key):
            probe(engine, fast, reference, sample_texts)
            if locator is not None:
                probe_places(engine, fast, locator, sample_texts)
            if known is not None:
                known.put(key, True)
    except (TokenizerError, MissingExtraError) as error:
        if requested == engine:
            raise
        return EngineChoice("tokenizers", f"{engine} failed: {error}"), None, None
    compared = len(_unguarded(files, texts))
    reason = f"on the allow-list, equal to the reference on {compared:,} probe texts"
    return EngineChoice(engine, reason), fast, locator


@cache
def _world() -> bytes:
    """Return the versions and the code that a probe depends on; the code, because versions stay while it is written."""
    code = sorted(Path(__file__).parent.glob("*.py"))
    facts = [__version__, platform.python_version(), platform.machine(), *map(version, _PACKAGES)]
    return hashlib.sha256("\n".join(facts).encode() + b"".join(path.read_bytes() for path in code)).digest()


def probe(engine: str, fast: IdEngine, reference: ReferenceEngine, sample_texts: Sequence[str] = ()) -> int:
    """Compare the engines on adversarial texts and documents; return how many texts were compared.

    Raises:
        EngineMismatchError: on the first difference.
    """
    texts = _unguarded(reference.files, [*_made_up(reference.files), *_bounded(sample_texts)])
    # A few at a time, then all at once: engines may do these in different ways.
    strings = [str(text) for text in texts]
    edges = [*range(0, min(len(texts), _APART), FEW), len(texts)]
    made = [fast.encode(text_of_strings(strings[first:last])).rows() for first, last in pairwise(edges)]
    for text, ids, expected in zip(strings, chain(*made), reference.encode(texts).rows(), strict=True):
        require_equal(engine, text, (expected,), (ids,))
    return len(texts)


def probe_places(engine: str, fast: IdEngine, locator: Locator, sample_texts: Sequence[str] = ()) -> None:
    """Compare where the tokens of a tenth of the texts of :func:`probe`, and of the documents' beginnings, lie.

    Raises:
        EngineMismatchError: on the first difference.
    """
    files = locator.reference.files
    texts = _unguarded(files, [*_made_up(files)[::_PLACED], *_bounded(sample_texts, _PLACED_BYTES)])
    pairs = zip(locator.of_texts(fast, texts), locator.reference.places(texts), strict=True)
    for text, (made, expected) in zip(texts, pairs, strict=True):
        require_equal(engine, str(text), expected, made)


def _made_up(files: TokenizerFiles) -> list[str]:
    added = [token["content"] for token in files.added_tokens[:_ADDED_TOKENS]]
    return [*adversarial_texts(), *(f"a{token}b {token} {token}{token}" for token in added)]


def _unguarded(files: TokenizerFiles, texts: list[str]) -> pa.LargeStringArray:
    array = text_of_strings(texts)
    free = np.ones(len(texts), np.bool_)
    free[UnicodeGuard(files).rows(array)] = False
    return select(array, free)


def _bounded(texts: Sequence[str], size: int = SAMPLE_BYTES) -> Iterator[str]:
    """Yield the texts' beginnings, `size` characters in all, each at least a window."""
    share = max(WINDOW, size // max(1, len(texts)))
    return islice((text[:share] for text in texts), size // share)
