"""The exactness gate: which engine a tokenizer may use.

gigatoken is chosen only if tokenizer.json is on the allow-list (:mod:`tokenlake.tokenizers.allowlist`) and
then gives the reference's ids on adversarial texts and on samples of the documents to come. While the build
runs, :class:`~tokenlake.tokenizers.encoder.Encoder` keeps checking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, final

import pyarrow as pa

from tokenlake.config.suggestion import require_one_of
from tokenlake.errors import MissingExtraError, TokenizerError
from tokenlake.tokenizers.allowlist import objection
from tokenlake.tokenizers.encoder import SPECIAL_TOKENS_IN_TEXT, Encoder
from tokenlake.tokenizers.fast import WINDOW, GigatokenEngine, require_equal
from tokenlake.tokenizers.files import TokenizerFiles
from tokenlake.tokenizers.fingerprint import adversarial_texts
from tokenlake.tokenizers.offsets import Locator
from tokenlake.tokenizers.reference import ReferenceEngine
from tokenlake.tokenizers.unicode_guard import UnicodeGuard

REQUESTS: Final = ("auto", "gigatoken", "tokenizers")
# The reference encodes 2-4 MB/s: with this the probe stays below two seconds.
SAMPLE_BYTES: Final = 2 << 20
_ADDED_TOKENS: Final = 512
# Offsets cost the reference three times as much as ids alone.
_PLACED: Final = 10
_PLACED_BYTES: Final = 1 << 18


@final
@dataclass(frozen=True, slots=True)
class EngineChoice:
    """Which engine runs ("gigatoken" or "tokenizers"), and why."""

    engine: str
    reason: str


def choose_engine(
    files: TokenizerFiles,
    requested: str = "auto",
    special_tokens_in_text: str = "literal",
    sample_texts: Sequence[str] = (),
) -> EngineChoice:
    """Choose the engine for a build.

    Args:
        files: the tokenizer.
        requested: "auto", "gigatoken" or "tokenizers".
        special_tokens_in_text: "literal", "encode" or "fail"; as in the build.
        sample_texts: documents of the build; the first :data:`SAMPLE_BYTES` of them are used.

    Raises:
        ConfigError: an unknown request or mode.
        TokenizerError: "gigatoken" is requested and not on the allow-list, or the tokenizer does not load.
        EngineMismatchError: "gigatoken" is requested and differs on a probe.
    """
    return _judge(files, requested, special_tokens_in_text, sample_texts)[0]


def choose_encoder(
    files: TokenizerFiles,
    requested: str = "auto",
    special_tokens_in_text: str = "literal",
    sample_texts: Sequence[str] = (),
    *,
    add_special_tokens: bool = True,
    places: bool = False,
) -> tuple[EngineChoice, Encoder]:
    """As :func:`choose_engine`, and an encoder made of the engines that were probed (0.4 s to load and warm).

    With `places` the probe also compares where tokens lie: for builds that need :meth:`Encoder.encode_spans`.
    """
    choice, reference, fast = _judge(files, requested, special_tokens_in_text, sample_texts, places)
    encoder = Encoder(
        files,
        engine=choice.engine,
        special_tokens_in_text=special_tokens_in_text,
        add_special_tokens=add_special_tokens,
        loaded=(reference, fast),
    )
    return choice, encoder


def _judge(
    files: TokenizerFiles,
    requested: str,
    special_tokens_in_text: str,
    sample_texts: Sequence[str],
    places: bool = False,
) -> tuple[EngineChoice, ReferenceEngine, GigatokenEngine | None]:
    require_one_of("engine", requested, REQUESTS)
    require_one_of("special_tokens_in_text", special_tokens_in_text, SPECIAL_TOKENS_IN_TEXT)
    literal = special_tokens_in_text != "encode"
    reference = ReferenceEngine(files, literal=literal)
    if requested == "tokenizers":
        return EngineChoice("tokenizers", "requested"), reference, None
    why_not = objection(files, literal=literal)
    if why_not is not None:
        return _refuse(files, requested, why_not), reference, None
    try:
        fast = GigatokenEngine(files, literal=literal)
        compared = probe(fast, reference, sample_texts)
        if places:
            probe_places(fast, Locator(files, reference, literal=literal), sample_texts)
    except (TokenizerError, MissingExtraError) as error:
        if requested == "gigatoken":
            raise
        return EngineChoice("tokenizers", f"gigatoken failed: {error}"), reference, None
    reason = f"on the allow-list, equal to the reference on {compared} probe texts"
    return EngineChoice("gigatoken", reason), reference, fast


def probe(fast: GigatokenEngine, reference: ReferenceEngine, sample_texts: Sequence[str] = ()) -> int:
    """Compare the engines on adversarial texts and documents; return how many texts were compared.

    Raises:
        EngineMismatchError: on the first difference.
    """
    texts = _unguarded(reference.files, [*_made_up(reference.files), *_bounded(sample_texts)])
    offsets, ids = fast.encode(pa.array(texts, pa.large_string()))
    for row, (text, expected) in enumerate(zip(texts, reference.encode(texts), strict=True)):
        require_equal(text, (expected,), (ids[offsets[row] : offsets[row + 1]],))
    return len(texts)


def probe_places(fast: GigatokenEngine, locator: Locator, sample_texts: Sequence[str] = ()) -> None:
    """Compare where the tokens of a tenth of the texts of :func:`probe`, and of the documents' beginnings, lie.

    Raises:
        EngineMismatchError: on the first difference.
    """
    files = locator.reference.files
    texts = _unguarded(files, [*_made_up(files)[::_PLACED], *_bounded(sample_texts, _PLACED_BYTES)])
    for text, made, expected in zip(
        texts, locator.of_texts(fast.encode, texts), locator.reference.encode(texts), strict=True
    ):
        require_equal(text, expected, made)


def _made_up(files: TokenizerFiles) -> list[str]:
    added = [token["content"] for token in files.added_tokens[:_ADDED_TOKENS]]
    return [*adversarial_texts(), *(f"a{token}b {token} {token}{token}" for token in added)]


def _unguarded(files: TokenizerFiles, texts: list[str]) -> list[str]:
    guarded = set(UnicodeGuard(files).rows(pa.array(texts, pa.large_string())).tolist())
    return [text for row, text in enumerate(texts) if row not in guarded]


def _refuse(files: TokenizerFiles, requested: str, reason: str) -> EngineChoice:
    if requested == "auto":
        return EngineChoice("tokenizers", f"not for gigatoken: {reason}")
    raise TokenizerError(
        f"tokenizer {files.name!r}: engine 'gigatoken' is requested, but {reason}; its ids could differ "
        "from the reference. Use engine: auto or engine: tokenizers",
        tokenizer=files.name,
        reason=reason,
    )


def _bounded(texts: Sequence[str], size: int = SAMPLE_BYTES) -> Iterator[str]:
    """Yield the texts' beginnings, `size` characters in all, each at least a window."""
    share = max(WINDOW, size // max(1, len(texts)))
    return islice((text[:share] for text in texts), size // share)
