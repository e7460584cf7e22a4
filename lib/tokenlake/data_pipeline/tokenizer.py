"""`TokenizerWrapper`: a tokenizer whose calls return results, and which always has an id to pad with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self, final

from tokenlake.config.stages import TokenizerConfig
from tokenlake.errors import TokenlakeError
from tokenlake.result import Result, attempt
from tokenlake.rowwise.checks import section
from tokenlake.tokenizers.manager import LoadedTokenizer, TokenizerManager


@final
class TokenizerWrapper:
    """A tokenizer that is ready to encode.

    Args:
        tokenizer: Hub id, path, a `TokenizerConfig`, or an object of transformers or tokenizers.

    Attributes:
        pad_token_id: its padding, else its EOS.
        vocab_size: one more than the largest id, added tokens included.

    Raises:
        TokenizerError: it has neither padding nor EOS; name one by ``TokenizerConfig(special_tokens=...)``.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._manager = TokenizerManager()
        self.loaded: Final[LoadedTokenizer] = self._manager.get_tokenizer(tokenizer)
        self.pad_token_id: Final = self.loaded.pad_id
        self.vocab_size: Final = self.loaded.files.vocab_size

    @classmethod
    def from_pretrained(cls, name_or_path: Any, **options: Any) -> Result[Self, TokenlakeError]:
        """Return the tokenizer of an id or a path, or why there is none.

        Args:
            options: of :class:`tokenlake.TokenizerConfig`: `max_length`, `special_tokens`, `padding_side` ...
        """
        return cls.from_config({"name_or_path": name_or_path, **options} if options else name_or_path)

    @classmethod
    def from_config(cls, config: Any) -> Result[Self, TokenlakeError]:
        """Return the tokenizer of a `TokenizerConfig` (or a mapping of its keys), or why there is none."""
        return attempt(
            lambda: cls(
                section(TokenizerConfig, config, "tokenizer") if isinstance(config, Mapping) else config
            )
        )

    def __len__(self) -> int:
        """Return the size of the vocabulary."""
        return self.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        """The id that begins a text, None where none is named."""
        return self.loaded.files.bos_id

    @property
    def eos_token_id(self) -> int | None:
        """The id that ends a text, None where none is named."""
        return self.loaded.files.eos_id

    def encode(self, text: str) -> Result[list[int], TokenlakeError]:
        """Return the ids of a text, cut and surrounded as configured."""
        return self.encode_batch([text]).map(lambda rows: rows[0])

    def encode_batch(self, texts: Sequence[str]) -> Result[list[list[int]], TokenlakeError]:
        """Return the ids of texts, padded as configured."""
        return attempt(
            lambda: self._manager.tokenize_batch(self.loaded, texts, self.loaded.config)["input_ids"]
        )

    def decode(self, ids: Sequence[int]) -> Result[str, TokenlakeError]:
        """Return the text of ids, special tokens included."""
        return attempt(lambda: self.loaded.decode(ids))
