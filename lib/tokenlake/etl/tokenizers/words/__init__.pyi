"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.tokenizers.words.automaton import classes_of as classes_of
from tokenlake.etl.tokenizers.words.automaton import compile_tree as compile_tree
from tokenlake.etl.tokenizers.words.classes import stage_class as stage_class
from tokenlake.etl.tokenizers.words.classes import symbols_of as symbols_of
from tokenlake.etl.tokenizers.words.backend import WordBackend as WordBackend
from tokenlake.etl.tokenizers.words.expressions import UnsupportedError as UnsupportedError
from tokenlake.etl.tokenizers.words.expressions import literal as literal
from tokenlake.etl.tokenizers.words.expressions import parse as parse
from tokenlake.etl.tokenizers.words.kernels import LONGEST as LONGEST
from tokenlake.etl.tokenizers.words.merging import LONGEST_MERGED as LONGEST_MERGED
from tokenlake.etl.tokenizers.words.native import is_compiled as is_compiled
from tokenlake.etl.tokenizers.words.native import loops as loops
from tokenlake.etl.tokenizers.words.native import machine_code as machine_code
from tokenlake.etl.tokenizers.words.rules import objection_to_words as objection_to_words
