"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.text.boundaries import is_word_boundary as is_word_boundary
from tokenlake.etl.text.boundaries import sentence_breaks as sentence_breaks
from tokenlake.etl.text.budgets import allocate as allocate
from tokenlake.etl.text.chat_protocol import Limits as Limits
from tokenlake.etl.text.chat_renderer import ChatRenderer as ChatRenderer
from tokenlake.etl.text.chat_template import ChatTemplate as ChatTemplate
from tokenlake.etl.text.labeller import resolved_prompt as resolved_prompt
from tokenlake.etl.text.preference_ids import Joiner as Joiner
from tokenlake.etl.text.prompt_renderer import PromptRenderer as PromptRenderer
from tokenlake.etl.text.prompt_renderer import open_prompt as open_prompt
from tokenlake.etl.text.quality import open_quality as open_quality
from tokenlake.etl.text.steps import open_chain as open_chain
from tokenlake.etl.text.steps import sealed as sealed
from tokenlake.etl.text.truncation import SIDES as SIDES
from tokenlake.etl.text.truncation import STRATEGIES as STRATEGIES
from tokenlake.etl.text.truncation import continuing_tokens as continuing_tokens
from tokenlake.etl.text.truncation import pieces as pieces
from tokenlake.etl.text.truncation import truncate as truncate
