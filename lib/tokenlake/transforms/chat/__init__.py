"""Conversations to text: turns in one form, a bounded template, and what of it a trainer learns from."""

from tokenlake.transforms.chat.limits import Limits
from tokenlake.transforms.chat.template import ChatTemplate, RenderedChat

__all__ = ["ChatTemplate", "Limits", "RenderedChat"]
