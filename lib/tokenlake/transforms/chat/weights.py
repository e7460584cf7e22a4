"""How many characters a value would come to as text, and whether it may become text at all."""

from __future__ import annotations

from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from typing import Any, Final, cast

import jinja2

from tokenlake.errors import BadRecordError
from tokenlake.transforms.chat.limits import Budget

ERROR: Final = "template_error"
"""The reason of rows on which a template fails."""

NUMBER: Final = 24
ELEMENT: Final = 8


def weigh(value: Any, budget: Budget) -> int:
    """Return about how many characters ``str(value)`` has, counting all that is inside it every time it is there.

    Raises:
        BadRecordError: it is more than a text may have, or holds what is no data (a function, a namespace).
    """
    if isinstance(value, str):
        return len(value)
    total, rest = 0, [value]
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            total += len(item) + ELEMENT
        elif item is None or isinstance(item, int | float):
            total += NUMBER
        elif isinstance(item, jinja2.Undefined):
            total += len(str(item))  # which fails for what is missing
        elif isinstance(item, Mapping):
            pairs = cast("Mapping[Any, Any]", item)
            rest += [*pairs.keys(), *pairs.values()]
            total += ELEMENT * len(pairs)
        elif isinstance(item, list | tuple | KeysView | ValuesView | ItemsView):
            items = cast("list[Any]", item)
            rest += items
            total += ELEMENT * len(items)
        elif isinstance(item, range):
            total += NUMBER * len(item)
        else:
            raise no_data(item)
        if total > budget.limits.text:
            budget.make(total)
    return total


def no_data(value: Any) -> BadRecordError:
    """Return the error of a value that a template may hold but not turn into text."""
    return BadRecordError(
        f"the chat template makes text of a {type(value).__name__}, which is no data: a call may lack its "
        "parentheses, or a field the name of a method",
        reason=ERROR,
    )
