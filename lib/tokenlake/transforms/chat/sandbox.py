"""The environment that chat templates run in: immutable, closed, and counted.

A template reaches data and the methods of an allow-list, nothing else: no clock, no chance, no attribute of Python.
What is missing may be asked about (``is defined``, ``if``, ``for``, ``default``), but never becomes text.
"""

from __future__ import annotations

import datetime
import threading
from types import BuiltinMethodType
from typing import Any, Final, NoReturn, final

import jinja2
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.transforms.chat import guards
from tokenlake.transforms.chat.filters import bounded_filters, made
from tokenlake.transforms.chat.generation import GenerationMarks
from tokenlake.transforms.chat.limits import Budget, Limits
from tokenlake.transforms.chat.reachable import OF_DICTS, is_reachable
from tokenlake.transforms.chat.weights import ERROR, weigh

REFUSED: Final = "template_refused"
"""The reason of rows that a template itself refuses, by ``raise_exception``."""


@final
class Missing(jinja2.Undefined):
    """What is not there: may be asked about, but is no text."""

    __slots__ = ()

    def __str__(self) -> NoReturn:
        self._fail_with_undefined_error()


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
    """The environment of one template; threads may render at the same time, each with its own budget."""

    intercepted_binops = frozenset(guards.OPERATORS)

    def __init__(self, limits: Limits) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=Missing,
            finalize=self._output,
            extensions=[GenerationMarks, loopcontrols],
        )
        self._limits = limits
        self._now = threading.local()
        self.filters = bounded_filters(self)
        self.globals |= {
            "dict": dict,
            "namespace": _Namespace,
            "raise_exception": _refuse,
            "strftime_now": _no_clock,
        }
        del self.globals["lipsum"]  # random words

    @property
    def budget(self) -> Budget:
        """What the rendering that goes on in this thread has done; while a template is compiled, a spare one."""
        budget: Budget | None = getattr(self._now, "budget", None)
        return Budget(self._limits) if budget is None else budget

    def begin(self) -> Budget:
        """Begin a rendering in this thread."""
        self._now.budget = budget = Budget(self._limits)
        return budget

    def end(self) -> None:
        """End it."""
        self._now.budget = None

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow what is on the list, and what a namespace holds."""
        return is_reachable(obj, attr)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """``obj.attribute``; a message is a dict, whose fields need not be looked for among its methods."""
        if type(obj) is dict and attribute not in OF_DICTS:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a method, a macro or a function; counted, and judged where it can make much of little."""
        budget = __self.budget
        budget.enter()
        try:
            if isinstance(__obj, BuiltinMethodType) and isinstance(__obj.__self__, str):
                _judge_method(budget, __obj.__name__, __obj.__self__, args, kwargs)
            return made(super().call(__context, __obj, *args, **kwargs), budget)
        finally:
            budget.depth -= 1

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Count and judge ``+ * ** %``."""
        budget = self.budget
        budget.make(guards.OPERATORS[operator](budget, left, right))
        return self.binop_table[operator](left, right)

    def wrap_str_format(self, value: Any) -> Any:
        """Return a ``format`` that reaches no more than the template does, and is judged; None for anything else."""
        inner = super().wrap_str_format(value)
        if inner is None:
            return None
        pattern: str = value.__self__

        def judged(*args: Any, **kwargs: Any) -> str:
            budget = self.budget
            size = guards.METHODS["format"](budget, pattern, *args, **kwargs)
            budget.make(size)
            named = args[0] if value.__name__ == "format_map" else kwargs
            return _Formatter(self).vformat(pattern, () if named is not kwargs else args, named)

        return judged

    def _output(self, value: Any) -> Any:
        """Judge what a template is about to output."""
        budget = self.budget
        if isinstance(value, str):
            budget.make(len(value))
        elif value is None:
            raise BadRecordError(
                "the chat template outputs a null (None): the field that it prints may be null in this row",
                reason=ERROR,
            )
        else:
            budget.make(weigh(value, budget))
        return value


@final
class _Formatter(SandboxedFormatter):
    """Fields of ``format`` become text as those of the template do."""

    def __init__(self, environment: Sandbox) -> None:
        super().__init__(environment)
        self._sandbox = environment

    def format_field(self, value: Any, format_spec: str) -> Any:
        weigh(value, self._sandbox.budget)
        return super().format_field(value, format_spec)


def _judge_method(
    budget: Budget, name: str, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    judge = guards.METHODS.get(name)
    if judge is not None:
        named = {key: value for key, value in kwargs.items() if not key.startswith("_")}
        size = judge(budget, text, *args, **named)
        if size > budget.limits.text:
            budget.make(size)


def _refuse(message: Any = "") -> NoReturn:
    raise BadRecordError(f"the chat template refuses the conversation: {message}", reason=REFUSED)


def _no_clock(_format: Any = "") -> NoReturn:
    raise ConfigError(
        "the chat template asks for today's date (strftime_now), which would make every build another one; give the "
        "date in chat.template_kwargs, such as {strftime_now: 2025-01-31}, or the variable that the template looks at "
        "first, often date_string"
    )


def clock_at(given: Any) -> Any:
    """Return a ``strftime_now`` that says a fixed date.

    Raises:
        ConfigError: `given` is no date in ISO form.
    """
    try:
        when = datetime.datetime.fromisoformat(str(given))
    except ValueError:
        raise ConfigError(
            f"chat.template_kwargs.strftime_now: got {given!r}, must be a date such as 2025-01-31"
        ) from None
    return when.strftime
