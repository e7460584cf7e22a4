"""Tokenizers without a tokenizer.json, converted by transformers, which knows how each kind is put together."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tokenlake.errors import MissingExtraError, TokenizerError

SLOW_FILES: Final = (
    *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model", "tekken.json"),
    *("vocab.json", "merges.txt", "vocab.txt", "added_tokens.json"),
)
"""What holds a vocabulary where there is no tokenizer.json."""

_OF_THE_CALL: Final = ("is_local", "local_files_only")  # what transformers notes of how it was called


def converted(folder: Path, name: str) -> dict[str, bytes]:
    """Return the files that transformers saves of the tokenizer in a folder; no code of the folder is run.

    Args:
        name: what the user called it.

    Raises:
        MissingExtraError: transformers is not installed.
        TokenizerError: it cannot load the folder, or makes no fast tokenizer of it.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtraError(
            f"tokenizer {name!r} has no tokenizer.json, and to convert its files needs transformers: "
            "pip install 'tokenlake[transformers]'"
        ) from error
    loader: Any = AutoTokenizer
    try:
        tokenizer = loader.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        # Whatever a tokenizer's own class and its files may raise.
        why = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no reason'}"
        raise TokenizerError(
            f"tokenizer {name!r}: no tokenizer.json, and transformers cannot load its files ({why}); expected a fast "
            "tokenizer, or files that transformers converts (a tokenizer.model needs: pip install sentencepiece)",
            tokenizer=name,
        ) from error
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise TokenizerError(
            f"tokenizer {name!r}: {type(tokenizer).__name__} has no fast form, which the library needs; "
            "expected one that transformers loads as a fast tokenizer",
            tokenizer=name,
        )
    with TemporaryDirectory() as target:
        tokenizer.save_pretrained(target)
        files = {path.name: path.read_bytes() for path in Path(target).iterdir() if path.is_file()}
    return {file: _cleaned(data) if file == "tokenizer_config.json" else data for file, data in files.items()}


def _cleaned(data: bytes) -> bytes:
    config = {key: value for key, value in json.loads(data).items() if key not in _OF_THE_CALL}
    return json.dumps(config, indent=2, ensure_ascii=False).encode()
