"""What differs between two versions, by their manifests alone."""

from tokenlake.difference.comparing import compare
from tokenlake.difference.model import Change, Count, Difference, FilePair, InputPair
from tokenlake.difference.opening import diff

__all__ = ["Change", "Count", "Difference", "FilePair", "InputPair", "compare", "diff"]
