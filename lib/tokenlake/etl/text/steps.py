"""Steps and renderer of a configuration.

Their order is: callback, then renames, then transforms, then text.

Every process of a build finds a user's function by its name,
``package.module:function``. Its code decides the result as much as the configuration
does: the plan takes the sha256 of the file that defines the function into the build's
identity, and a process that runs the function checks that its own file is the same.
Imports of that file are not checked.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, final

from tokenlake.config.resolved import ResolvedTexts
from tokenlake.errors import BadRecordError, ConfigError, TokenlakeError
from tokenlake.etl.sources.rows import Row
from tokenlake.etl.text.chatml_transforms import (
    ConvertInputOutputToChatML,
    ConvertToChatML,
)
from tokenlake.etl.text.fields import (
    AddField,
    CombineFields,
    DropFields,
    ExtractField,
    MapField,
    RenameFields,
    SelectFields,
)
from tokenlake.etl.text.filters import (
    FilterByField,
    FilterNonEmpty,
    FilterTransform,
    Where,
)
from tokenlake.etl.text.quality import QualityFilter
from tokenlake.etl.text.renderer import FieldText, Renderer
from tokenlake.etl.text.transform import ChainedTransform, ExpandTransform, RowStep
from tokenlake.etl.tokenizers.files import TokenizerFiles

Function = Callable[[Any], Any]

BUILT_IN: Final = "built-in"
"""In the place of a hash: the function belongs to Python itself."""

_FIRST_FOUND: dict[str, tuple[object, str]] = {}
"""Function and hash by name, as this process found them first: a file may change
while its code stays loaded.
"""


def load_callable(name: str) -> Function:
    """Return the function with the name ``package.module:function``.

    Raises:
        ConfigError: It cannot be imported, or is no function.
    """
    module_name, _, attribute_path = name.partition(":")
    # Importing runs the user's code, which may raise anything.
    try:
        function: Any = import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"the function {name!r} cannot be imported: {type(error).__name__}: {error}. Its module must be importable "
            "in every process of the build: install it, or put its folder on PYTHONPATH",
            callable=name,
        ) from error
    # A function may be an attribute of a class.
    for attribute in attribute_path.split("."):
        if not hasattr(function, attribute):
            raise ConfigError(
                f"the function {name!r} does not exist: {module_name} has no {attribute_path}",
                callable=name,
            )
        function = getattr(function, attribute)
    if not callable(function):
        raise ConfigError(
            f"{name!r} is a {type(function).__name__}, must be a function",
            callable=name,
        )
    return function


def code_hash(function: Function) -> str:
    """Return the sha256 of the file of the module that defines a function."""
    # A method of a built-in type knows its type, not its module.
    defining_type = getattr(function, "__objclass__", function)
    module_name = getattr(defining_type, "__module__", None)
    if not module_name:
        module_name = type(function).__module__
    # Modules of C code that belong to Python have no file.
    file_path = getattr(sys.modules.get(module_name), "__file__", None)
    if file_path is None:
        return BUILT_IN
    return hashlib.sha256(Path(file_path).read_bytes()).hexdigest()


def sealed(texts: ResolvedTexts) -> ResolvedTexts:
    """Return the settings with the hashes of their functions' code.

    Raises:
        ConfigError: A function cannot be imported.
    """
    if not texts.functions:
        return texts
    hashes: list[tuple[str, str]] = []
    for name in texts.functions:
        hashes.append((name, code_hash(load_callable(name))))
    return replace(texts, callables=tuple(hashes))


def open_callable(name: str, texts: ResolvedTexts) -> Function:
    """Return the function with a name, guarded (see :class:`Guarded`).

    Args:
        name: Name of the function.
        texts: Settings, with the planned hashes.

    Raises:
        ConfigError: The function cannot be imported, or its code differs from the
            planned code.
    """
    function = load_callable(name)
    # Code that was loaded stays, even if its file has changed since.
    if name not in _FIRST_FOUND or _FIRST_FOUND[name][0] is not function:
        _FIRST_FOUND[name] = (function, code_hash(function))
    _, loaded_hash = _FIRST_FOUND[name]
    # Settings that were not sealed have no hashes.
    planned_hash = dict(texts.callables).get(name)
    if planned_hash is not None and planned_hash != loaded_hash:
        raise ConfigError(
            f"the code of {name!r} differs from the planned code: the file of its module has sha256 {loaded_hash} in "
            f"this process, and had {planned_hash} in the plan. Build again in fresh processes that all see the same "
            "file",
            callable=name,
            expected=planned_hash,
            got=loaded_hash,
        )
    return Guarded(name, function)


@final
class Guarded:
    """A function whose exceptions make bad records.

    The message names the function, the exception and its text.

    Args:
        name: Name of the function.
        function: Function of one value.
    """

    def __init__(self, name: str, function: Function) -> None:
        self._name = name
        self._function = function

    def __call__(self, value: Any) -> Any:
        """Call the function.

        Raises:
            BadRecordError: The function raised an exception.
        """
        try:
            return self._function(value)
        except (TokenlakeError, MemoryError):
            raise
        except Exception as error:
            raise BadRecordError(
                f"{self._name} raised {type(error).__name__}: {error}",
                reason="callable_raised",
            ) from error

    def __repr__(self) -> str:
        return self._name


@final
class RowCallable(ExpandTransform):
    """A function of a row that returns a row, None to leave it out, or a list of rows.

    Args:
        function: Function of a row.
        reason: Reason under which rows are counted that it leaves out.
    """

    def __init__(self, function: Function, reason: str) -> None:
        self._function = function
        self.reason = reason

    def expand(self, example: Row) -> Sequence[Row]:
        """Return the rows that the function makes of a copy of `example`.

        Raises:
            ConfigError: The function returned something else.
        """
        # The function gets a copy: it may change its row.
        result = self._function(dict(example))
        if result is None:
            return []
        rows: list[Any] = [result]
        if isinstance(result, list | tuple):
            rows = list(result)
        for row in rows:
            if not isinstance(row, dict):
                raise ConfigError(
                    f"{self._function!r} returned a {type(row).__name__}, must be a dict, None to leave the row out, "
                    "or a list of dicts",
                    callable=repr(self._function),
                )
        return rows


def _is_one_of(values: list[Any], value: Any) -> bool:
    """Return whether a value is one of some; true is not 1."""
    is_boolean = isinstance(value, bool)
    comparable = [item for item in values if isinstance(item, bool) is is_boolean]
    return any(value == item for item in comparable)


Opener = Callable[[str | None], Any]
"""Function that returns the function with a name; None for None."""


def _open_add(fields: dict[str, Any], _: Opener) -> RowStep:
    """Return one step for each field, in order."""
    return ChainedTransform(
        [AddField(*name_and_value) for name_and_value in fields.items()]
    )


def _open_map(arguments: dict[str, Any], opener: Opener) -> RowStep:
    function = opener(arguments["function"])
    return MapField(arguments["field"], function, arguments.get("output_field"))


def _open_combine(arguments: dict[str, Any], opener: Opener) -> RowStep:
    combiner = opener(arguments.get("combiner"))
    return CombineFields(**{**arguments, "combiner": combiner})


def _open_filter_by(arguments: dict[str, Any], opener: Opener) -> RowStep:
    """Return a filter by a function, by a list of values, or by one value."""
    predicate = opener(arguments.get("function"))
    if predicate is None:
        values = arguments.get("one_of")
        if values is None:
            values = [arguments.get("equals")]
        predicate = partial(_is_one_of, values)
    return FilterByField(arguments["field"], predicate)


_STEPS: Final[Mapping[str, Callable[[Any, Opener], RowStep]]] = {
    "select": lambda fields, _: SelectFields(fields),
    "drop": lambda fields, _: DropFields(fields),
    "rename": lambda names, _: RenameFields(names),
    "add": _open_add,
    "map": _open_map,
    "extract": lambda arguments, _: ExtractField(**arguments),
    "combine": _open_combine,
    "filter_non_empty": lambda fields, _: FilterNonEmpty(fields),
    "filter_by": _open_filter_by,
    "filter": lambda name, opener: FilterTransform(opener(name)),
    "quality": lambda arguments, _: QualityFilter(**arguments),
    "convert_to_chatml": lambda arguments, _: ConvertToChatML(**arguments),
    "convert_input_output_to_chatml": lambda arguments, _: ConvertInputOutputToChatML(
        **arguments
    ),
    "where": lambda sql, _: Where(sql),
    "apply": lambda name, opener: RowCallable(opener(name), "apply"),
}
"""Steps of a configuration by name."""


def open_chain(texts: ResolvedTexts) -> ChainedTransform:
    """Return the steps before the text is rendered; there may be none.

    Raises:
        ConfigError: A step does not exist, or its arguments are wrong; a function
            cannot be imported, or its code differs from the planned code.
    """

    def opener(name: str | None) -> Function | None:
        if name is None:
            return None
        return open_callable(name, texts)

    # Callback, renames, transforms.
    steps: list[RowStep] = []
    if texts.format_callback:
        callback = open_callable(texts.format_callback, texts)
        steps.append(RowCallable(callback, "format_callback"))
    if texts.format_fields:
        steps.append(RenameFields(dict(texts.format_fields)))
    for index, step in enumerate(texts.transforms):
        # A step is a mapping with one entry: its name and its arguments.
        for name, arguments in step.items():
            try:
                steps.append(_STEPS[name](arguments, opener))
            except ConfigError as error:
                raise ConfigError(
                    f"transforms.{index}.{name}: {error}", **error.details
                ) from error
    return ChainedTransform(steps)


def open_renderer(
    texts: ResolvedTexts,
    content_field: str,
    files: TokenizerFiles,
    special_tokens_in_text: str,
) -> Renderer:
    """Return the renderer of a source's rows.

    Args:
        texts: Settings of the source.
        content_field: Field of rows that are plain text.
        files: Files of the tokenizer.
        special_tokens_in_text: Treatment of rows that spell a special token, where
            texts hold control tokens: ``fail`` makes such a row bad; ``encode`` makes
            it a control token.

    Raises:
        ConfigError: The settings contradict themselves or the tokenizer.
    """
    # Chat templates are imported by builds that need them only: most sources are plain
    # text.
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
