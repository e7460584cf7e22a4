"""The environment that chat templates run in: Jinja's immutable sandbox, with nothing in it but data.

A template knows no clock and no chance. What is missing may be asked about (``is defined``, ``if``, ``for``,
``default``); neither it nor a function, a generator or whatever else is no data ever becomes text. How much a template
does is bounded from outside (:mod:`tokenlake.templates.process`).
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, Final, NoReturn, final

import jinja2
from jinja2.ext import loopcontrols
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.templates.generation import BEGIN, END, GenerationMarks, Written, begin, end

REFUSED: Final = "template_refused"
"""The reason of rows that a template itself refuses, by ``raise_exception``."""
ERROR: Final = "template_error"
"""The reason of rows on which a template fails."""

_ABSENT: Final = ("random", "pprint", "urlize", "xmlattr")
"""Filters that depend on chance or on Python, or make markup for pages."""
_DRAWN: Final = (
    "batch",
    "items",
    "map",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "slice",
    "unique",
)
"""Filters whose result is drawn item by item."""
_DATA: Final = (str, int, float, list, tuple, dict, range, KeysView, ValuesView, ItemsView, jinja2.Undefined)
_FUNCTIONS: Final = (BuiltinMethodType, FunctionType, MethodType)
_JINJAS_OWN: Final = (BlockReference, Cycler, Joiner, LoopContext, Macro, Namespace, TemplateReference)


def _no_text(self: Any) -> NoReturn:
    """In place of ``__str__`` and ``__repr__`` of what is no data."""
    kind = getattr(self, "kind", type(self).__name__)
    raise BadRecordError(
        f"the chat template makes text of a {kind}, which is no data: a call may lack its parentheses, or a field the "
        "name of a method",
        reason=ERROR,
    )


class NoData:
    """A value that may be asked about but is no text; of what was given, all that is left of what is no JSON."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind: Final = kind

    __str__ = __repr__ = _no_text


@final
class _Function(NoData):
    """A function or a method: called, never printed."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(type(function).__name__)
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


@final
class _Items(NoData):
    """What a filter hands out one by one."""

    __slots__ = ("_items",)

    def __init__(self, items: Any) -> None:
        super().__init__("generator")
        self._items = iter(items)

    def __iter__(self) -> Iterator[Any]:
        return self._items


def forbid_text_of_jinjas_own() -> None:
    """Let no object of Jinja's become text, in this process, which does nothing else than render templates."""
    kinds: tuple[Any, ...] = _JINJAS_OWN
    for kind in kinds:
        kind.__str__ = kind.__repr__ = _no_text


@final
class Missing(jinja2.Undefined):
    """What is not there: may be asked about, but is no text."""

    __slots__ = ()

    def __str__(self) -> NoReturn:
        self._fail_with_undefined_error()

    __repr__ = __str__


@final
class _Namespace(Namespace):
    """Values that a template changes; names that begin with an underscore are Python's."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        for name in dict(*args[1:], **kwargs):
            _check_name(name)
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"a namespace cannot hold {name!r}: it begins with an underscore"
        )


@final
class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one template."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=Missing,
            finalize=_output,
            extensions=[GenerationMarks, loopcontrols],
            optimized=False,
        )
        self.written = Written()
        """What the rendering that goes on has output."""
        for name in _ABSENT:
            del self.filters[name]
        self.filters |= {name: _drawn(self.filters[name]) for name in _DRAWN}
        self.filters |= {"tojson": _tojson, BEGIN: begin, END: end}
        del self.globals["lipsum"]  # random words
        own = {"namespace": _Namespace, "raise_exception": _refuse, "strftime_now": _no_clock}
        self.globals |= {name: _Function(value) for name, value in {**self.globals, **own}.items()}

    def getattr(self, obj: Any, attribute: str) -> Any:
        """``obj.attribute``."""
        return _shut(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """``obj[argument]``; a message is a dict, whose fields need not be looked for among its methods."""
        if type(obj) is dict and type(argument) is str and argument in obj:
            return obj[argument]
        return _shut(super().getitem(obj, argument))


def _shut(value: Any) -> Any:
    return _Function(value) if isinstance(value, _FUNCTIONS) else value


def _drawn(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)  # with Jinja's mark of those that get its context
    def drawn(*args: Any, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        return made if isinstance(made, _DATA) else _Items(made)

    return drawn


@jinja2.pass_context  # which also keeps Jinja from computing anything while it compiles
def _output(_: Context, value: Any) -> Any:
    if value is None:
        raise BadRecordError(
            "the chat template outputs a null (None): the field that it prints may be null in this row",
            reason=ERROR,
        )
    return value if isinstance(value, _DATA) else _no_text(value)


def _tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as it is, nothing escaped for a page."""
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: Any = "") -> NoReturn:
    raise BadRecordError(f"the chat template refuses the conversation: {message}", reason=REFUSED)


def _no_clock(_format: Any = "") -> NoReturn:
    raise ConfigError(
        "the chat template asks for today's date (strftime_now), which would make every build another one; give the "
        "date in chat.template_kwargs, such as {strftime_now: 2025-01-31}, or the variable that the template looks at "
        "first, often date_string"
    )


def with_clock(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return variables of which ``strftime_now``, where it is one, says a fixed date.

    Raises:
        ConfigError: it is no date in ISO form.
    """
    if "strftime_now" not in variables:
        return dict(variables)
    given = variables["strftime_now"]
    try:
        when = datetime.datetime.fromisoformat(str(given))
    except ValueError:
        raise ConfigError(
            f"chat.template_kwargs.strftime_now: got {given!r}, must be a date such as 2025-01-31"
        ) from None
    return {**variables, "strftime_now": _Function(when.strftime)}
