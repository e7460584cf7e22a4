"""`TokenizerManager`: texts to ids from Python, with truncation, special tokens, padding and attention masks; and
`Decoder`: ids back to text, with a version's own copy of its tokenizer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int32, Ragged
from tokenlake.base.fingerprint import canonical_json
from tokenlake.config.stages import DEFAULT_MAX_LENGTH, TokenizerConfig
from tokenlake.errors import ConfigError, NotFoundError, TokenizerError
from tokenlake.etl.tokenizers.encoder import Encoder, column_of_texts
from tokenlake.etl.tokenizers.files import TOKENIZER_JSON, TokenizerFiles, files_of
from tokenlake.etl.tokenizers.fingerprint import describe, identity
from tokenlake.etl.tokenizers.gate import choose_encoder
from tokenlake.runtime.reading.file_hashes import verified_bytes
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.layout import TOKENIZER, Layout
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.tokenizer_guard.adapter import Backend, open_backend


@final
class LoadedTokenizer:
    """A tokenizer that is ready to encode; :meth:`TokenizerManager.get_tokenizer` makes it.

    Attributes:
        files: what it is made of.
        config: how it was asked for; :meth:`TokenizerManager.tokenize_batch` follows it where it is told nothing else.
    """

    def __init__(self, files: TokenizerFiles, config: TokenizerConfig) -> None:
        self.files, self.config = files, config
        self._encoders: dict[bool, Encoder] = {}

    def encode(self, text: pa.LargeStringArray, config: TokenizerConfig | None = None) -> Ragged:
        """Return the ids of texts, cut and with special tokens around them as `config` says, not padded.

        A special token's own text is plain text.

        Args:
            text: large_string[n], no nulls.
            config: None for :attr:`config`.

        Raises:
            ConfigError: `max_length` leaves no room for a token of the text.
            TokenizerError, EngineMismatchError: as :meth:`Encoder.encode`.
        """
        config = config or self.config
        encoder = self._encoder(config.add_special_tokens)
        encoded = encoder.encode(text)
        own, count = Ragged(encoded.ids, encoded.offsets), len(encoded)
        if config.truncation is not False:
            around = len(encoder.prefix) + len(encoder.suffix)
            room = (config.max_length or DEFAULT_MAX_LENGTH) - around
            if room < 1:
                raise ConfigError(
                    f"max_length: {config.max_length} leaves no room for a text beside the {around} special tokens "
                    f"that tokenizer {self.files.name!r} puts around it; make it larger, or use "
                    "add_special_tokens=False"
                )
            own = own.cut(np.full(count, room))
        return Ragged.joined([Ragged.alike(encoder.prefix, count), own, Ragged.alike(encoder.suffix, count)])

    def decode(self, ids: Sequence[int] | Int32) -> str:
        """Return the text of `ids`, special tokens included."""
        return self._encoder(False).decode(ids)

    @property
    def pad_id(self) -> int:
        """The id that fills up rows: the tokenizer's padding, else its EOS.

        Raises:
            TokenizerError: it has neither.
        """
        if self.files.fill_id is None:
            raise TokenizerError(
                f"tokenizer {self.files.name!r}: it has neither a padding nor an EOS token, so rows cannot be padded; "
                "use padding=False, or name a pad_token in its tokenizer_config.json",
                tokenizer=self.files.name,
            )
        return self.files.fill_id

    def pads_left(self, config: TokenizerConfig) -> bool:
        """Whether padding goes before a text: as `config` says, else tokenizer_config.json."""
        return (config.padding_side or self.files.config.get("padding_side")) == "left"

    def _encoder(self, add_special_tokens: bool) -> Encoder:
        if add_special_tokens not in self._encoders:
            _, encoder = choose_encoder(self.files, add_special_tokens=add_special_tokens)
            self._encoders[add_special_tokens] = encoder
        return self._encoders[add_special_tokens]


@final
class TokenizerManager:
    """Loads tokenizers, each once, and encodes texts with them.

    Ids equal those of `tokenizers.Tokenizer.from_file(tokenizer.json)`; a fast engine makes them where it is proven
    exact. A special token's own text inside a text is plain text, as in a build.
    """

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, str], LoadedTokenizer] = {}

    def get_tokenizer(self, tokenizer: Any) -> LoadedTokenizer:
        """Return a tokenizer, loaded before if its files are still the same.

        Args:
            tokenizer: a Hub id, directory or tokenizer.json file, a :class:`TokenizerConfig`, or an object of
                `transformers` (a fast one) or of `tokenizers`.

        Raises:
            SourceNotFoundError, TokenizerError, MissingExtraError: as :func:`load_tokenizer`.
        """
        if isinstance(tokenizer, LoadedTokenizer):
            return tokenizer
        files = files_of(tokenizer)
        config = (
            tokenizer if isinstance(tokenizer, TokenizerConfig) else TokenizerConfig(name_or_path=files.name)
        )
        key = content_hash(files), config.model_dump_json()
        return self._loaded.setdefault(key, LoadedTokenizer(files, config))

    def tokenize_text(
        self,
        tokenizer: Any,
        text: str,
        config: TokenizerConfig | None = None,
        *,
        return_tensors: str | None = None,
    ) -> dict[str, Any]:
        """Return ``input_ids`` and, where asked for, ``attention_mask`` of one text: as for one row of a batch."""
        batch = self.tokenize_batch(tokenizer, [text], config, return_tensors=return_tensors)
        return {name: rows[0] for name, rows in batch.items()}

    def tokenize_batch(
        self,
        tokenizer: Any,
        texts: Sequence[str],
        config: TokenizerConfig | None = None,
        *,
        return_tensors: str | None = None,
    ) -> dict[str, Any]:
        """Return ``input_ids`` and, where asked for, ``attention_mask`` of texts.

        Args:
            tokenizer: whatever :meth:`get_tokenizer` takes.
            texts: n texts.
            config: how to cut, pad and surround them; None: as `tokenizer` was asked for.
            return_tensors: None for lists of ints; "np" for int32 arrays: one of shape (n, longest) where rows are
                padded, else a list of n.

        Raises:
            ConfigError: an argument is not what is allowed.
            as :meth:`LoadedTokenizer.encode`.
        """
        if return_tensors not in (None, "np"):
            raise ConfigError(f"return_tensors: got {return_tensors!r}, must be None or 'np'")
        loaded = self.get_tokenizer(tokenizer)
        config = config or loaded.config
        ids = loaded.encode(column_of_texts(texts), config)
        columns = with_masks(ids, loaded, config)
        if return_tensors:
            return columns
        return {name: [row.tolist() for row in rows] for name, rows in columns.items()}


def with_masks(ragged: Ragged, loaded: LoadedTokenizer, config: TokenizerConfig) -> dict[str, Any]:
    """Return ``input_ids`` and ``attention_mask``: int32[n, width] where rows are padded, else lists of arrays.

    Rows that are longer than the width asked for are as long as they are; then all are a list.
    """
    longest = int(ragged.lengths.max(initial=0))
    width = config.max_length or DEFAULT_MAX_LENGTH if config.padding == "max_length" else longest
    ones = np.ones(len(ragged.ids), np.int32)
    columns: dict[str, Any] = {
        "input_ids": ragged.rows(),
        "attention_mask": Ragged(ones, ragged.offsets).rows(),
    }
    if config.padding in ("longest", "max_length"):
        left, pad_id, whole = loaded.pads_left(config), loaded.pad_id, longest <= width
        parts = [ragged] if whole else [Ragged(row, np.array([0, len(row)])) for row in ragged.rows()]
        made = [
            part.rectangle(width if whole else max(width, len(part.ids)), pad_id, left=left) for part in parts
        ]
        filled: tuple[Any, Any] = [ids for ids, _ in made], [here.astype(np.int32) for _, here in made]
        columns = dict(
            zip(columns, (rows[0] if whole else [row[0] for row in rows] for rows in filled), strict=True)
        )
    if not config.return_attention_mask:
        del columns["attention_mask"]
    return columns


def compute_tokenizer_hash(tokenizer: Any) -> str:
    """Return a hash (sha256, hex) of what a tokenizer is and does: its files and its ids of fixed texts, not its name.

    Args:
        tokenizer: whatever :meth:`TokenizerManager.get_tokenizer` takes. What is made of an object of `transformers`
            has other files than the directory it was loaded from, hence another hash.

    Raises:
        as :meth:`TokenizerManager.get_tokenizer`.
    """
    files = tokenizer.files if isinstance(tokenizer, LoadedTokenizer) else files_of(tokenizer)
    return hashlib.sha256(canonical_json(identity(describe(files)))).hexdigest()


def content_hash(files: TokenizerFiles) -> str:
    """Return a hash of a tokenizer's files."""
    parts = [f"{name} {hashlib.sha256(data).hexdigest()}" for name, data in files.files.items()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@final
class Decoder:
    """Decodes ids of one version; special tokens stay visible.

    Args:
        tokenizer_json: content of the version's tokenizer.json.
        name: where it is from, for messages.
    """

    def __init__(self, tokenizer_json: bytes, name: str) -> None:
        self._json = tokenizer_json
        self._name = name

    @classmethod
    def of(cls, store: ReadStore, manifest: Manifest, source: str | None = None) -> Self:
        """Read the tokenizer of a version, or of one of its sources, verified.

        Raises:
            NotFoundError: the version has no tokenizer.
            ConfigError: its sources have different tokenizers, and none is named.
        """
        where = f"{manifest.dataset}@v{manifest.version}"
        found = _tokenizers(manifest, "" if source is None else manifest.tokenizer[source].get("folder", ""))
        if not found:
            raise NotFoundError(f"{where} holds no {TOKENIZER}/{TOKENIZER_JSON}; its ids cannot be decoded")
        if len(found) > 1:
            raise ConfigError(
                f"the sources of {where} have different tokenizers ({', '.join(sorted(found.values()))}), so its ids "
                "cannot be decoded without knowing the source; build one dataset for each"
            )
        return cls.all_of(store, manifest, found)[0]

    @classmethod
    def all_of(
        cls, store: ReadStore, manifest: Manifest, files: Mapping[str, str] | None = None
    ) -> list[Self]:
        """Read each tokenizer of a version, verified.

        Args:
            files: only of these: sha256 -> path.
        """
        layout = Layout(manifest.dataset, manifest.version)
        found = _tokenizers(manifest, "") if files is None else files
        decoders: list[Self] = []
        for digest, path in found.items():
            name = f"{manifest.dataset}@v{manifest.version}/{path}"
            decoders.append(cls(verified_bytes(store, layout, path, digest), name))
        return decoders

    @cached_property
    def _tokenizer(self) -> Backend:
        return open_backend(self._name, self._json)

    def text(self, ids: Iterable[int]) -> str:
        """Decode one run of ids; bytes that are no whole character become U+FFFD."""
        return self._tokenizer.decode(list(ids))


def _tokenizers(manifest: Manifest, folder: str) -> dict[str, str]:
    """Return the tokenizers of a version that differ: sha256 -> the first path of each."""
    return {
        entry.sha256: path
        for path, entry in sorted(manifest.other_files.items(), reverse=True)
        if path.startswith(f"{TOKENIZER}/{folder}") and path.endswith(f"/{TOKENIZER_JSON}")
    }
