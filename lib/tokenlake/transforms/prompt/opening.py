"""The renderer of prompts that a configuration asks for."""

from __future__ import annotations

from tokenlake.config.resolved_texts import ResolvedPrompt
from tokenlake.errors import NotAvailableError
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.transforms.prompt.layout import lay_out
from tokenlake.transforms.prompt.renderer import PromptRenderer
from tokenlake.transforms.rendering import Renderer


def open_prompt(prompt: ResolvedPrompt, files: TokenizerFiles, special_tokens_in_text: str) -> Renderer:
    """Return what renders `prompt` for a tokenizer.

    Raises:
        ConfigError: the template is wrong, does not fit its columns, or an example cannot be rendered.
    """
    if prompt.format_type == "chat":
        raise NotAvailableError("prompt.format_type: 'chat' is not available yet")
    return PromptRenderer(lay_out(prompt, files), files, special_tokens_in_text)
