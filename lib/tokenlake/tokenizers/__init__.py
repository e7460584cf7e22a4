"""Tokenizers: find them, tell what they are, and encode with a fast engine that is proven exact.

The reference is the backend of tokenizer.json (`tokenizers.Tokenizer.from_file`). gigatoken, up to 50 times
faster, runs only behind the gate: a static allow-list, a probe at the start, samples while it works, and a
Unicode guard.
"""

from tokenlake.tokenizers.encoded import Encoded
from tokenlake.tokenizers.encoder import Encoder
from tokenlake.tokenizers.files import TokenizerFiles
from tokenlake.tokenizers.fingerprint import describe
from tokenlake.tokenizers.gate import EngineChoice, choose_encoder, choose_engine
from tokenlake.tokenizers.load import load_tokenizer
from tokenlake.tokenizers.train import train_bpe

__all__ = [
    "Encoded",
    "Encoder",
    "EngineChoice",
    "TokenizerFiles",
    "choose_encoder",
    "choose_engine",
    "describe",
    "load_tokenizer",
    "train_bpe",
]
