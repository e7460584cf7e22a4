"""A section of a configuration and its resolved form, which workers read without
pydantic, agree on every default.

A field of the same name is the same option. Its default may differ only where resolving
gives it a value in any case, or where the section says "nothing" by null and the
resolved form by an empty collection.
"""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, Final

import pytest
from pydantic import BaseModel

from tokenlake import DatasetConfig, PackStageConfig, TokenizerConfig
from tokenlake.config import resolved


def section_of(option: str) -> type[BaseModel]:
    """Return the section that an option of a dataset holds."""
    section, _none = typing.get_args(DatasetConfig.model_fields[option].annotation)
    return section


TEXTS: Final[dict[type[BaseModel], type[Any]]] = {
    section_of("chat"): resolved.ResolvedChat,
    section_of("fim"): resolved.ResolvedFim,
    section_of("preference"): resolved.ResolvedPreference,
    section_of("prompt"): resolved.ResolvedPrompt,
}
"""Sections about the text of a dataset -> their resolved forms."""

TWINS: Final[dict[type[BaseModel], type[Any]]] = {
    **TEXTS,
    DatasetConfig: resolved.ResolvedSource,
    PackStageConfig: resolved.ResolvedPack,
    TokenizerConfig: resolved.ResolvedTokenizer,
}

WORKED_OUT: Final = {
    "ResolvedTokenizer.padding",  # false is none, true is longest
}
"""Fields whose values are written otherwise in a configuration."""

FOUND_BY_THE_PLAN: Final = {
    "ResolvedPrompt.chat_template",
    "ResolvedPreference.chat_template",
}
"""Fields that no option sets: a plan fills them in."""


def common_fields() -> list[Any]:
    cases: list[Any] = []
    for section, twin in TWINS.items():
        fields = [
            field
            for field in dataclasses.fields(twin)
            if field.name in section.model_fields
        ]
        cases.extend(
            pytest.param(section, twin, field, id=f"{twin.__name__}.{field.name}")
            for field in fields
        )
    return cases


def default_of(field: Any) -> Any:
    """Return the default of a resolved field; `dataclasses.MISSING` where every
    value is worked out.
    """
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@pytest.mark.parametrize(("section", "twin", "field"), common_fields())
def test_a_default_is_the_same_in_a_section_and_in_its_resolved_form(
    section: type[BaseModel], twin: type[Any], field: Any
) -> None:
    default = default_of(field)
    option = section.model_fields[field.name]
    if default is dataclasses.MISSING or f"{twin.__name__}.{field.name}" in WORKED_OUT:
        return
    usual = option.get_default(call_default_factory=True)
    is_nothing = usual is None and default in ({}, ())
    assert is_nothing or (type(default), default) == (type(usual), usual)


@pytest.mark.parametrize("section", TEXTS)
def test_every_option_of_a_text_has_its_field(section: type[BaseModel]) -> None:
    """These are copied by name: an option without a field would do nothing."""
    twin = TEXTS[section]
    names = {field.name for field in dataclasses.fields(twin)}
    assert section.model_fields.keys() <= names
    others = {f"{twin.__name__}.{name}" for name in names - section.model_fields.keys()}
    assert others <= FOUND_BY_THE_PLAN | {"ResolvedFim.seed"}
