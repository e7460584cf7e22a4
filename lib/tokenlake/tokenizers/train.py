"""Train a small byte-level BPE, for demos and tests: no Hub, no download."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.tokenizers.files import TOKENIZER_JSON, TokenizerFiles
from tokenlake.tokenizers.reference import deliberate

END_OF_TEXT: Final = "<|endoftext|>"
_BYTES: Final = 256


def train_bpe(texts: Iterable[str], vocab_size: int = 4096, *, name: str = "trained-bpe") -> TokenizerFiles:
    """Train a GPT-2-style byte-level BPE with the special token ``<|endoftext|>`` (BOS and EOS).

    Args:
        texts: the training text, consumed once.
        vocab_size: at least 257; the result may be smaller when the text has too few distinct words.
        name: the tokenizer's name in messages.

    Returns:
        A tokenizer that every engine can run; equal texts give equal files.

    Raises:
        ConfigError: `vocab_size` is too small.
    """
    if vocab_size <= _BYTES:
        raise ConfigError(
            f"vocab_size is {vocab_size}, expected at least {_BYTES + 1}: 256 bytes and {END_OF_TEXT}"
        )
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    except ImportError as error:
        raise MissingExtraError(
            "training a tokenizer needs tokenizers: pip install 'tokenlake[etl]'"
        ) from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    with deliberate("training a tokenizer"):
        tokenizer.train_from_iterator(iter(texts), trainer)
    return TokenizerFiles(name=name, files=_files(tokenizer.to_str()))


def _files(tokenizer_json: str) -> dict[str, bytes]:
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
    }
    return {
        TOKENIZER_JSON: tokenizer_json.encode(),
        "tokenizer_config.json": (json.dumps(config, indent=2) + "\n").encode(),
    }
