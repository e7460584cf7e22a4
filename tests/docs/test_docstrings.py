"""Docstrings of the public names are complete, and the code of their examples runs
and shows the results it states.
"""

from __future__ import annotations

import doctest
import enum
import inspect
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final, get_type_hints

import pytest
from pydantic import BaseModel

import tokenlake
import tokenlake.data_pipeline
import tokenlake.easydel
import tokenlake.trainer
from docs.docstrings import ParsedDocstring, parse
from tests.store.support import linked_copy

PACKAGES: Final = (tokenlake, tokenlake.data_pipeline, tokenlake.trainer)
"""Packages whose public names must be explained; examples of those of
:mod:`tokenlake.easydel` run, too.
"""

FLAGS: Final = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _public_names(packages: Iterable[Any]) -> list[str]:
    """Return the public paths; of two paths with one name the first counts. Nothing
    is imported.
    """
    paths: dict[str, str] = {}
    for package in packages:
        names = {*package.__all__} - {"__version__"}
        if package is tokenlake:
            # Not listed: it would replace Python's own in a module that imports all
            # names.
            names.add("open")
        for name in sorted(names):
            paths.setdefault(name, f"{package.__name__}.{name}")
    return list(paths.values())


NAMES: Final = _public_names(PACKAGES)
ALL_NAMES: Final = _public_names((*PACKAGES, tokenlake.easydel))


def _value(name: str) -> Any:
    package, _, last = name.rpartition(".")
    return getattr(import_module(package), last)


def _docstring(value: Any) -> ParsedDocstring:
    return parse(inspect.getdoc(value) or "")


def _parameters(value: Any) -> Iterator[str]:
    """Yield the parameters that a docstring must explain.

    The fields of sections of a configuration have texts of their own, and so have the
    arguments of errors and enumerations that their base class explains.
    """
    if inspect.isclass(value) and issubclass(
        value, (BaseModel, BaseException, enum.Enum)
    ):
        return
    try:
        signature = inspect.signature(value)
    except ValueError:  # classes over built-in types
        return
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            yield from _keywords(value, parameter)
        elif not parameter.name.startswith("_"):
            yield parameter.name


def _keywords(value: Any, parameter: inspect.Parameter) -> Iterator[str]:
    """Yield the further keyword arguments: those of its typed dictionary, if the
    docstring does not name them all.
    """
    explained = {name for name, _ in _docstring(value).entries.get("Args", [])}
    if parameter.name in explained:
        return
    function = value.__init__ if inspect.isclass(value) else value
    annotation = get_type_hints(function)[parameter.name]
    typed_dict = getattr(annotation, "__args__", (None,))[0]
    if typed_dict is not None:
        yield from typed_dict.__annotations__


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_explained(name: str) -> None:
    value = _value(name)
    docstring = _docstring(value)
    explained = [
        *docstring.entries.get("Args", []),
        *docstring.entries.get("Attributes", []),
    ]
    assert docstring.summary.endswith("."), docstring.summary
    assert [each for each in _parameters(value) if each not in dict(explained)] == []
    for entry, text in (*explained, *docstring.entries.get("Raises", [])):
        assert re.match("[A-Z`\"'(0-9]", text), f"{entry}: {text}"
    if inspect.isfunction(value):
        has_result = inspect.signature(value).return_annotation not in ("None", None)
        says_result = (
            docstring.summary.startswith("Return") or "Returns" in docstring.texts
        )
        assert says_result or not has_result
    assert "Example" in docstring.texts


@pytest.mark.parametrize("name", NAMES)
def test_the_prose_has_no_code(name: str) -> None:
    """Code is in the section `Example:`, which is run, and not in an indented block,
    which is not.
    """
    docstring = _docstring(_value(name))
    assert not re.search(r"^    \S", docstring.prose, re.MULTILINE), docstring.prose


@pytest.mark.parametrize("name", ALL_NAMES)
def test_the_example_runs(
    name: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = _docstring(_value(name)).texts.get("Example", "")
    if not code:
        assert name not in NAMES
        return
    linked_copy(world, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENLAKE_CACHE", str(tmp_path / "cache"))
    example = doctest.DocTestParser().get_doctest(
        code, {"__name__": "__main__"}, name, None, 0
    )
    assert example.examples
    assert not any(line.options.get(doctest.SKIP) for line in example.examples), (
        "an example that nobody runs"
    )
    failures: list[str] = []
    result = doctest.DocTestRunner(optionflags=FLAGS).run(example, out=failures.append)
    assert result.failed == 0, "".join(failures)


def test_sections_of_a_docstring_become_entries() -> None:
    docstring = parse(
        """Return the mean,
        of all.

        More.

        Args:
            values: Numbers, of which

                - none is negative.
            *others, weight: More of them.

        Returns:
            The mean.
        """
    )
    assert docstring == ParsedDocstring(
        "Return the mean, of all.",
        "More.",
        {
            "Args": [
                ("values", "Numbers, of which\n\n- none is negative."),
                ("*others, weight", "More of them."),
            ]
        },
        {"Returns": "The mean."},
    )


def test_a_line_that_would_be_lost_is_an_error() -> None:
    with pytest.raises(ValueError, match="got the line 'as of another'"):
        parse("Save.\n\nRaises:\n    as of another\n")
