"""Conversations of a prompt and its answers to texts, by the chat template."""

from __future__ import annotations

from typing import final

from tokenlake.config.resolved_texts import ResolvedPreference
from tokenlake.errors import NotAvailableError
from tokenlake.faults import Fault
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.transforms.preference.turns import Value


@final
class ConversationTexts:
    """Renders with the template of `settings`."""

    def __init__(self, settings: ResolvedPreference, files: TokenizerFiles) -> None:
        raise NotAvailableError("preferences of conversations are not available yet; today: texts")

    def texts(self, prompt: Value | None, answers: tuple[Value, ...]) -> list[str] | Fault:
        """Return the text of the prompt, and of the prompt with each answer."""
        raise NotImplementedError
