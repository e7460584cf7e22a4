"""The pages of the site that are written from the code: keys of configurations, commands and public names.

MkDocs calls `on_files` and `on_page_markdown` (`hooks` of mkdocs.yml). What these pages say stands in the code alone:
the text under a field, the help of a command, the docstring of a name.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin
from unittest.mock import patch

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic_core import PydanticUndefined

import tokenlake
import tokenlake.easydel
from tokenlake.base.lazy_names import load, stub_names
from tokenlake.base.section import Section, field_texts
from tokenlake.cli import COMMANDS
from tokenlake.cli.app import main
from tokenlake.config.dataset import DataModuleConfig
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.runtime.trainer.config import TrainingConfig

_LINK: Final = re.compile(r"\[([^\]]+)\]\((\.\./[^)]*)\)")
_FILE: Final = re.compile(r"\[([\w./]+\.md)\]\(([\w./]+\.md)\)")
_GROUPS: Final = {
    "loader": "Loading",
    "trainer": "Training",
    "store": "Stores",
    "integrity": "Stores",
    "publish": "Stores",
    "export": "Stores",
    "etl": "Building",
    "config": "Configuration",
    "introspection": "Looking",
    "query": "Looking",
    "mixing": "Mixing and packing",
    "packing": "Mixing and packing",
    "text": "Text",
    "rowwise": "Row by row",
    "data_pipeline": "Row by row",
    "cache": "Caches",
}


_FLOORS: Final = ("base", "runtime", "etl")
"""Packages that hold the packages of a floor."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are written from the code."""
    for name, write in (("keys", keys), ("commands", command_help), ("python", public_names)):
        files.append(File.generated(config, f"reference/{name}.md", content=write()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Call a page that is linked by the name of its file by its title, and show a link to a file beside docs/, which
    the site does not have, as its name.
    """
    folder = posixpath.dirname(page.file.src_uri)

    def titled(link: re.Match[str]) -> str:
        found = files.get_file_from_path(posixpath.normpath(posixpath.join(folder, link[2])))
        title = found and re.search("^# (.+)$", found.content_string, re.MULTILINE)
        return f"[{title[1]}]({link[2]})" if title else link[0]

    def named(link: re.Match[str]) -> str:
        outside = posixpath.normpath(posixpath.join(folder, link[2])).startswith("..")
        return f"`{link[1].strip('`')}`" if outside else link[0]

    return _LINK.sub(named, _FILE.sub(titled, markdown))


def keys() -> str:
    """Return the page of all keys of the three kinds of configuration files."""
    parts = [
        "# All keys\n\nWritten from the code. Which options a build or a pipeline refuses: "
        "[Configuration](../configuration.md). `tokenlake schema` prints the same for editors.\n"
    ]
    for title, model in (
        ("Configuration of a build", PipelineConfig),
        ("Configuration of a data module", DataModuleConfig),
        ("Configuration of the trainer", TrainingConfig),
    ):
        parts.append(f"## {title}\n")
        parts += _sections(model, set())
    return "\n".join(parts)


def _sections(model: type[Section], seen: set[type[Section]], place: str = "") -> Iterator[str]:
    """Yield the table of a model, then those of the models of its fields, each once."""
    seen.add(model)
    below: list[tuple[str, type[Section]]] = []
    rows: list[str] = []
    texts = field_texts(model)
    for name, field in model.model_fields.items():
        # A field with a default factory or validators of its own keeps what it holds in the annotation.
        inner = [found for found in _models(field.annotation) if found not in seen]
        below += [(f"{place}{field.alias or name}", found) for found in inner]
        rows.append(
            f"| `{field.alias or name}` | {_type(field.annotation)} | {_default(field)} | {_cell(texts.get(name))} |"
        )
    yield f"### {f'`{place.rstrip(chr(46))}`' if place else 'Top'}\n"
    yield _cell(inspect.getdoc(model) or "").partition(". ")[0].rstrip(".") + ".\n"
    yield "| key | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    for name, found in below:
        if found not in seen:
            yield from _sections(found, seen, f"{name}.")


def _models(annotation: Any) -> Iterator[type[Section]]:
    if inspect.isclass(annotation) and get_origin(annotation) is None:
        if issubclass(annotation, Section):
            yield annotation
        return
    for argument in get_args(annotation):
        yield from _models(argument)


def _type(annotation: Any) -> str:
    """Return what may stand there: `a`, `b` of choices, else the kind of value."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{_written(value)}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_type(each) for each in arguments if each is not NoneType))
    if hasattr(annotation, "__metadata__"):
        return _type(arguments[0])
    if origin is dict or (inspect.isclass(annotation) and issubclass(annotation, Section)):
        return "mapping"
    if origin in (tuple, list):
        return f"list of {_type(arguments[0])}"
    plain = {bool: "true or false", int: "integer", float: "number", str: "text"}
    return plain.get(annotation, "value")


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is PydanticUndefined or isinstance(value, Section) or value in ({}, ()):
        return ""
    return f"`{_written(value)}`"


def _written(value: Any) -> str:
    """Return a value as YAML has it."""
    if isinstance(value, str):
        return value.encode("unicode_escape").decode() or '""'
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _cell(text: str | None) -> str:
    """Return a text as one line of a table."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text or "")
    text = re.sub(r"``+", "`", text)
    return " ".join(text.split()).replace("|", "\\|")


def command_help() -> str:
    """Return the page of all commands: each with its help, as the terminal shows it."""
    parts = ["# Commands\n\nWritten from the code: what `tokenlake COMMAND --help` prints.\n"]
    parts.append(_block(_help("--help")))
    parts += [f"## {name}\n\n{_block(_help(name, '--help'))}" for name in COMMANDS]
    return "\n".join(parts)


def _help(*arguments: str) -> str:
    printed = io.StringIO()
    with patch.dict(os.environ, {"COLUMNS": "96", "NO_COLOR": "1"}), contextlib.redirect_stdout(printed):
        main(arguments)
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


def _block(text: str) -> str:
    return f"```text\n{text}\n```\n"


def public_names() -> str:
    """Return the page of all public names, by what they are for: signature and first sentence."""
    groups: dict[str, list[str]] = {}
    for module, name in _names():
        groups.setdefault(_group(module), []).append(_entry(module, name))
    parts = [
        "# Python\n\nWritten from the code: the names of `import tokenlake as tl`, first those that `dir(tl)` lists, "
        "then those of EasyDeL's data package, which `tokenlake.easydel` lists. Each is imported on first use.\n\n"
        'What is about a version takes first `where` it is, as `tl.open` does: `"artifacts/books@v3"`, or the store '
        'with `name="books@v3"`; then what is asked of it. What is about a whole store takes the store first.\n'
    ]
    for title in dict.fromkeys([*_GROUPS.values(), "Others"]):
        if title in groups:
            parts.append(f"## {title}\n")
            parts += groups[title]
    return "\n".join(parts)


def _group(home: str) -> str:
    """Return the title under which the names of a module stand: that of its package, else that of its floor."""
    floor, *inner = home.partition(":")[0].split(".")[1:3]
    if floor in _FLOORS and inner and inner[0] in _GROUPS:
        return _GROUPS[inner[0]]
    return _GROUPS.get(floor, "Others")


def _names() -> Iterator[tuple[str, str]]:
    """Yield home and name of each public name: those that are listed, then those of EasyDeL's package."""
    for module in (tokenlake, tokenlake.easydel):
        homes = stub_names(str(module.__file__))
        yield from ((home, name) for name, home in homes.items() if name != "__version__")


def _entry(home: str, name: str) -> str:
    value = load(home, f"tokenlake.{name}", "docs")
    lines = [
        f"### {name}\n",
        f"`{home.partition(':')[0]}`\n",
        f"```python\n{name}{_signature(value)}\n```\n",
        _sentence(value),
    ]
    if inspect.isclass(value):
        lines += ["", *_members(value)]
    return "\n".join(lines) + "\n"


def _members(value: type) -> Iterable[str]:
    """Yield a line for each public method and property that the class itself defines."""
    for name, member in vars(value).items():
        member = getattr(member, "__func__", member)
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        if not (said := _sentence(member)):
            continue
        called = "" if isinstance(member, property) else "()"
        yield f"- `.{name}{called}`: {said}"


def _signature(value: Any) -> str:
    """Return a signature, a parameter a line where it is long."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    text = _readable(signature)
    if len(text) <= 80:
        return text
    parameters = "".join(f"\n    {_readable(each)}," for each in signature.parameters.values())
    return f"({parameters}\n)"


def _readable(signature: object) -> str:
    """Return it without the quotes of annotations that are not evaluated, and without addresses in memory."""
    return re.sub(r"(: |-> )'([^'\n]*)'", r"\1\2", re.sub(r" at 0x[0-9a-f]+", "", str(signature)))


def _sentence(value: Any) -> str:
    """Return the first paragraph of a docstring; of a model without one nothing."""
    text = (inspect.getdoc(value) or "").partition("\n\n")[0]
    return _cell(text).replace("\\|", "|")
