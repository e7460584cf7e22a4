"""Pages of the public names, generated from their signatures and docstrings.

A page has a group of names that are used together (:data:`reference_groups.GROUPS`). A
public name without a page is an error, so that the reference stays complete.
"""

from __future__ import annotations

import doctest
import enum
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from docstrings import ParsedDocstring, parse
from markup import block, definition, markdown_of
from reference_groups import GROUPS, Group
from reference_signatures import docstring_of, signature_of, types_of

import tokenlake
import tokenlake.data_pipeline
import tokenlake.easydel
import tokenlake.errors
import tokenlake.trainer
from tokenlake.base.lazy_names import load, stub_names
from tokenlake.base.section import Section
from tokenlake.errors import TokenlakeError

_PACKAGES: Final = (
    tokenlake,
    tokenlake.data_pipeline,
    tokenlake.trainer,
    tokenlake.easydel,
)
_ERRORS_MODULE: Final = "tokenlake.errors"
_ERRORS_PAGE: Final = "errors"

Links = Mapping[str, str]
"""Public name, such as ``Dataset.take`` -> address of its entry in the reference."""


@dataclass(frozen=True)
class PublicName:
    """Public name, and the object that it names."""

    path: str
    """Path by which it is imported, such as ``tokenlake.trainer.dpo``."""

    module: str
    """Module that defines it."""

    value: Any
    """The object."""

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rpartition(".")[2]


# -- pages


def python_pages() -> dict[str, str]:
    """Return the pages by their names: an index, ``python``, and one of each group."""
    names_by_page = _names_by_page(_public_names())
    links = _links(names_by_page)
    pages = {"python": _index(names_by_page, links)}
    for page, public_names in names_by_page.items():
        group = GROUPS[page]
        parts = [f"# {group.title}\n\n{group.about}\n"]
        for public in public_names:
            parts.append(_entry(public, links))
        pages[page] = "\n".join(parts)
    return pages


def _public_names() -> dict[str, PublicName]:
    """Return the public names by their last part.

    Of two paths to one object the first one counts.
    """
    names: dict[str, PublicName] = {}
    # Names that packages list in their stubs.
    origins: set[str] = set()
    for package in _PACKAGES:
        for name, origin in stub_names(str(package.__file__)).items():
            if name == "__version__" or origin in origins:
                continue
            origins.add(origin)
            path = f"{package.__name__}.{name}".replace(".easydel.", ".")
            module = origin.partition(":")[0]
            names[name] = PublicName(path, module, load(origin, path, "docs"))
    # Errors, which no stub lists.
    for name, value in vars(tokenlake.errors).items():
        if _is_error(value) and name not in names:
            path = f"{_ERRORS_MODULE}.{name}"
            names[name] = PublicName(path, value.__module__, value)
    return names


def _names_by_page(names: Mapping[str, PublicName]) -> dict[str, list[PublicName]]:
    """Return the public names of each page.

    Raises:
        ValueError: A name has no page; GROUPS must list it or its package.
    """
    # 1. Names that a group lists.
    remaining_names = dict(names)
    names_by_page: dict[str, list[PublicName]] = {}
    for page, group in GROUPS.items():
        names_by_page[page] = [remaining_names.pop(name) for name in group.names]
    # 2. The other names, on the page of their package.
    for public in remaining_names.values():
        names_by_page[_page_of(public)].append(public)
    return names_by_page


def _page_of(public: PublicName) -> str:
    """Return the page of a name that no group lists.

    Raises:
        ValueError: No group has the package of the name.
    """
    for page, group in GROUPS.items():
        is_error = page == _ERRORS_PAGE and public.module == _ERRORS_MODULE
        if is_error or _has_package(group, public.module):
            return page
    raise ValueError(
        f"{public.name} of {public.module} has no page; add it to GROUPS in docs/reference_groups.py"
    )


def _has_package(group: Group, module: str) -> bool:
    """Return whether a module is in a package of a group."""
    return any(module.startswith(package) for package in group.packages)


def _links(names_by_page: Mapping[str, list[PublicName]]) -> dict[str, str]:
    """Return the address of each public name and of its members."""
    links: dict[str, str] = {}
    for page, public_names in names_by_page.items():
        for public in public_names:
            links[public.name] = f"{page}.md#{public.name}"
            for member_name, _ in _members(public.value):
                path = f"{public.name}.{member_name}"
                links[path] = f"{page}.md#{path}"
    return links


def _index(names_by_page: Mapping[str, list[PublicName]], links: Links) -> str:
    """Return the page that lists all names with their summaries."""
    parts = [
        "# Python\n\n`import tokenlake as tl`. A name is imported on first use; if it needs a package that is not "
        "installed, the error has the line that installs it.\n\n"
        "The examples of the reference run in the tests, in a folder with texts in `data/`, tokenizers, and a store "
        "`artifacts` whose versions have packed rows of 64 ids and the splits `train` and `validation`.\n"
    ]
    for page, public_names in names_by_page.items():
        parts.append(f"## [{GROUPS[page].title}]({page}.md)\n")
        for public in public_names:
            summary = markdown_of(docstring_of(public.value).summary, links)
            parts.append(f"- [`{public.name}`]({links[public.name]}): {summary}")
        parts.append("")
    return "\n".join(parts)


# -- entries


def _entry(public: PublicName, links: Links) -> str:
    """Return the entry of a public name."""
    value = public.value
    lines = [f"## {public.name} {{ #{public.name} }}\n"]
    if inspect.isclass(value) and issubclass(value, Section):
        lines.append(block(f"{public.path}(**keys)", "python"))
        lines += _text(value, links)
        lines.append("All keys with their defaults: [All keys](keys.md).\n")
    elif _is_error(value):
        lines.append(block(public.path, "python"))
        lines += _text(value, links)
        lines.append(_exit_code(value, links))
    elif inspect.isclass(value) and issubclass(value, enum.Enum):
        members = ", ".join(f"`{member.name}`" for member in value)
        lines.append(block(public.path, "python"))
        lines += _text(value, links)
        lines.append(f"Members: {members}.\n")
    else:
        lines.append(block(signature_of(public.path, value), "python"))
        lines += _text(value, links)
    if inspect.isclass(value):
        lines += _member_entries(public.name, value, links)
    return "\n".join(lines)


def _exit_code(error: type[TokenlakeError], links: Links) -> str:
    """Return the exit code and the base classes of an error, in Markdown."""
    bases: list[str] = []
    for base in error.__mro__[1:]:
        if base.__module__ == _ERRORS_MODULE and base.__name__ in links:
            bases.append(f"[`{base.__name__}`]({links[base.__name__]})")
    text = f"Exit code {error.exit_code}."
    if bases:
        text += f" Bases: {', '.join(bases)}."
    return f"{text}\n"


def _text(value: Any, links: Links) -> Iterator[str]:
    """Yield the sections of a docstring, in Markdown."""
    docstring = docstring_of(value)
    yield f"{markdown_of(docstring.summary, links)}\n"
    if docstring.prose:
        yield f"{markdown_of(docstring.prose, links)}\n"
    # A dataclass explains its arguments as attributes, each once.
    types = types_of(value)
    yield from _explained(docstring, "Args", "Arguments", types, links)
    yield from _explained(docstring, "Attributes", "Attributes", types, links)
    for title in ("Returns", "Yields"):
        if title in docstring.texts:
            yield f"**{title}**\n\n{markdown_of(docstring.texts[title], links)}\n"
    if "Raises" in docstring.entries:
        yield "**Raises**\n"
        for name, text in docstring.entries["Raises"]:
            term = f"`{name}`"
            if name in links:
                term = f"[`{name}`]({links[name]})"
            yield definition(term, markdown_of(text, links))
    if "Example" in docstring.texts:
        yield "**Example**\n"
        yield from _example(docstring.texts["Example"])


def _explained(
    docstring: ParsedDocstring,
    title: str,
    heading: str,
    types: Mapping[str, str],
    links: Links,
) -> Iterator[str]:
    """Yield a section of arguments or attributes with their types, in Markdown.

    Args:
        docstring: Docstring with the section, or without it.
        title: Title of the section in the docstring.
        heading: Title of the section on the page.
        types: Name of an argument or attribute -> its type.
        links: Addresses of public names.
    """
    if title not in docstring.entries:
        return
    yield f"**{heading}**\n"
    for name, text in docstring.entries[title]:
        term = f"`{name}`"
        if name in types:
            term = f"`{name}` · `{types[name]}`"
        yield definition(term, markdown_of(text, links))


def _example(text: str) -> Iterator[str]:
    """Yield the code of an example without prompts, and the output that it prints."""
    statements: list[str] = []
    for example in doctest.DocTestParser().get_examples(text):
        statements.append(example.source.rstrip("\n"))
        # Statements without output belong to the block of the next one with output.
        if example.want:
            yield block("\n".join(statements), "python")
            yield block(example.want.rstrip("\n"))
            statements = []
    if statements:
        yield block("\n".join(statements), "python")


# -- members of classes


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class with their names.

    Inherited members and members without a docstring are left out.
    """
    if not inspect.isclass(value):
        return
    for name, member in vars(value).items():
        if name.startswith("_") or not inspect.getdoc(member):
            continue
        is_cached_property = type(member).__name__ == "cached_property"
        is_property = isinstance(member, property) or is_cached_property
        if is_property or inspect.isfunction(_function_of(member)):
            yield name, member


def _member_entries(owner: str, value: Any, links: Links) -> Iterator[str]:
    """Yield the properties of a class as a list, then its methods.

    Args:
        owner: Name of the class.
        value: The class.
        links: Addresses of public names.
    """
    properties: list[str] = []
    methods: list[str] = []
    for name, member in _members(value):
        path = f"{owner}.{name}"
        function = _function_of(member)
        if inspect.isfunction(function):
            signature = signature_of(path, function, is_method=True)
            methods.append(f"### {path} {{ #{path} }}\n")
            methods.append(block(signature, "python"))
            methods += _text(function, links)
        else:
            properties.append(_property_entry(path, member, links))
    if properties:
        yield "**Properties**\n"
        yield from properties
    yield from methods


def _property_entry(path: str, member: Any, links: Links) -> str:
    """Return the entry of a property.

    Args:
        path: Name of the property with that of its class.
        member: Property or cached property.
        links: Addresses of public names.
    """
    name = path.rpartition(".")[2]
    getter = getattr(member, "fget", None) or member.func
    docstring = parse(inspect.getdoc(getter) or "")
    text = f"{docstring.summary}\n\n{docstring.prose}".strip()
    result = str(inspect.signature(getter).return_annotation).strip("'")
    term = f"`{name}`{{ #{path} }} · `{result}`"
    return definition(term, markdown_of(text, links))


def _function_of(member: Any) -> Any:
    """Return the function of a class method or static method, or the member itself."""
    return getattr(member, "__func__", member)


def _is_error(value: Any) -> bool:
    """Return whether an object is a class of errors of Tokenlake."""
    return inspect.isclass(value) and issubclass(value, TokenlakeError)
