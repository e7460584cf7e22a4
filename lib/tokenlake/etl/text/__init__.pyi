"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.text.chat_renderer import ChatRenderer as ChatRenderer
from tokenlake.etl.text.chat_template import ChatTemplate as ChatTemplate
from tokenlake.etl.text.prompt_renderer import PromptRenderer as PromptRenderer
from tokenlake.etl.text.truncation import SIDES as SIDES
from tokenlake.etl.text.truncation import STRATEGIES as STRATEGIES
