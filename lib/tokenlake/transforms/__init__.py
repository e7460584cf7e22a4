"""What is done to rows between reading and tokenizing.

A transform is a function of a row that also works on many rows at once; a renderer makes the text that is
tokenized, and says which stretches of it a trainer learns from.
"""

from tokenlake.transforms.adding import AddField
from tokenlake.transforms.base import ChainedTransform, ExpandTransform, Outcome, Transform
from tokenlake.transforms.combining import CombineFields
from tokenlake.transforms.extraction import ExtractField
from tokenlake.transforms.fields import DropFields, RenameFields, SelectFields
from tokenlake.transforms.filters import FilterByField, FilterNonEmpty, FilterTransform
from tokenlake.transforms.mapping import MapField
from tokenlake.transforms.rendering import Rendered, Renderer
from tokenlake.transforms.where import Where

__all__ = [
    "AddField",
    "ChainedTransform",
    "CombineFields",
    "DropFields",
    "ExpandTransform",
    "ExtractField",
    "FilterByField",
    "FilterNonEmpty",
    "FilterTransform",
    "MapField",
    "Outcome",
    "RenameFields",
    "Rendered",
    "Renderer",
    "SelectFields",
    "Transform",
    "Where",
]
