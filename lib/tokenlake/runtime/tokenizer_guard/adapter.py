"""The only interface of the library to `tokenizers`, for both of its generations.

:func:`open_library_tokenizer` returns a :class:`LibraryTokenizer`. It encodes texts to
NumPy arrays and decodes ids. Where the installed generation gives no places of tokens,
:attr:`LibraryTokenizer.has_places` is false, and
:mod:`tokenlake.etl.tokenizers.alignment` finds them from the ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, final

import numpy as np

from tokenlake.base.arrays import Int32, Int64
from tokenlake.errors import TokenizerError
from tokenlake.runtime.tokenizer_guard.byte_alphabet import byte_characters
from tokenlake.runtime.tokenizer_guard.generation import OLDER, exports_parts
from tokenlake.runtime.tokenizer_guard.loading import open_tokenizer
from tokenlake.runtime.tokenizer_guard.process import BoundedTokenizer
from tokenlake.runtime.tokenizer_guard.shape import (
    TOKENIZER_JSON,
    parse_json_object,
    require_tokenizer_shape,
)
from tokenlake.runtime.tokenizer_guard.vocabulary import ids_by_token


class LibraryTokenizer(Protocol):
    """A tokenizer without truncation and padding.

    Attributes:
        has_places: Whether :meth:`encode_with_places` works.
        raw: The `tokenizers.Tokenizer`, or the
            :class:`~tokenlake.runtime.tokenizer_guard.process.BoundedTokenizer`,
            itself.
    """

    has_places: bool
    raw: Any

    def encode(
        self, texts: Sequence[str], *, literal: bool, add_special_tokens: bool = False
    ) -> list[Int32]:
        """Return the ids of texts.

        Args:
            texts: Texts, n of them.
            literal: Whether strings of special tokens are plain text.
            add_special_tokens: Whether the post-processor adds its tokens.
        """
        ...

    def encode_with_places(
        self, texts: Sequence[str], *, literal: bool
    ) -> list[tuple[Int32, Int64]]:
        """Return the ids of texts, and the characters of each id.

        The ids are int32[k], the first and last (exclusive) characters int64[k, 2].
        """
        ...

    def normalize(self, text: str) -> str:
        """Return a text as the normalizer changes it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, including special tokens."""
        ...

    def token_to_id(self, token: str) -> int | None:
        """Return the id that the tokenizer itself gives to a token.

        The result is None if it has no such token.
        """
        ...


def open_library_tokenizer(
    name: str,
    tokenizer_json: bytes,
    spec: Mapping[str, Any] | None = None,
    *,
    threads: bool = False,
) -> LibraryTokenizer:
    """Return the backend of a tokenizer.json.

    A tokenizer of an unusual form runs in a process of its own:
    :func:`~tokenlake.runtime.tokenizer_guard.loading.open_tokenizer` says which.

    Args:
        name: Name of the tokenizer, for messages.
        tokenizer_json: Content of the file.
        spec: Parsed and checked form of the same file. Default: the file is parsed now.
        threads: Whether one call may use all cores. Before tokenizers 1.0,
            `TOKENIZERS_PARALLELISM` decides.

    Raises:
        MissingExtraError: `tokenizers` is not installed.
        TokenizerError: The file is not a tokenizer's, cannot be loaded, takes too much
            time or memory to load, or is of a form that the installed `tokenizers` does
            not reproduce.
    """
    if spec is None:
        spec = parse_json_object(name, TOKENIZER_JSON, tokenizer_json)
        require_tokenizer_shape(name, spec)
    tokenizer = open_tokenizer(name, tokenizer_json, spec)
    if exports_parts():
        return _WithParts(tokenizer)
    return _IdsOnly(name, tokenizer, spec, threads=threads)


@final
class _WithParts:
    """A tokenizer of the generation before 1.0."""

    def __init__(self, tokenizer: Any) -> None:
        self.has_places = True
        self.raw = tokenizer
        self._tokenizer = tokenizer

    def encode(
        self, texts: Sequence[str], *, literal: bool, add_special_tokens: bool = False
    ) -> list[Int32]:
        self._set_literal(literal)
        encodings = self._tokenizer.encode_batch_fast(
            list(texts), add_special_tokens=add_special_tokens
        )
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_with_places(
        self, texts: Sequence[str], *, literal: bool
    ) -> list[tuple[Int32, Int64]]:
        self._set_literal(literal)
        encoded_texts: list[tuple[Int32, Int64]] = []
        for encoding in self._tokenizer.encode_batch(
            list(texts), add_special_tokens=False
        ):
            places = np.array(encoding.offsets, np.int64).reshape(-1, 2)
            encoded_texts.append((np.array(encoding.ids, np.int32), places))
        return encoded_texts

    def _set_literal(self, literal: bool) -> None:
        """Have strings of special tokens encoded as plain text, or not."""
        # Setting it while another thread encodes is an error, even to the same value.
        if self._tokenizer.encode_special_tokens != literal:
            self._tokenizer.encode_special_tokens = literal

    def normalize(self, text: str) -> str:
        normalizer: Any = self._tokenizer.normalizer
        if normalizer is None:
            return text
        return normalizer.normalize_str(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def token_to_id(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)


@final
class _IdsOnly:
    """A tokenizer of the generation from 1.0 on."""

    def __init__(
        self, name: str, tokenizer: Any, spec: Mapping[str, Any], *, threads: bool
    ) -> None:
        self.has_places = False
        self.raw = tokenizer
        self._name = name
        self._tokenizer = tokenizer
        self._spec = spec
        self._threads = threads

    def encode(
        self, texts: Sequence[str], *, literal: bool, add_special_tokens: bool = False
    ) -> list[Int32]:
        # A process gives lists of ids; the package gives arrays.
        if isinstance(self._tokenizer, BoundedTokenizer):
            self._tokenizer.encode_special_tokens = literal
            bounded = self._tokenizer.encode_batch_fast(
                texts, add_special_tokens=add_special_tokens
            )
            return [np.array(encoding.ids, np.int32) for encoding in bounded]
        options = {
            "add_special_tokens": add_special_tokens,
            "encode_special_tokens": literal,
        }
        if self._threads:
            encodings: list[Any] = self._tokenizer.encode_batch(list(texts), **options)
        else:
            # A batch starts threads, but the other cores belong to other workers.
            encodings = [self._tokenizer.encode(text, **options) for text in texts]
        return [encoding.ids_array.view(np.int32) for encoding in encodings]

    def encode_with_places(
        self, texts: Sequence[str], *, literal: bool
    ) -> list[tuple[Int32, Int64]]:
        raise TokenizerError(
            f"tokenizer {self._name!r}: the installed tokenizers reports no token offsets; {OLDER}",
            tokenizer=self._name,
        )

    def normalize(self, text: str) -> str:
        if self._spec.get("normalizer") is None:
            return text
        # The ids of the spelling tokenizer are the bytes of the normalized text.
        (ids,) = self._spelling.encode([text], literal=True)
        return ids.astype(np.uint8).tobytes().decode()

    @cached_property
    def _spelling(self) -> LibraryTokenizer:
        """Tokenizer with the same normalizer, and with an id for each byte.

        Its ids spell the normalized text.
        """
        return open_library_tokenizer(
            self._name, spelling_json(self._spec["normalizer"])
        )

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def token_to_id(self, token: str) -> int | None:
        token_id = ids_by_token(self._spec).get(token)
        if token_id is None:
            return None
        # The file names the id; the tokenizer must give the token back.
        if isinstance(self._tokenizer, BoundedTokenizer):
            is_given_back = self._tokenizer.id_to_token(token_id) == token
        else:
            is_given_back = self._tokenizer.decode_tokens([token_id]) == [token]
        if not is_given_back:
            return None
        return token_id


def spelling_json(normalizer: Mapping[str, Any]) -> bytes:
    """Return a tokenizer.json with a normalizer and one id for each byte.

    The id is the byte itself.
    """
    # No merges: each byte stays a token.
    vocab = {letter: byte for byte, letter in enumerate(byte_characters())}
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    spec = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    return json.dumps(spec).encode()
