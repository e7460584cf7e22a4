"""The renderer that a configuration asks for."""

from __future__ import annotations

from tokenlake.config.resolved_texts import ResolvedTexts
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.transforms.chat.renderer import ChatRenderer
from tokenlake.transforms.fieldtext import FieldText
from tokenlake.transforms.preference import PreferenceRenderer
from tokenlake.transforms.prompt.opening import open_prompt
from tokenlake.transforms.rendering import Renderer


def open_renderer(
    texts: ResolvedTexts, content_field: str, files: TokenizerFiles, special_tokens_in_text: str
) -> Renderer:
    """Return what makes the texts of a source's rows.

    Args:
        special_tokens_in_text: for renderers with control tokens: ``fail``: a row whose own text spells one out is bad;
            ``encode``: it becomes one.

    Raises:
        ConfigError: the settings contradict themselves or the tokenizer.
    """
    if texts.preference:
        return PreferenceRenderer(texts.preference, files, special_tokens_in_text)
    if texts.chat:
        return ChatRenderer(texts.chat, files, special_tokens_in_text)
    if texts.prompt:
        return open_prompt(texts.prompt, files, special_tokens_in_text)
    return FieldText(content_field)
