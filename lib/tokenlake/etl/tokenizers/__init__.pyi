"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.tokenizers.allowlist import SPLIT_REGEXES as SPLIT_REGEXES
from tokenlake.etl.tokenizers.allowlist import objection as objection
from tokenlake.etl.tokenizers.encoder import BACKENDS as BACKENDS
from tokenlake.etl.tokenizers.encoder import Encoded as Encoded
from tokenlake.etl.tokenizers.encoder import Encoder as Encoder
from tokenlake.etl.tokenizers.encoder import SpecialScan as SpecialScan
from tokenlake.etl.tokenizers.backends import ReferenceBackend as ReferenceBackend
from tokenlake.etl.tokenizers.files import TokenizerFiles as TokenizerFiles
from tokenlake.etl.tokenizers.files import has_form_of_hub_id as has_form_of_hub_id
from tokenlake.etl.tokenizers.files import load_tokenizer as load_tokenizer
from tokenlake.etl.tokenizers.fingerprint import describe as describe
from tokenlake.etl.tokenizers.fingerprint import identity as identity
from tokenlake.etl.tokenizers.gate import choose_encoder as choose_encoder
from tokenlake.etl.tokenizers.manager import Decoder as Decoder
from tokenlake.etl.tokenizers.manager import LoadedTokenizer as LoadedTokenizer
from tokenlake.etl.tokenizers.manager import TokenizerManager as TokenizerManager
from tokenlake.etl.tokenizers.offsets import Spans as Spans
from tokenlake.etl.tokenizers.offsets import byte_spans as byte_spans
from tokenlake.etl.tokenizers.training import learn_merges as learn_merges
from tokenlake.etl.tokenizers.training import train_bpe as train_bpe
