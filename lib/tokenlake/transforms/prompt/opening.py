"""The renderer of prompts that a configuration asks for."""

from __future__ import annotations

from tokenlake.config.resolved_texts import ResolvedPrompt
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.transforms.prompt.chatted import ChatPromptRenderer
from tokenlake.transforms.prompt.layout import lay_out
from tokenlake.transforms.prompt.renderer import PromptRenderer


def open_prompt(
    prompt: ResolvedPrompt, files: TokenizerFiles, special_tokens_in_text: str
) -> PromptRenderer | ChatPromptRenderer:
    """Return what renders `prompt` for a tokenizer.

    Raises:
        ConfigError: the template is wrong, does not fit its columns, or an example cannot be rendered.
    """
    if prompt.format_type == "chat":
        return ChatPromptRenderer(prompt, files, special_tokens_in_text)
    return PromptRenderer(lay_out(prompt, files), files, special_tokens_in_text)
