"""What is done to rows between reading and tokenizing.

A transform is a function of a row that also works on many rows at once; a renderer makes the text that is
tokenized, and says which stretches of it a trainer learns from.
"""

from tokenlake.transforms.base import ChainedTransform, ExpandTransform, Outcome, Transform
from tokenlake.transforms.rendering import Rendered, Renderer

__all__ = ["ChainedTransform", "ExpandTransform", "Outcome", "Rendered", "Renderer", "Transform"]
