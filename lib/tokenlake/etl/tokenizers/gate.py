"""The exactness gate: choose the backend of a tokenizer.

A fast backend is chosen on two conditions:

1. tokenizer.json is on the allow-list (:mod:`tokenlake.etl.tokenizers.allowlist`), or
   its splitting rules can be compiled (:mod:`tokenlake.etl.tokenizers.words`).
2. In a probe the backend gives the ids of the reference on adversarial texts and on
   samples of the documents to come.

While the build runs, :class:`~tokenlake.etl.tokenizers.encoder.Encoder` compares
further samples.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import islice, pairwise
from pathlib import Path
from typing import Final, final

import numpy as np
import pyarrow as pa

from tokenlake._version import __version__
from tokenlake.base.arrays import Int32, select, text_of_strings
from tokenlake.base.cache.disk import DiskCache
from tokenlake.base.checks import require_one_of
from tokenlake.errors import MissingExtraError, TokenizerError
from tokenlake.etl.tokenizers.allowlist import (
    UnicodeGuard,
    is_sentencepiece,
    model_type,
    objection,
)
from tokenlake.etl.tokenizers.backends import (
    FEW,
    WINDOW,
    IdBackend,
    ReferenceBackend,
    require_equal,
)
from tokenlake.etl.tokenizers.encoder import (
    BACKENDS,
    SPECIAL_TOKENS_IN_TEXT,
    Encoder,
    open_fast_backend,
)
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.etl.tokenizers.fingerprint import adversarial_texts
from tokenlake.etl.tokenizers.offsets import Locator
from tokenlake.etl.tokenizers.words.native import is_compiled
from tokenlake.etl.tokenizers.words.rules import objection_to_words
from tokenlake.runtime.tokenizer_guard.generation import (
    exports_parts,
    tokenizers_version,
)

REQUESTS: Final = ("auto", *BACKENDS)
SEGMENTS_FROM: Final = 160 << 20
"""Bytes of text from which on the segment cache is worth its start, a CPU second in
each process.
"""
WORDS_FROM: Final = 16 << 20
"""The same for WordPiece and Unigram, for which there is only the reference
otherwise.
"""
CACHED_WORDS_FROM: Final = 1 << 19
"""The same for cached words, where there is only the reference otherwise: they take
0.2 CPU seconds to start.
"""
UNCOMPILED_WORDS_FROM: Final = 8 << 20
"""The same on a machine that has not compiled them yet, which takes 7 CPU seconds
once.
"""
WORDS_BESIDE_FAST_FROM: Final = 16 << 20
"""The same for cached words where tokenizers 1.0 is the reference."""
# The reference encodes 2-4 MB/s: with this the probe stays below two seconds.
SAMPLE_BYTES: Final = 2 << 20
# Number of added tokens that are probed.
_ADDED_TOKENS: Final = 512
# Number of texts that are probed in batches of a few.
_APART: Final = 1024
# Offsets cost the reference three times as much as ids alone.
_PLACED: Final = 10
_PLACED_BYTES: Final = 1 << 18
# Packages whose versions may change the result of a probe.
_PACKAGES: Final = ("gigatoken", "tokenizers", "numba", "numpy", "pyarrow")


@final
@dataclass(frozen=True, slots=True)
class BackendChoice:
    """Backend that runs, and the reason.

    Attributes:
        engine: "words", "segments", "gigatoken" or "tokenizers".
        reason: Reason for this backend, for the log of a build.
    """

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
    probes: DiskCache | None = None,
) -> tuple[BackendChoice, Encoder]:
    """Choose the backend for a build, and return its encoder.

    The encoder has the backends that were probed.

    Args:
        files: Tokenizer.
        requested: Name of one of :data:`~tokenlake.etl.tokenizers.encoder.ENGINES`, or
            "auto".
        special_tokens_in_text: Mode of the build, "literal", "encode" or "fail".
        sample_texts: Documents of the build; the first :data:`SAMPLE_BYTES` of them are
            used.
        size: Approximate bytes of text in the build. "auto" chooses "segments" from
            :data:`SEGMENTS_FROM` on, and "words" from :data:`CACHED_WORDS_FROM` on, or
            from :data:`UNCOMPILED_WORDS_FROM` on.
        add_special_tokens: Whether the encoder has the affixes of the post-processor;
            see :class:`Encoder`.
        places: Whether the probe also compares the places of tokens, for
            :meth:`Encoder.encode_spans`.
        probes: Cache of earlier probes that found no difference. It is used for
            gigatoken and words.

    Raises:
        ConfigError: The request or the mode is unknown.
        TokenizerError: A fast backend is requested that does not support the tokenizer,
            or the tokenizer does not load.
        EngineMismatchError: A fast backend is requested and differs from the reference
            in the probe.
    """
    require_one_of("tokenizer_backend", requested, REQUESTS)
    require_one_of(
        "special_tokens_in_text", special_tokens_in_text, SPECIAL_TOKENS_IN_TEXT
    )
    reference = ReferenceBackend(files, literal=special_tokens_in_text != "encode")
    choice, fast_backend, locator = _chosen(
        reference, requested, sample_texts, size, places, probes
    )
    encoder = Encoder(
        files,
        engine=choice.engine,
        special_tokens_in_text=special_tokens_in_text,
        add_special_tokens=add_special_tokens,
        loaded=(reference, fast_backend),
        locator=locator,
    )
    return choice, encoder


def likely_encoder(
    files: TokenizerFiles,
    requested: str = "auto",
    special_tokens_in_text: str = "literal",
    size: int = 0,
    *,
    add_special_tokens: bool = True,
) -> Encoder:
    """Return an encoder of the backend that :func:`choose_encoder` would take.

    Nothing is probed. Its ids may be used only if the gate chooses the same backend.
    Arguments are those of :func:`choose_encoder`.

    Raises:
        TokenizerError, MissingExtraError: The backend does not load.
    """
    # The rules are those of the gate, except that nothing is compared.
    backend = requested
    if requested == "auto":
        fastest, _ = _fastest(files, size, literal=special_tokens_in_text != "encode")
        backend = fastest or "tokenizers"
    return Encoder(
        files,
        engine=backend,
        special_tokens_in_text=special_tokens_in_text,
        add_special_tokens=add_special_tokens,
    )


def _chosen(
    reference: ReferenceBackend,
    requested: str,
    sample_texts: Sequence[str],
    size: int,
    places: bool,
    probes: DiskCache | None,
) -> tuple[BackendChoice, IdBackend | None, Locator | None]:
    """Return the backend that runs, loaded, and its locator.

    The backend is None for "tokenizers". The locator is None without places.
    """
    # 1. A candidate: the fastest that supports the tokenizer, or the requested one.
    if requested == "tokenizers":
        return BackendChoice("tokenizers", "requested"), None, None
    files = reference.files
    literal = reference.literal
    if requested == "auto":
        backend, why_not = _fastest(files, size, literal=literal)
        if backend is None:
            return BackendChoice("tokenizers", why_not), None, None
    else:
        backend = requested
        _require_support(files, backend, literal=literal)

    # 2. Load and probe it. Without a request the reference takes the place of a
    #    backend that fails.
    try:
        try:
            fast_backend = open_fast_backend(
                backend, files, literal=literal, reference=reference
            )
        except MissingExtraError:
            # The segment cache cannot run, and was not requested: gigatoken takes its
            # place.
            was_proposed = backend == "segments" and requested == "auto"
            is_replaceable = was_proposed and model_type(files) == "BPE"
            if not is_replaceable or objection(files, literal=literal) is not None:
                raise
            backend = "gigatoken"
            fast_backend = open_fast_backend("gigatoken", files, literal=literal)
        locator: Locator | None = None
        if places:
            locator = Locator(reference, backend)
        probe_texts = [*_probe_texts(files), *_bounded(sample_texts)]
        # The segment cache runs on large inputs, beside which a probe takes no time.
        if probes is None or backend == "segments":
            _compare(backend, fast_backend, reference, sample_texts, locator)
        else:
            probe_key = _probe_key(files, probe_texts, (backend, literal, places))
            if not probes.contains(probe_key):
                _compare(backend, fast_backend, reference, sample_texts, locator)
                probes.put(probe_key, True)
    except (TokenizerError, MissingExtraError) as error:
        if requested == backend:
            raise
        return BackendChoice("tokenizers", f"{backend} failed: {error}"), None, None

    # 3. The reason, for the log.
    compared = len(_unguarded(files, probe_texts, backend))
    reason = f"on the allow-list, equal to the reference on {compared:,} probe texts"
    if backend == "words":
        reason = f"its splits are compiled, equal to the reference on {compared:,} probe texts"
    return BackendChoice(backend, reason), fast_backend, locator


def _require_support(files: TokenizerFiles, backend: str, *, literal: bool) -> None:
    """Check that a requested backend supports a tokenizer.

    Raises:
        TokenizerError: It does not.
    """
    reason = _objection(files, backend, literal=literal)
    if reason is not None:
        raise TokenizerError(
            f"tokenizer {files.name!r}: tokenizer_backend: {backend} was requested, but {reason}; its ids could "
            "differ from the reference. Use tokenizer_backend: auto or tokenizer_backend: tokenizers",
            tokenizer=files.name,
            reason=reason,
        )


def _fastest(
    files: TokenizerFiles, size: int, *, literal: bool
) -> tuple[str | None, str]:
    """Return the fastest backend for a tokenizer.

    Args:
        files: Tokenizer.
        size: Approximate bytes of text in the build.
        literal: Whether special tokens are plain text.

    Returns:
        Name of the backend and ""; or None and the reason why there is only the
        reference.
    """
    if not exports_parts():
        return _fastest_beside_fast_reference(files, size, literal=literal)

    # 1. The segment cache for large inputs, else gigatoken.
    if model_type(files) != "BPE":
        is_large = size >= WORDS_FROM
    else:
        is_large = size >= SEGMENTS_FROM and is_sentencepiece(files)
    candidate = "gigatoken"
    if is_large:
        candidate = "segments"
    reason = objection(files, candidate, literal=literal)
    if reason is None:
        return candidate, ""

    # 2. Cached words for BPE that gigatoken does not support, unless the input is too
    #    small to be worth their start.
    why_not = f"not for {candidate}: {reason}"
    if model_type(files) != "BPE":
        return None, why_not
    if size < CACHED_WORDS_FROM:
        return (
            None,
            f"{why_not}; words are cached from {CACHED_WORDS_FROM >> 10} KiB of text on",
        )
    if size < UNCOMPILED_WORDS_FROM and not is_compiled():
        return (
            None,
            f"{why_not}; words are cached from {UNCOMPILED_WORDS_FROM >> 20} MiB of text on until compiled",
        )
    reason = objection_to_words(files, literal=literal)
    if reason is None:
        return "words", ""
    return None, f"{why_not}; not for words: {reason}"


def _fastest_beside_fast_reference(
    files: TokenizerFiles, size: int, *, literal: bool
) -> tuple[str | None, str]:
    """Return the fastest backend where tokenizers 1.0 is the reference.

    That is slow in SentencePiece's style only. Arguments and result are those of
    :func:`_fastest`.
    """
    reference = f"tokenizers {tokenizers_version()}"
    if model_type(files) != "BPE" or not is_sentencepiece(files):
        return None, f"{reference} is the fastest for this tokenizer"
    if size < WORDS_BESIDE_FAST_FROM:
        return (
            None,
            f"{reference}; words are cached from {WORDS_BESIDE_FAST_FROM >> 20} MiB of text on",
        )
    reason = objection_to_words(files, literal=literal)
    if reason is None:
        return "words", ""
    return None, f"{reference}; not for words: {reason}"


def _objection(files: TokenizerFiles, backend: str, *, literal: bool) -> str | None:
    """Return why a backend does not support a tokenizer, or None."""
    if backend == "words":
        return objection_to_words(files, literal=literal)
    return objection(files, backend, literal=literal)


def _compare(
    backend: str,
    fast: IdBackend,
    reference: ReferenceBackend,
    sample_texts: Sequence[str],
    locator: Locator | None,
) -> None:
    """Compare ids, and with a locator also places, with those of the reference.

    Raises:
        EngineMismatchError: The backends differ.
    """
    probe(backend, fast, reference, sample_texts)
    if locator is not None:
        probe_places(backend, fast, locator, sample_texts)


def _probe_key(
    files: TokenizerFiles, texts: Sequence[str], settings: tuple[str, bool, bool]
) -> str:
    """Return a hash of everything that the result of a probe depends on."""
    # The samples are part of it: another source may show a difference.
    digest = hashlib.sha256(_environment())
    contents = [files.json_bytes, repr(settings).encode()]
    contents += [text.encode() for text in texts]
    # Each size comes first, so that no two lists of contents have the same bytes.
    for content in contents:
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


@cache
def _environment() -> bytes:
    """Return a hash of the versions and the code that a probe depends on.

    The code is a part of it because it changes while the version stays, during
    development.
    """
    versions = [__version__, platform.python_version(), platform.machine()]
    for package in _PACKAGES:
        versions.append(_installed(package))
    digest = hashlib.sha256("\n".join(versions).encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()


def _installed(package: str) -> str:
    """Return the version of a package, "" where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def probe(
    backend: str,
    fast: IdBackend,
    reference: ReferenceBackend,
    sample_texts: Sequence[str] = (),
) -> int:
    """Compare the backends on adversarial texts and documents.

    Returns:
        Number of texts that were compared.

    Raises:
        EngineMismatchError: The backends differ.
    """
    candidates = [*_probe_texts(reference.files), *_bounded(sample_texts)]
    texts = _unguarded(reference.files, candidates, backend)
    strings = [str(text) for text in texts]

    # Small batches, then one large one: backends may encode these in different ways.
    rows: list[Int32] = []
    edges = [*range(0, min(len(texts), _APART), FEW), len(texts)]
    for first_row, end_row in pairwise(edges):
        rows += fast.encode(text_of_strings(strings[first_row:end_row])).rows()
    expected_rows = reference.encode(texts).rows()
    for text, ids, expected in zip(strings, rows, expected_rows, strict=True):
        require_equal(backend, text, (expected,), (ids,))
    return len(texts)


def probe_places(
    backend: str, fast: IdBackend, locator: Locator, sample_texts: Sequence[str] = ()
) -> None:
    """Compare the places of tokens with those of the reference.

    The texts are a tenth of those of :func:`probe`, and the beginnings of documents.

    Raises:
        EngineMismatchError: The backends differ.
    """
    files = locator.reference.files
    candidates = _probe_texts(files)[::_PLACED]
    candidates += _bounded(sample_texts, _PLACED_BYTES)
    texts = _unguarded(files, candidates, backend)
    located = locator.of_texts(fast, texts)
    expected = locator.reference.places(texts)
    for text, result, expected_result in zip(texts, located, expected, strict=True):
        require_equal(backend, str(text), expected_result, result)


def _probe_texts(files: TokenizerFiles) -> list[str]:
    """Return adversarial texts, and texts with added tokens."""
    texts = adversarial_texts()
    for added_token in files.added_tokens[:_ADDED_TOKENS]:
        token = added_token["content"]
        texts.append(f"a{token}b {token} {token}{token}")
    return texts


def _unguarded(
    files: TokenizerFiles, texts: list[str], backend: str
) -> pa.LargeStringArray:
    """Return the texts that the backend will see in a build."""
    # Guarded documents go to the reference, so their ids need not be equal.
    array = text_of_strings(texts)
    is_free = np.ones(len(texts), np.bool_)
    is_free[UnicodeGuard(files, backend).rows(array)] = False
    return select(array, is_free)


def _bounded(texts: Sequence[str], size: int = SAMPLE_BYTES) -> Iterator[str]:
    """Yield the beginnings of texts, with `size` characters in total.

    Each beginning has a window at least. So of many texts only the first ones are used.
    """
    share = max(WINDOW, size // max(1, len(texts)))
    return islice((text[:share] for text in texts), size // share)
