"""Places where a misplaced key, or one with another tool's name, belongs."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from tokenlake.base.section import Section

SYNONYMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "context_length": "pack.seq_length",
        "data_dir": "datasets.0.data_files",
        "data_path": "datasets.0.data_files",
        "dataset_name": "name",
        "files": "datasets.0.data_files",
        "max_seq_length": "pack.seq_length",
        "model_max_length": "pack.seq_length",
        "sequence_length": "pack.seq_length",
        "text_column": "datasets.0.content_field",
        "text_field": "datasets.0.content_field",
        "tokenizer_name": "datasets.0.tokenizer",
        "tokenizer_name_or_path": "datasets.0.tokenizer",
        "validation_split": "source.splits",
    }
)
"""Names that other tools give to our keys, and the path of each key."""

_MOST_PLACES: Final = 3
"""Number of places that a message names at most."""


def hint_of_place(model: type[Section], key: str, location: str = "") -> str:
    """Return ``"; did you mean 'source.on_bad_record'?"`` for a misplaced key.

    The text is empty where no place is known.

    Args:
        model: Model of the whole configuration.
        key: Key that is unknown where it was written.
        location: Dotted path at which it was written, which is not proposed.
    """
    places = list(_places_by_key(model).get(key, ()))
    if location in places:
        places.remove(location)
    synonym = SYNONYMS.get(key)
    if not places and synonym is not None and _has_key(model, synonym):
        places = [synonym]
    # The evaluation sets of cleaning repeat the keys of `datasets`; the outermost place
    # is the one that is meant.
    outermost = min((place.count(".") for place in places), default=0)
    proposed_places = [place for place in places if place.count(".") == outermost]
    if not proposed_places or len(proposed_places) > _MOST_PLACES:
        return ""
    quoted_places = " or ".join(map(repr, proposed_places))
    return f"; did you mean {quoted_places}?"


def _has_key(model: type[Section], path: str) -> bool:
    """Return whether a dotted path names a key of a model."""
    key = path.rpartition(".")[2]
    return path in _places_by_key(model).get(key, ())


@cache
def _places_by_key(model: type[Section]) -> Mapping[str, tuple[str, ...]]:
    """Return each key of a model and of its sections, with its dotted paths."""
    places: dict[str, tuple[str, ...]] = {}
    for path in _paths(model, "", (model,)):
        key = path.rpartition(".")[2]
        places[key] = (*places.get(key, ()), path)
    return places


def _paths(
    section: type[Section], prefix: str, parents: tuple[type[Section], ...]
) -> Iterator[str]:
    """Yield the dotted path of each key of a section and of the sections below it.

    Outer keys come first.

    Args:
        section: Section whose keys are listed.
        prefix: Path of the section with a final dot, or an empty text for the whole
            configuration.
        parents: Sections on the path, which are not entered again.
    """
    for key in section.model_fields:
        yield f"{prefix}{key}"
    # An entry of a list is proposed as its first one.
    for key, field in section.model_fields.items():
        for child, is_in_list in _sections_in(field.annotation):
            if child not in parents:
                position = "0." if is_in_list else ""
                yield from _paths(child, f"{prefix}{key}.{position}", (*parents, child))


def _sections_in(
    annotation: Any, is_in_list: bool = False
) -> Iterator[tuple[type[Section], bool]]:
    """Yield the sections that an annotation names, and whether each is a list's entry."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation, is_in_list
        return
    origin = typing.get_origin(annotation)
    # Unions and annotations name their members as arguments, as lists do.
    for argument in typing.get_args(annotation):
        yield from _sections_in(argument, is_in_list or origin in (tuple, list))
