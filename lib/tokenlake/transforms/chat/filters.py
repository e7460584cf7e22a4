"""The filters of chat templates: those of Jinja that are functions of their arguments, counted and judged."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Generator
from types import GeneratorType
from typing import Any, Final, Protocol

from jinja2.filters import FILTERS as ALL

from tokenlake.transforms.chat import guards
from tokenlake.transforms.chat.limits import Budget
from tokenlake.transforms.chat.weights import ELEMENT, weigh

_REFUSED: Final = frozenset({"random", "pprint", "urlize", "xmlattr"})
"""What depends on chance or on Python, or makes markup for pages."""

_TEXT: Final = """
    capitalize center e escape forceescape format indent lower replace safe string striptags title trim truncate upper
    wordcount wordwrap
"""
_OF_TEXT: Final = frozenset(_TEXT.split())
"""Filters that make text of whatever they get."""


class Counting(Protocol):
    """Where a filter finds the budget of the rendering that it is part of."""

    @property
    def budget(self) -> Budget: ...


def bounded_filters(environment: Counting) -> dict[str, Callable[..., Any]]:
    """Return the filters, by name, with their results counted in the budget of `environment`."""
    chosen: dict[str, Callable[..., Any]] = {**ALL, "tojson": _tojson}
    return {
        name: _bounded(environment, name, function)
        for name, function in chosen.items()
        if name not in _REFUSED
    }


def _tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as it is, nothing escaped for a page."""
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _bounded(environment: Counting, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    judge = guards.FILTERS.get(name)
    # Jinja gives some filters its context first; `wraps` carries their mark over.
    at = 1 if hasattr(function, "jinja_pass_arg") else 0
    text = name in _OF_TEXT

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        budget = environment.budget
        budget.step()
        given = list(args)
        if isinstance(given[at], GeneratorType):
            given[at] = list(given[at])
        if text and not isinstance(given[at], str):
            weigh(given[at], budget)
        if judge is not None:
            size = judge(budget, *given[at:], **kwargs)
            if size > budget.limits.text:
                budget.make(size)
        return made(function(*given, **kwargs), budget)

    return counted


def made(result: Any, budget: Budget) -> Any:
    """Count what a filter, a method or an operator made; what a generator makes is counted as it comes."""
    if isinstance(result, str):
        budget.make(len(result))
    elif isinstance(result, list | tuple | dict):
        budget.make(ELEMENT * len(result))
    elif isinstance(result, GeneratorType):
        return _steps(result, budget)
    return result


def _steps(items: Generator[Any], budget: Budget) -> Generator[Any]:
    for item in items:
        budget.step()
        yield item
