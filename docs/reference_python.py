"""The pages of the public names, written from their signatures and docstrings.

A page is a group of names that are used together. Names that :data:`GROUPS` lists come
in that order; those of :mod:`tokenlake.easydel` are assigned to a page by the package
that defines them. A public name without a page is an error, so that the reference stays
complete.
"""

from __future__ import annotations

import doctest
import enum
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

from docstrings import ParsedDocstring, parse
from markup import block, definition, markdown_of, one_line

import tokenlake
import tokenlake.data_pipeline
import tokenlake.easydel
import tokenlake.errors
import tokenlake.trainer
from tokenlake.base.lazy_names import load, stub_names
from tokenlake.base.section import Section
from tokenlake.runtime.loader.options import LoaderOptions


@dataclass(frozen=True)
class Group:
    """A page of the reference."""

    title: str
    """Title of the page."""

    about: str
    """Text under the title, in Markdown."""

    names: tuple[str, ...] = ()
    """Names of `tokenlake`, in the order of the page."""

    packages: tuple[str, ...] = ()
    """Packages whose further public names follow, in the order of their list."""


GROUPS: Final = {
    "loading": Group(
        "Open and load",
        "Open a version of a dataset and read it as batches. The guide is [Training](../training.md).",
        (
            "open",
            "Dataset",
            "DataLoader",
            "explain",
            "LoaderMetrics",
            "MetricsExport",
            "Metric",
        ),
    ),
    "batches": Group(
        "Shapes of batches",
        "Options of [`DataLoader`](loading.md#DataLoader): padding, layout, balance and length of rows. The guides are "
        "[Padding](../padding.md) and [Layouts](../training.md#layouts).",
        ("BatchPadding", "BatchLayout", "BatchBalance", "LengthCurriculum"),
    ),
    "mixing": Group(
        "Mix",
        "Combine datasets by weights. The guide is [mixing.md](../mixing.md).",
        ("Mixture", "WeightScheduler"),
    ),
    "frameworks": Group(
        "Other frameworks",
        "The same batches in PyTorch, Grain and Hugging Face's `datasets`, and the state of a loader in Orbax "
        "checkpoints. The guide for PyTorch is [howto/pytorch.md](../howto/pytorch.md).",
        (
            "torch_dataset",
            "torch_rows",
            "grain_dataset",
            "grain_source",
            "hf_dataset",
            "LoaderSave",
            "LoaderRestore",
        ),
    ),
    "building": Group(
        "Build",
        "Plan and build versions of datasets. The guide is [building.md](../building.md).",
        (
            *(
                "build_dataset",
                "import_tokens",
                "BuildResult",
                "plan",
                "load_config",
                "inspect",
                "DatasetIntrospector",
            ),
            *("clean_dataset", "tokenize_and_save", "pretokenize", "WriteStats"),
        ),
    ),
    "configurations": Group(
        "Configurations",
        "Models of configurations. [All keys](keys.md) explains each key; a section may be given as a mapping.",
        ("PipelineConfig", "DatasetConfig"),
        ("tokenlake.config",),
    ),
    "stores": Group(
        "Store",
        "List, compare, verify, repair, remove, export and query versions. Functions about one version first take its "
        'place, as [`open`](loading.md#open) does: `"artifacts/books@v3"`, or the store with `name="books@v3"`. '
        "Functions about a whole store take the store first.",
        (
            *(
                "Catalog",
                "Manifest",
                "tag",
                "diff",
                "verify",
                "VerifyReport",
                "repair",
                "RepairReport",
                "gc",
            ),
            *(
                "remove_version",
                "export_version",
                "verify_export",
                "ExportReport",
                "push_to_hub",
                "PushReport",
                "report",
            ),
            *("report_store", "StoreReport", "sql"),
        ),
    ),
    "training": Group(
        "Train",
        "The included trainer, and its parts in `tokenlake.trainer`. The guide is [trainer.md](../trainer.md).",
        (
            "Trainer",
            "TrainingConfig",
            "load_training_config",
            "TrainingMetrics",
            "Callback",
        ),
        ("tokenlake.runtime.trainer",),
    ),
    "data_pipeline": Group(
        "Data pipeline",
        "`tokenlake.data_pipeline`: batches for PyTorch from one YAML file, with results in place of exceptions. "
        "The guide is [data_module.md](../data_module.md).",
        ("DataPipeline",),
        (
            "tokenlake.data_pipeline",
            "tokenlake.base.result",
            "tokenlake.etl.introspection",
        ),
    ),
    "rows": Group(
        "Row by row",
        "Sources, stages, loaders and writers that work on rows as dicts, in this process. These names are also "
        "those of EasyDeL's data package (`tokenlake.easydel`).",
        ("create_source", "Pipeline", "create_pipeline"),
        ("tokenlake.rowwise",),
    ),
    "transforms": Group(
        "Transforms",
        "Functions of rows: fields, filters, chats, prompts and the rows of trainers. [texts.md](../texts.md) explains "
        "them as keys of a configuration.",
        (),
        ("tokenlake.etl.text",),
    ),
    "packing": Group(
        "Tokenize and pack",
        "Tokenizers and packers for token ids in this process.",
        (),
        ("tokenlake.etl.tokenizers", "tokenlake.etl.packing"),
    ),
    "caches": Group(
        "Caches",
        "Caches of objects in memory and on disk.",
        (),
        ("tokenlake.base.cache",),
    ),
    "errors": Group(
        "Errors",
        "Every error that Tokenlake raises on purpose. They are in `tokenlake.errors`; the first is also "
        "`tokenlake.TokenlakeError`.",
        ("TokenlakeError",),
    ),
}

_PACKAGES: Final = (
    tokenlake,
    tokenlake.data_pipeline,
    tokenlake.trainer,
    tokenlake.easydel,
)
_PHONE_COLUMNS: Final = 44
"""Characters of a line of code on a narrow screen."""

_ERRORS_PAGE: Final = "errors"


@dataclass(frozen=True)
class PublicName:
    """A public name, and the object that it names."""

    path: str
    """Path by which it is imported, such as ``tokenlake.trainer.dpo``."""

    home: str
    """Module that defines it."""

    value: Any
    """The object."""

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rpartition(".")[2]


def python_pages() -> dict[str, str]:
    """Return the pages by their names: an index, ``python``, and one of each group."""
    names = _public_names()
    pages = _assigned(names)
    links: dict[str, str] = {}
    for page, listed in pages.items():
        for public in listed:
            links[public.name] = f"{page}.md#{public.name}"
            for member, _ in _members(public.value):
                links[f"{public.name}.{member}"] = f"{page}.md#{public.name}.{member}"
    written = {"python": _index(pages, links)}
    for page, listed in pages.items():
        group = GROUPS[page]
        entries = [_entry(public, links) for public in listed]
        written[page] = "\n".join([f"# {group.title}\n\n{group.about}\n", *entries])
    return written


def _public_names() -> dict[str, PublicName]:
    """Return the public names by their last part; of two paths to one object the
    first counts.
    """
    names: dict[str, PublicName] = {}
    homes: set[str] = set()
    for package in _PACKAGES:
        for name, home in stub_names(str(package.__file__)).items():
            if name == "__version__" or home in homes:
                continue
            homes.add(home)
            path = f"{package.__name__}.{name}".replace(".easydel.", ".")
            names[name] = PublicName(
                path, home.partition(":")[0], load(home, path, "docs")
            )
    for name, value in vars(tokenlake.errors).items():
        is_error = inspect.isclass(value) and issubclass(
            value, tokenlake.errors.TokenlakeError
        )
        if is_error and name not in names:
            names[name] = PublicName(
                f"tokenlake.errors.{name}", value.__module__, value
            )
    return names


def _assigned(names: dict[str, PublicName]) -> dict[str, list[PublicName]]:
    """Return the names of each page.

    Raises:
        ValueError: A name has no page; GROUPS must list it or its package.
    """
    waiting = dict(names)
    pages: dict[str, list[PublicName]] = {}
    for page, group in GROUPS.items():
        pages[page] = [waiting.pop(name) for name in group.names]
    for name, public in waiting.items():
        for page, group in GROUPS.items():
            is_error = page == _ERRORS_PAGE and public.home == "tokenlake.errors"
            if is_error or any(
                public.home.startswith(package) for package in group.packages
            ):
                pages[page].append(public)
                break
        else:
            raise ValueError(
                f"{name} of {public.home} has no page; add it to GROUPS in docs/reference_python.py"
            )
    return pages


def _index(pages: dict[str, list[PublicName]], links: dict[str, str]) -> str:
    """Return the page that lists all names with their summaries."""
    parts = [
        "# Python\n\n`import tokenlake as tl`. A name is imported on first use; if it needs a package that is not "
        "installed, the error has the line that installs it.\n\n"
        "The examples of the reference run in the tests, in a folder with texts in `data/`, tokenizers, and a store "
        "`artifacts` whose versions have packed rows of 64 ids and the splits `train` and `validation`.\n"
    ]
    for page, listed in pages.items():
        parts.append(f"## [{GROUPS[page].title}]({page}.md)\n")
        for public in listed:
            summary = markdown_of(_docstring(public.value).summary, links)
            parts.append(f"- [`{public.name}`]({links[public.name]}): {summary}")
        parts.append("")
    return "\n".join(parts)


def _docstring(value: Any) -> ParsedDocstring:
    """Return the sections of a docstring; the arguments of a class may be explained
    at its constructor.
    """
    docstring = parse(inspect.getdoc(value) or "")
    constructor = vars(value).get("__init__") if inspect.isclass(value) else None
    if constructor is not None and "Args" not in docstring.entries:
        explained = parse(inspect.getdoc(constructor) or "").entries
        docstring.entries.update(
            {title: entries for title, entries in explained.items() if title == "Args"}
        )
    return docstring


def _entry(public: PublicName, links: dict[str, str]) -> str:
    """Return the entry of a public name."""
    value = public.value
    lines = [f"## {public.name} {{ #{public.name} }}\n"]
    if inspect.isclass(value) and issubclass(value, Section):
        lines += [block(f"{public.path}(**keys)", "python"), *_text(value, links)]
        lines.append("All keys with their defaults: [All keys](keys.md).\n")
    elif inspect.isclass(value) and issubclass(value, tokenlake.errors.TokenlakeError):
        bases = [
            base.__name__
            for base in value.__mro__[1:]
            if base.__module__ == "tokenlake.errors"
        ]
        lines += [block(public.path, "python"), *_text(value, links)]
        ancestors = ", ".join(
            f"[`{name}`]({links[name]})" for name in bases if name in links
        )
        lines.append(
            f"Exit code {value.exit_code}."
            + (f" Bases: {ancestors}." if ancestors else "")
            + "\n"
        )
    elif inspect.isclass(value) and issubclass(value, enum.Enum):
        members = ", ".join(f"`{member.name}`" for member in value)
        lines += [
            block(public.path, "python"),
            *_text(value, links),
            f"Members: {members}.\n",
        ]
    else:
        lines += [block(_signature(public.path, value), "python"), *_text(value, links)]
    if inspect.isclass(value):
        lines += _member_entries(public.name, value, links)
    return "\n".join(lines)


def _text(value: Any, links: dict[str, str]) -> Iterator[str]:
    """Yield the sections of a docstring, in Markdown."""
    docstring = _docstring(value)
    yield f"{markdown_of(docstring.summary, links)}\n"
    if docstring.prose:
        yield f"{markdown_of(docstring.prose, links)}\n"
    types = _types(value)
    for title, heading in (("Args", "Arguments"), ("Attributes", "Attributes")):
        # A dataclass explains its arguments as attributes, each once.
        if title in docstring.entries:
            yield f"**{heading}**\n"
        for name, text in docstring.entries.get(title, []):
            shown = f"`{name}` · `{types[name]}`" if name in types else f"`{name}`"
            yield definition(shown, markdown_of(text, links))
    for title in ("Returns", "Yields"):
        if title in docstring.texts:
            yield f"**{title}**\n\n{markdown_of(docstring.texts[title], links)}\n"
    if "Raises" in docstring.entries:
        yield "**Raises**\n"
        for name, text in docstring.entries["Raises"]:
            shown = f"[`{name}`]({links[name]})" if name in links else f"`{name}`"
            yield definition(shown, markdown_of(text, links))
    if "Example" in docstring.texts:
        yield "**Example**\n"
        yield from _example(docstring.texts["Example"])


def _example(text: str) -> Iterator[str]:
    """Yield the code of an example, without prompts, and its output after the
    statements that print it.
    """
    statements: list[str] = []
    for example in doctest.DocTestParser().get_examples(text):
        statements.append(example.source.rstrip("\n"))
        if example.want:
            yield block("\n".join(statements), "python")
            yield block(example.want.rstrip("\n"))
            statements = []
    if statements:
        yield block("\n".join(statements), "python")


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that a class itself defines and
    explains.
    """
    if not inspect.isclass(value):
        return
    for name, member in vars(value).items():
        if name.startswith("_"):
            continue
        function = getattr(member, "__func__", member)
        is_property = (
            isinstance(member, property) or type(member).__name__ == "cached_property"
        )
        if (inspect.isfunction(function) or is_property) and inspect.getdoc(member):
            yield name, member


def _member_entries(owner: str, value: Any, links: dict[str, str]) -> Iterator[str]:
    """Yield the properties of a class as a list, then its methods."""
    properties: list[str] = []
    methods: list[str] = []
    for name, member in _members(value):
        function = getattr(member, "__func__", member)
        if inspect.isfunction(function):
            path = f"{owner}.{name}"
            methods.append(f"### {path} {{ #{path} }}\n")
            methods.append(block(_signature(path, function, is_method=True), "python"))
            methods += _text(function, links)
            continue
        getter = getattr(member, "fget", None) or member.func
        summary = parse(inspect.getdoc(getter) or "")
        text = "\n\n".join(part for part in (summary.summary, summary.prose) if part)
        result = str(inspect.signature(getter).return_annotation).strip("'")
        term = f"`{name}`{{ #{owner}.{name} }} · `{result}`"
        properties.append(definition(term, markdown_of(text, links)))
    if properties:
        yield "**Properties**\n"
        yield from properties
    yield from methods


@dataclass(frozen=True)
class Parameter:
    """A parameter of a signature, as text."""

    name: str
    """Name, with ``*`` or ``**`` in front where that belongs to it."""

    annotation: str
    """Type as the code writes it; empty if there is none."""

    default: str
    """Default as the code writes it; empty if there is none."""

    def __str__(self) -> str:
        annotated = f"{self.name}: {self.annotation}" if self.annotation else self.name
        if not self.default:
            return annotated
        return f"{annotated} = {self.default}"


def _signature(path: str, value: Any, *, is_method: bool = False) -> str:
    """Return a signature with a parameter on each line, or on one line if it is
    short.
    """
    try:
        signature = inspect.signature(value)
    except ValueError:
        return path
    parameters = [str(parameter) for parameter in _parameters(value, signature)]
    if is_method:
        parameters = [
            parameter for parameter in parameters if parameter not in ("self", "cls")
        ]
    result = "" if inspect.isclass(value) else _annotation(signature.return_annotation)
    arrow = f" -> {result}" if result else ""
    short = f"{path}({', '.join(parameters)}){arrow}"
    if not parameters or len(short) <= _PHONE_COLUMNS:
        return short
    lines = "".join(f"\n    {parameter}," for parameter in parameters)
    return f"{path}({lines}\n){arrow}"


def _parameters(value: Any, signature: inspect.Signature) -> Iterator[Parameter]:
    """Yield the parameters that callers use, with the options of a loader in place
    of ``**options``.
    """
    explained = dict(_docstring(value).entries.get("Args", []))
    has_keywords_only = False
    for name, parameter in signature.parameters.items():
        if name.startswith("_"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not has_keywords_only:
            has_keywords_only = True
            yield Parameter("*", "", "")
        annotation = _annotation(parameter.annotation)
        if parameter.kind is parameter.VAR_KEYWORD:
            is_loader = annotation == "Unpack[LoaderKeywords]" and name not in explained
            if is_loader:
                yield from _loader_options(value)
            else:
                yield Parameter(f"**{name}", "", "")
        elif parameter.kind is parameter.VAR_POSITIONAL:
            has_keywords_only = True
            yield Parameter(f"*{name}", annotation, "")
        else:
            yield Parameter(name, annotation, _default(parameter.default))


def _loader_options(value: Any) -> Iterator[Parameter]:
    """Yield the options of a loader, whose defaults are those of LoaderOptions."""
    for option in fields(LoaderOptions):
        if option.name != "batch_size":
            yield Parameter(
                option.name, _annotation(option.type), _default(option.default)
            )


def _annotation(annotation: Any) -> str:
    """Return an annotation as the code writes it."""
    if annotation is inspect.Parameter.empty:
        return ""
    if isinstance(annotation, str):
        return one_line(annotation.strip("'\""))
    if inspect.isclass(annotation):
        return annotation.__name__
    forward = getattr(annotation, "__forward_arg__", None)
    return str(forward or annotation).replace("typing.", "")


def _default(default: Any) -> str:
    """Return a default as the code writes it; `...` for an object that has no such
    form.
    """
    if default is inspect.Parameter.empty:
        return ""
    text = repr(default)
    if text.startswith("<"):
        return "..."
    return text


def _types(value: Any) -> dict[str, str]:
    """Return the types of the parameters or attributes of an object, as the code
    writes them.
    """
    types: dict[str, str] = {}
    if inspect.isclass(value):
        for name, annotation in vars(value).get("__annotations__", {}).items():
            types[name] = _annotation(annotation)
    try:
        signature = inspect.signature(value)
    except ValueError:
        return types
    for parameter in _parameters(value, signature):
        shown = parameter.annotation
        if parameter.default:
            shown = f"{shown} = {parameter.default}" if shown else parameter.default
        if shown:
            types[parameter.name] = shown
    return types
