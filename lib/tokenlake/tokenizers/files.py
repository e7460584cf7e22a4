"""The files of a tokenizer, and what can be read from them without running it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast, final

from tokenlake.errors import TokenizerError

TOKENIZER_JSON: Final = "tokenizer.json"
KEPT_FILES: Final = (
    TOKENIZER_JSON,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def is_kept(name: str) -> bool:
    """Whether a file of a tokenizer's folder belongs to the tokenizer."""
    return name in KEPT_FILES


@final
@dataclass(frozen=True, kw_only=True)
class TokenizerFiles:
    """A tokenizer as bytes.

    Attributes:
        name: what the user called it; for messages only, never part of an identity.
        files: file name to content; holds `tokenizer.json`, and of :data:`KEPT_FILES` whatever was there.
        revision: the Hub commit, when it came from the Hub.

    Raises:
        TokenizerError: `tokenizer.json` is missing, or one of the JSON files is not a JSON object.
    """

    name: str
    files: Mapping[str, bytes]
    revision: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", MappingProxyType(dict(sorted(self.files.items()))))
        if TOKENIZER_JSON not in self.files:
            raise TokenizerError(
                f"tokenizer {self.name!r}: no {TOKENIZER_JSON} among {sorted(self.files) or 'no files'}; "
                "only fast tokenizers can be used. Convert it once with transformers: "
                "AutoTokenizer.from_pretrained(...).save_pretrained(directory)",
                tokenizer=self.name,
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.name, dict(self.files), self.revision)

    @classmethod
    def read(
        cls, directory: Path | str, *, name: str | None = None, revision: str | None = None
    ) -> TokenizerFiles:
        """Read the kept files of a directory; `name` defaults to the directory's path."""
        folder = Path(directory)
        found = {file: (folder / file).read_bytes() for file in KEPT_FILES if (folder / file).is_file()}
        return cls(name=name if name is not None else str(folder), files=found, revision=revision)

    @property
    def json_bytes(self) -> bytes:
        """The bytes of tokenizer.json."""
        return self.files[TOKENIZER_JSON]

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The parsed tokenizer.json (do not modify)."""
        return self._parse(TOKENIZER_JSON)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The parsed tokenizer_config.json over special_tokens_map.json; empty without them."""
        return self._parse("special_tokens_map.json") | {
            key: value for key, value in self._parse("tokenizer_config.json").items() if value is not None
        }

    @property
    def added_tokens(self) -> list[dict[str, Any]]:
        """The entries of `added_tokens` in tokenizer.json (do not modify)."""
        added: list[dict[str, Any]] | None = self.spec.get("added_tokens")
        return added or []

    @cached_property
    def _ids(self) -> dict[str, int]:
        vocab: Any = self.spec.get("model", {}).get("vocab", {})
        if isinstance(vocab, list):  # Unigram: a list of [piece, score]
            pieces = cast("list[tuple[str, float]]", vocab)
            vocab = {piece: index for index, (piece, _) in enumerate(pieces)}
        return _with_added(vocab, [token["content"] for token in self.added_tokens])

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included."""
        return max(self._ids.values(), default=-1) + 1

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The contents of the added tokens marked special, by id."""
        added = sorted(self.added_tokens, key=lambda token: token["id"])
        return tuple(token["content"] for token in added if token.get("special"))

    @property
    def bos_token(self) -> str | None:
        """The beginning-of-sequence token."""
        return self._named("bos_token")

    @property
    def eos_token(self) -> str | None:
        """The end-of-sequence token."""
        return self._named("eos_token")

    @property
    def pad_token(self) -> str | None:
        """The padding token."""
        return self._named("pad_token")

    @property
    def unk_token(self) -> str | None:
        """The unknown token."""
        return self._named("unk_token")

    @property
    def bos_id(self) -> int | None:
        """The id of :attr:`bos_token`."""
        return self._id(self.bos_token)

    @property
    def eos_id(self) -> int | None:
        """The id of :attr:`eos_token`."""
        return self._id(self.eos_token)

    @property
    def pad_id(self) -> int | None:
        """The id of :attr:`pad_token`."""
        return self._id(self.pad_token)

    @property
    def unk_id(self) -> int | None:
        """The id of :attr:`unk_token`."""
        return self._id(self.unk_token)

    def token_id(self, token: str) -> int | None:
        """Return the id of a token of the vocabulary or of the added tokens."""
        return self._ids.get(token)

    def _named(self, key: str) -> str | None:
        value: Any = self.config.get(key)
        return cast("dict[str, str]", value).get("content") if isinstance(value, dict) else value

    def _id(self, token: str | None) -> int | None:
        return None if token is None else self._ids.get(token)

    def _parse(self, file: str) -> dict[str, Any]:
        try:
            parsed: Any = json.loads(self.files.get(file, b"{}"))
        except ValueError as error:
            raise TokenizerError(f"tokenizer {self.name!r}: {file} is not valid JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise TokenizerError(
                f"tokenizer {self.name!r}: {file} holds a {type(parsed).__name__}, expected an object"
            )
        return cast("dict[str, Any]", parsed)


def _with_added(vocab: dict[str, int], added: list[str]) -> dict[str, int]:
    """Number added tokens as `tokenizers` does: past the vocabulary, whatever id the file says."""
    ids, highest = dict(vocab), -1
    for token in added:
        ids.setdefault(token, max(len(vocab), highest + 1))
        highest = max(highest, ids[token])
    return ids


def _rebuild(name: str, files: dict[str, bytes], revision: str | None) -> TokenizerFiles:
    return TokenizerFiles(name=name, files=files, revision=revision)
