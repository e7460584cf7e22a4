"""The steps and the renderer that a configuration asks for: callback, then renames, then transforms, then text.

Every process that builds finds a user's function by its name, ``package.module:function``. Its code decides the result
as much as the configuration does: the plan takes the sha256 of the file that defines it into the build's identity, and
whoever runs it checks that its own file is the same. What that file imports is not looked at.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast, final

from tokenlake.config.resolved import ResolvedTexts
from tokenlake.errors import BadRecordError, ConfigError, TokenlakeError
from tokenlake.etl.sources.rows import Row
from tokenlake.etl.text.chat_messages import ConvertInputOutputToChatML, ConvertToChatML
from tokenlake.etl.text.fields import (
    AddField,
    CombineFields,
    DropFields,
    ExtractField,
    MapField,
    RenameFields,
    SelectFields,
)
from tokenlake.etl.text.filters import FilterByField, FilterNonEmpty, FilterTransform, Where
from tokenlake.etl.text.quality import QualityFilter
from tokenlake.etl.text.renderer import FieldText, Renderer
from tokenlake.etl.text.transform import ChainedTransform, ExpandTransform, RowStep
from tokenlake.etl.tokenizers.files import TokenizerFiles

Function = Callable[[Any], Any]

BUILT_IN: Final = "built-in"
"""In the place of a hash: the function is of Python itself."""

_SEEN: dict[str, tuple[object, str]] = {}  # function and hash, as this process first found them


def load_callable(name: str) -> Function:
    """Return the function called ``package.module:function``.

    Raises:
        ConfigError: it cannot be imported, or is no function.
    """
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
    except Exception as error:
        raise ConfigError(
            f"the function {name!r} cannot be imported: {type(error).__name__}: {error}. Its module must be importable "
            "in every process of the build: install it, or put its folder on PYTHONPATH",
            callable=name,
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"the function {name!r} does not exist: {module} has no {path}", callable=name)
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{name!r} is a {type(found).__name__}, must be a function", callable=name)
    return found


def code_hash(function: Function) -> str:
    """Return the sha256 of the file of the module that defines a function."""
    owner = getattr(function, "__objclass__", function)
    module = sys.modules.get(getattr(owner, "__module__", None) or type(function).__module__)
    file = getattr(module, "__file__", None)
    return BUILT_IN if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()


def sealed(texts: ResolvedTexts) -> ResolvedTexts:
    """Return the settings with the hashes of their functions' code.

    Raises:
        ConfigError: a function cannot be imported.
    """
    names = texts.functions
    if not names:
        return texts
    return replace(texts, callables=tuple((name, code_hash(load_callable(name))) for name in names))


def open_callable(name: str, texts: ResolvedTexts) -> Function:
    """Return the function called `name`, guarded (see :class:`Guarded`).

    Raises:
        ConfigError: it cannot be imported, or its code is not what the plan found.
    """
    function = load_callable(name)
    if name not in _SEEN or _SEEN[name][0] is not function:
        _SEEN[name] = (function, code_hash(function))
    planned = dict(texts.callables).get(name)
    if planned is not None and planned != _SEEN[name][1]:
        raise ConfigError(
            f"the code of {name!r} is not what was planned: the file of its module has sha256 {_SEEN[name][1]} in this "
            f"process, and had {planned} in the plan. Build again in fresh processes that all see the same file",
            callable=name,
            expected=planned,
            got=_SEEN[name][1],
        )
    return Guarded(name, function)


@final
class Guarded:
    """A function whose exceptions make bad records: the message names it, the exception and what it said."""

    def __init__(self, name: str, function: Function) -> None:
        self._name, self._function = name, function

    def __call__(self, value: Any) -> Any:
        """Call the function.

        Raises:
            BadRecordError: it raised something.
        """
        try:
            return self._function(value)
        except (TokenlakeError, MemoryError):
            raise
        except Exception as error:
            raise BadRecordError(
                f"{self._name} raised {type(error).__name__}: {error}", reason="callable_raised"
            ) from error

    def __repr__(self) -> str:
        return self._name


@final
class RowCallable(ExpandTransform):
    """A function of a row: it returns a row, None to leave it out, or a list of rows."""

    def __init__(self, function: Function, reason: str) -> None:
        """Take the function; rows that it leaves out are counted under `reason`."""
        self._function, self.reason = function, reason

    def expand(self, example: Row) -> Sequence[Row]:
        """Return the rows that the function makes of a copy of `example`.

        Raises:
            ConfigError: it returned something else.
        """
        result = self._function(dict(example))
        rows = [] if result is None else [result] if isinstance(result, dict) else result
        for row in rows if isinstance(rows, list | tuple) else [rows]:
            if not isinstance(row, dict):
                raise ConfigError(
                    f"{self._function!r} returned a {type(row).__name__}, must be a dict, None to leave the row out, "
                    "or a list of dicts",
                    callable=repr(self._function),
                )
        return list(cast("Sequence[Row]", rows))


def _is_one_of(values: list[Any], value: Any) -> bool:
    """Say whether a value is one of some; true is not 1."""
    return any(
        isinstance(value, bool) is isinstance(allowed, bool) and value == allowed for allowed in values
    )


Call = Callable[[str | None], Any]
"""The name of a function to the function; None to None."""

_STEPS: Final[Mapping[str, Callable[[Any, Call], RowStep]]] = {
    "select": lambda fields, _: SelectFields(fields),
    "drop": lambda fields, _: DropFields(fields),
    "rename": lambda names, _: RenameFields(names),
    "add": lambda fields, _: ChainedTransform([AddField(*item) for item in fields.items()]),
    "map": lambda given, call: MapField(given["field"], call(given["function"]), given.get("output_field")),
    "extract": lambda given, _: ExtractField(**given),
    "combine": lambda given, call: CombineFields(**{**given, "combiner": call(given.get("combiner"))}),
    "filter_non_empty": lambda fields, _: FilterNonEmpty(fields),
    "filter_by": lambda given, call: FilterByField(
        given["field"],
        call(given.get("function"))
        or partial(_is_one_of, [given.get("equals")] if given.get("one_of") is None else given["one_of"]),
    ),
    "filter": lambda name, call: FilterTransform(call(name)),
    "quality": lambda given, _: QualityFilter(**given),
    "convert_to_chatml": lambda given, _: ConvertToChatML(**given),
    "convert_input_output_to_chatml": lambda given, _: ConvertInputOutputToChatML(**given),
    "where": lambda sql, _: Where(sql),
    "apply": lambda name, call: RowCallable(call(name), "apply"),
}


def open_chain(texts: ResolvedTexts) -> ChainedTransform:
    """Return the steps before the text is made, maybe none.

    Raises:
        ConfigError: a step does not exist, or its arguments are wrong; a function cannot be imported, or its code is
            not what was planned.
    """

    def call(name: str | None) -> Function | None:
        return None if name is None else open_callable(name, texts)

    steps: list[RowStep] = []
    if texts.format_callback:
        steps.append(RowCallable(open_callable(texts.format_callback, texts), "format_callback"))
    if texts.format_fields:
        steps.append(RenameFields(dict(texts.format_fields)))
    for place, step in enumerate(texts.transforms):
        for name, arguments in step.items():
            try:
                steps.append(_STEPS[name](arguments, call))
            except ConfigError as error:
                raise ConfigError(f"transforms.{place}.{name}: {error}", **error.details) from error
    return ChainedTransform(steps)


def open_renderer(
    texts: ResolvedTexts, content_field: str, files: TokenizerFiles, special_tokens_in_text: str
) -> Renderer:
    """Return what makes the texts of a source's rows.

    Args:
        special_tokens_in_text: for renderers with control tokens: ``fail``: a row whose own text spells one out is bad;
            ``encode``: it becomes one.

    Raises:
        ConfigError: the settings contradict themselves or the tokenizer.
    """
    if texts.preference:
        from tokenlake.etl.text.preference_renderer import PreferenceRenderer

        return PreferenceRenderer(texts.preference, files, special_tokens_in_text)
    if texts.chat:
        from tokenlake.etl.text.chat_renderer import ChatRenderer

        return ChatRenderer(texts.chat, files, special_tokens_in_text)
    if texts.prompt:
        from tokenlake.etl.text.prompt_renderer import open_prompt

        return open_prompt(texts.prompt, files, special_tokens_in_text)
    return FieldText(content_field)
