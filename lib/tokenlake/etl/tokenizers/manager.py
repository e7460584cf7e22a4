"""Encode texts from Python, and decode the ids of a version.

:class:`TokenizerManager` encodes texts with truncation, special tokens, padding and
attention masks. :class:`Decoder` decodes ids with the copy of the tokenizer that a
version holds.
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
from tokenlake.runtime.tokenizer_guard.adapter import (
    LibraryTokenizer,
    open_library_tokenizer,
)


@final
class LoadedTokenizer:
    """A tokenizer that is ready to encode, from :meth:`TokenizerManager.get_tokenizer`.

    Attributes:
        files: Files of the tokenizer.
        config: Default options of :meth:`encode` and
            :meth:`TokenizerManager.tokenize_batch`.
    """

    def __init__(self, files: TokenizerFiles, config: TokenizerConfig) -> None:
        self.files = files
        self.config = config
        self._encoders: dict[bool, Encoder] = {}

    def encode(
        self, text: pa.LargeStringArray, config: TokenizerConfig | None = None
    ) -> Ragged:
        """Return the ids of texts, without padding.

        They are truncated, and surrounded by special tokens. The string of a special
        token inside a text is plain text.

        Args:
            text: large_string[n], no nulls.
            config: Options of truncation and special tokens. Default: :attr:`config`.

        Raises:
            ConfigError: `max_length` leaves no room for a token of the text.
            TokenizerError: A text has nulls or is not UTF-8.
            EngineMismatchError: The fast backend differs from the reference on a
                sampled text.
        """
        # 1. The ids of the texts alone.
        config = config or self.config
        encoder = self._encoder(config.add_special_tokens)
        encoded = encoder.encode(text)
        text_count = len(encoded)
        ids = Ragged(encoded.ids, encoded.offsets)

        # 2. Truncate them. The special tokens around a text count.
        if config.truncation is not False:
            special_count = len(encoder.prefix) + len(encoder.suffix)
            text_length = (config.max_length or DEFAULT_MAX_LENGTH) - special_count
            if text_length < 1:
                raise ConfigError(
                    f"max_length: {config.max_length} leaves no room for text besides the {special_count} special "
                    f"tokens that tokenizer {self.files.name!r} adds; make it larger, or use "
                    "add_special_tokens=False"
                )
            ids = ids.cut(np.full(text_count, text_length))

        # 3. Put the special tokens around them.
        prefixes = Ragged.alike(encoder.prefix, text_count)
        suffixes = Ragged.alike(encoder.suffix, text_count)
        return Ragged.joined([prefixes, ids, suffixes])

    def decode(self, ids: Sequence[int] | Int32) -> str:
        """Return the text of ids, including special tokens."""
        return self._encoder(False).decode(ids)

    @property
    def pad_id(self) -> int:
        """Id that fills rows: that of padding, otherwise that of EOS.

        Raises:
            TokenizerError: The tokenizer has neither.
        """
        if self.files.fill_id is None:
            raise TokenizerError(
                f"tokenizer {self.files.name!r}: it has neither a padding nor an EOS token, so rows cannot be padded; "
                "use padding=False, or name a pad_token in its tokenizer_config.json",
                tokenizer=self.files.name,
            )
        return self.files.fill_id

    def pads_left(self, config: TokenizerConfig) -> bool:
        """Whether padding goes before a text.

        Args:
            config: Options; its `padding_side` comes before that of
                tokenizer_config.json.
        """
        side = config.padding_side or self.files.config.get("padding_side")
        return side == "left"

    def _encoder(self, add_special_tokens: bool) -> Encoder:
        """Return the encoder with or without special tokens, which is loaded once."""
        if add_special_tokens not in self._encoders:
            _, encoder = choose_encoder(
                self.files, add_special_tokens=add_special_tokens
            )
            self._encoders[add_special_tokens] = encoder
        return self._encoders[add_special_tokens]


@final
class TokenizerManager:
    """Load tokenizers, each once, and encode texts with them.

    Ids equal those of `tokenizers.Tokenizer.from_file(tokenizer.json)`. A faster
    backend is used only after it matches the reference. The string of a special token
    inside a text is plain text, as in a build.

    Example:
        >>> import tokenlake as tl
        >>> from tokenlake.etl.tokenizers import train_bpe
        >>> files = train_bpe(["low lower lowest"], 300)
        >>> manager = tl.TokenizerManager()
        >>> tokenizer = manager.get_tokenizer(files)
        >>> ids = manager.tokenize_text(tokenizer, "low")["input_ids"]
        >>> tokenizer.decode(ids)
        'low'
    """

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, str], LoadedTokenizer] = {}

    def get_tokenizer(self, tokenizer: Any) -> LoadedTokenizer:
        """Load a tokenizer, or return one that was loaded before from the same files.

        Args:
            tokenizer: Hub id, directory, tokenizer.json file, :class:`TokenizerConfig`,
                fast tokenizer of `transformers`, or tokenizer of `tokenizers`.

        Raises:
            SourceNotFoundError: The tokenizer does not exist, or cannot be reached.
            TokenizerError: Its files are not those of a tokenizer.
            MissingExtraError: A package that opens it is not installed.
        """
        if isinstance(tokenizer, LoadedTokenizer):
            return tokenizer
        files = files_of(tokenizer)
        config = tokenizer
        if not isinstance(tokenizer, TokenizerConfig):
            config = TokenizerConfig(name_or_path=files.name)
        # Equal files with other options are another tokenizer.
        cache_key = (content_hash(files), config.model_dump_json())
        return self._loaded.setdefault(cache_key, LoadedTokenizer(files, config))

    def tokenize_text(
        self,
        tokenizer: Any,
        text: str,
        config: TokenizerConfig | None = None,
        *,
        return_tensors: str | None = None,
    ) -> dict[str, Any]:
        """Encode one text, as :meth:`tokenize_batch` encodes a batch of one.

        Args:
            tokenizer: Tokenizer, as in :meth:`get_tokenizer`.
            text: Text.
            config: Options. Default: those of `tokenizer`.
            return_tensors: Type of the values: None for a list of ints, "np" for int32
                arrays.

        Returns:
            ``input_ids`` and, if the options request it, ``attention_mask``.

        Raises:
            ConfigError: An argument has a value that is not allowed.
        """
        batch = self.tokenize_batch(
            tokenizer, [text], config, return_tensors=return_tensors
        )
        return {column_name: rows[0] for column_name, rows in batch.items()}

    def tokenize_batch(
        self,
        tokenizer: Any,
        texts: Sequence[str],
        config: TokenizerConfig | None = None,
        *,
        return_tensors: str | None = None,
    ) -> dict[str, Any]:
        """Encode texts.

        Args:
            tokenizer: Tokenizer, as in :meth:`get_tokenizer`.
            texts: Texts, n of them.
            config: Options of truncation, padding and special tokens. Default: those of
                `tokenizer`.
            return_tensors: Type of the values: None for lists of ints, "np" for int32
                arrays. If rows are padded, "np" gives one array of shape (n, longest),
                otherwise a list of n arrays.

        Returns:
            ``input_ids`` and, if the options request it, ``attention_mask``.

        Raises:
            ConfigError: An argument has a value that is not allowed, or `max_length`
                leaves no room for a text.
            TokenizerError: A text is not valid.
            EngineMismatchError: The fast backend differs from the reference on a
                sampled text.
        """
        if return_tensors not in (None, "np"):
            raise ConfigError(
                f"return_tensors: got {return_tensors!r}, must be None or 'np'"
            )
        loaded = self.get_tokenizer(tokenizer)
        config = config or loaded.config
        ids = loaded.encode(column_of_texts(texts), config)
        columns = with_masks(ids, loaded, config)
        if return_tensors:
            return columns
        # Rows are arrays; a caller that asks for no arrays gets lists of Python ints.
        lists: dict[str, Any] = {}
        for column_name, rows in columns.items():
            lists[column_name] = [row.tolist() for row in rows]
        return lists


def with_masks(
    ragged: Ragged, loaded: LoadedTokenizer, config: TokenizerConfig
) -> dict[str, Any]:
    """Pad rows of ids as the options say, and add the attention mask.

    Args:
        ragged: Ids of n texts.
        loaded: Tokenizer, for the id and the side of padding.
        config: Options.

    Returns:
        ``input_ids`` and, if the options request it, ``attention_mask``. Each is
        int32[n, width] if rows are padded and none is longer than the width, otherwise
        a list of n arrays int32.
    """
    # Without padding, every id of a row is one of the text.
    if config.padding in ("longest", "max_length"):
        columns = _padded(ragged, loaded, config)
    else:
        ones = np.ones(len(ragged.ids), np.int32)
        columns: dict[str, Any] = {
            "input_ids": ragged.rows(),
            "attention_mask": Ragged(ones, ragged.offsets).rows(),
        }
    if not config.return_attention_mask:
        del columns["attention_mask"]
    return columns


def _padded(
    ragged: Ragged, loaded: LoadedTokenizer, config: TokenizerConfig
) -> dict[str, Any]:
    """Pad rows to the width of the options.

    A longer row keeps its length.
    """
    # 1. The width, the id and the side.
    longest = int(ragged.lengths.max(initial=0))
    width = longest
    if config.padding == "max_length":
        width = config.max_length or DEFAULT_MAX_LENGTH
    pad_id = loaded.pad_id
    is_left = loaded.pads_left(config)

    # 2. One array for rows of one length.
    if longest <= width:
        padded_ids, is_text = ragged.rectangle(width, pad_id, left=is_left)
        return {"input_ids": padded_ids, "attention_mask": is_text.astype(np.int32)}

    # 3. Rows of several lengths cannot be one array.
    all_ids: list[Any] = []
    row_masks: list[Any] = []
    for row_ids in ragged.rows():
        one_row = Ragged(row_ids, np.array([0, len(row_ids)]))
        padded_ids, is_text = one_row.rectangle(
            max(width, len(row_ids)), pad_id, left=is_left
        )
        all_ids.append(padded_ids[0])
        row_masks.append(is_text[0].astype(np.int32))
    return {"input_ids": all_ids, "attention_mask": row_masks}


def compute_tokenizer_hash(tokenizer: Any) -> str:
    """Return a hash (sha256, hex) of a tokenizer: of its files and its behaviour.

    The behaviour is the ids of fixed texts. The name is not part of it.

    Args:
        tokenizer: Tokenizer, as in :meth:`TokenizerManager.get_tokenizer`. An object of
            `transformers` has other files than the directory that it was loaded from,
            hence another hash.

    Raises:
        SourceNotFoundError: The tokenizer does not exist, or cannot be reached.
        TokenizerError: Its files are not those of a tokenizer.
        MissingExtraError: A package that opens it is not installed.
    """
    if isinstance(tokenizer, LoadedTokenizer):
        files = tokenizer.files
    else:
        files = files_of(tokenizer)
    # The JSON form is canonical, so equal descriptions have equal hashes.
    return hashlib.sha256(canonical_json(identity(describe(files)))).hexdigest()


def content_hash(files: TokenizerFiles) -> str:
    """Return a hash of a tokenizer's files."""
    lines: list[str] = []
    for file_name, content in files.files.items():
        lines.append(f"{file_name} {hashlib.sha256(content).hexdigest()}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@final
class Decoder:
    """Decode ids of one version; the text includes special tokens.

    Args:
        tokenizer_json: Content of the version's tokenizer.json.
        name: Path of this file, for messages.
    """

    def __init__(self, tokenizer_json: bytes, name: str) -> None:
        self._json = tokenizer_json
        self._name = name

    @classmethod
    def of(
        cls, store: ReadStore, manifest: Manifest, source: str | None = None
    ) -> Self:
        """Read the tokenizer of a version or of one of its sources.

        Its hash is verified.

        Args:
            store: Store of the version.
            manifest: Manifest of the version.
            source: Name of the source; None for the tokenizer of all sources.

        Raises:
            NotFoundError: The version has no tokenizer.
            ConfigError: Its sources have different tokenizers, and none is named.
        """
        version = f"{manifest.dataset}@v{manifest.version}"
        # Each source has a folder below that of the tokenizers, unless all share one.
        folder = ""
        if source is not None:
            folder = manifest.tokenizer[source].get("folder", "")
        # Equal files of several sources are one tokenizer.
        tokenizers = _tokenizers(manifest, folder)
        if not tokenizers:
            raise NotFoundError(
                f"{version} holds no {TOKENIZER}/{TOKENIZER_JSON}; its ids cannot be decoded"
            )
        if len(tokenizers) > 1:
            paths = ", ".join(sorted(tokenizers.values()))
            raise ConfigError(
                f"the sources of {version} have different tokenizers ({paths}), so its ids "
                "cannot be decoded without knowing the source; build one dataset for each"
            )
        return cls.all_of(store, manifest, tokenizers)[0]

    @classmethod
    def all_of(
        cls,
        store: ReadStore,
        manifest: Manifest,
        files: Mapping[str, str] | None = None,
    ) -> list[Self]:
        """Read each tokenizer of a version, and verify its hash.

        Args:
            store: Store of the version.
            manifest: Manifest of the version.
            files: Files to read, sha256 -> path. Default: every different tokenizer of
                the version.
        """
        layout = Layout(manifest.dataset, manifest.version)
        if files is None:
            files = _tokenizers(manifest, "")
        decoders: list[Self] = []
        for digest, path in files.items():
            file_name = f"{manifest.dataset}@v{manifest.version}/{path}"
            decoders.append(cls(verified_bytes(store, layout, path, digest), file_name))
        return decoders

    @cached_property
    def _tokenizer(self) -> LibraryTokenizer:
        """Backend, which is loaded when the first ids are decoded."""
        return open_library_tokenizer(self._name, self._json)

    def text(self, ids: Iterable[int]) -> str:
        """Return the text of ids.

        Bytes that are not a whole character become U+FFFD.
        """
        return self._tokenizer.decode(list(ids))


def _tokenizers(manifest: Manifest, folder: str) -> dict[str, str]:
    """Return the different tokenizers of a version: sha256 -> first path of each."""
    first_paths: dict[str, str] = {}
    # From the last path to the first, so that the first of equal files stays.
    for path, entry in sorted(manifest.other_files.items(), reverse=True):
        is_in_folder = path.startswith(f"{TOKENIZER}/{folder}")
        if is_in_folder and path.endswith(f"/{TOKENIZER_JSON}"):
            first_paths[entry.sha256] = path
    return first_paths
