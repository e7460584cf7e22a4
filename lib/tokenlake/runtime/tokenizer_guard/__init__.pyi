"""What others may import from this package, and where each name is defined."""

from tokenlake.runtime.tokenizer_guard.adapter import open_library_tokenizer as open_library_tokenizer
from tokenlake.runtime.tokenizer_guard.loading import deliberate as deliberate
from tokenlake.runtime.tokenizer_guard.loading import open_tokenizer as open_tokenizer
from tokenlake.runtime.tokenizer_guard.byte_alphabet import byte_characters as byte_characters
from tokenlake.runtime.tokenizer_guard.caution import reason_for_caution as reason_for_caution
from tokenlake.runtime.tokenizer_guard.compatibility import why_not_fast as why_not_fast
from tokenlake.runtime.tokenizer_guard.generation import exports_parts as exports_parts
from tokenlake.runtime.tokenizer_guard.growth import Growth as Growth
from tokenlake.runtime.tokenizer_guard.growth import growth_of as growth_of
from tokenlake.runtime.tokenizer_guard.patterns import is_plain as is_plain
from tokenlake.runtime.tokenizer_guard.process import BoundedTokenizer as BoundedTokenizer
from tokenlake.runtime.tokenizer_guard.process import ProcessLimits as ProcessLimits
