"""The package `tokenizers` as the reference of tests, with one interface for its
versions 0.2x and 1.x.

Nothing here uses Tokenlake. Of the package, tests may import `Tokenizer` and `Encoding`
alone: version 1.0 has no trainers, models, normalizers, pre-tokenizers or
post-processors, and its encodings have no offsets. A test that compares with what only
the older versions have is marked with :data:`needs_offsets` or :data:`needs_stages`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, final

import pytest
from tokenizers import Encoding, Tokenizer

HAS_OFFSETS = hasattr(Encoding, "offsets")
"""Whether the installed version says where in a text a token is. Versions before 1.0
do.
"""
HAS_STAGES = hasattr(Tokenizer, "normalizer")
"""Whether a normalizer and a pre-tokenizer can be called by themselves. In versions
before 1.0 they can.
"""

needs_offsets = pytest.mark.skipif(
    not HAS_OFFSETS,
    reason="compares with the offsets of tokenizers, which versions from 1.0 on do not have",
)
needs_stages = pytest.mark.skipif(
    not HAS_STAGES,
    reason="calls a normalizer or pre-tokenizer by itself, which tokenizers from 1.0 on does not allow",
)

needs_slow_reference = pytest.mark.skipif(
    not HAS_STAGES,
    reason="a build chooses another tokenizer engine, which it does not beside tokenizers 1.0",
)


@final
class ReferenceTokenizer:
    """`tokenizers.Tokenizer` of a tokenizer.json.

    Args:
        tokenizer_json: Content of the file.
        literal: Strings of special tokens in a text are plain text.
        keeps_limits: The truncation and padding of the file apply. By default they do
            not.
    """

    def __init__(
        self,
        tokenizer_json: bytes,
        *,
        literal: bool = False,
        keeps_limits: bool = False,
    ) -> None:
        self.specification: dict[str, Any] = json.loads(tokenizer_json)
        self.backend = open_backend(tokenizer_json)
        # An attribute of the tokenizer before version 1.0, and an argument of each call
        # since.
        self._options: dict[str, Any] = {}
        if HAS_OFFSETS:
            self.backend.encode_special_tokens = literal
        else:
            self._options["encode_special_tokens"] = literal
        if keeps_limits:
            return
        if HAS_OFFSETS:
            self.backend.no_truncation()
            self.backend.no_padding()
        else:
            self.backend.truncation = None
            self.backend.padding = None

    @classmethod
    def of_folder(
        cls, folder: str | Path, *, literal: bool = False
    ) -> ReferenceTokenizer:
        """Return the tokenizer of a folder with a tokenizer.json."""
        return cls((Path(folder) / "tokenizer.json").read_bytes(), literal=literal)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Any:
        """Return the `tokenizers.Encoding` of a text."""
        return self.backend.encode(
            text, add_special_tokens=add_special_tokens, **self._options
        )

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[Any]:
        """Return the `tokenizers.Encoding` of each text."""
        return self.backend.encode_batch(
            list(texts), add_special_tokens=add_special_tokens, **self._options
        )

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ids."""
        return self.backend.decode(
            [int(token_id) for token_id in ids], skip_special_tokens=skip_special_tokens
        )

    def token_id(self, token: str) -> int | None:
        """Return the id that tokenizer.json gives to a token, or None where it has
        no such token.
        """
        for added in self.specification["added_tokens"]:
            if added["content"] == token:
                return added["id"]
        vocabulary = self.specification["model"]["vocab"]
        if isinstance(vocabulary, list):  # Unigram: pairs of token and score
            tokens = [entry[0] for entry in vocabulary]
            return tokens.index(token) if token in tokens else None
        return vocabulary.get(token)


def open_backend(tokenizer_json: bytes) -> Any:
    """Return the `tokenizers.Tokenizer` of a tokenizer.json; all versions read it
    from a file.
    """
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(tokenizer_json)
        file.flush()
        return Tokenizer.from_file(file.name)


def import_transformers() -> ModuleType:
    """Return the module transformers, or skip the test where it does not work with
    the installed `tokenizers`.
    """
    reason = "transformers is not installed, or does not work with this version of tokenizers"
    return pytest.importorskip("transformers", reason=reason, exc_type=ImportError)
