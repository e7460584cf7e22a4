"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.tokenizers.allowlist import SPLIT_REGEXES as SPLIT_REGEXES
from tokenlake.etl.tokenizers.allowlist import objection as objection
from tokenlake.etl.tokenizers.encoder import ENGINES as ENGINES
from tokenlake.etl.tokenizers.encoder import Encoder as Encoder
from tokenlake.etl.tokenizers.engines import ReferenceEngine as ReferenceEngine
from tokenlake.etl.tokenizers.files import TokenizerFiles as TokenizerFiles
from tokenlake.etl.tokenizers.files import load_tokenizer as load_tokenizer
from tokenlake.etl.tokenizers.fingerprint import describe as describe
from tokenlake.etl.tokenizers.gate import choose_encoder as choose_encoder
from tokenlake.etl.tokenizers.manager import Decoder as Decoder
from tokenlake.etl.tokenizers.manager import TokenizerManager as TokenizerManager
from tokenlake.etl.tokenizers.offsets import Spans as Spans
from tokenlake.etl.tokenizers.training import train_bpe as train_bpe
