"""A small real corpus that every machine with Python has.

``code`` is the standard library's own modules, copied as they are: text files, each one document.
``prose`` is documentation: the reference manual behind ``help()``, the descriptions of the installed
distributions (``manuals.jsonl.zst``) and the docstrings of the standard library and of installed
packages (``docstrings.parquet``, a row per module), gathered until there are :data:`PROSE_BYTES` of it.

For one Python and one set of installed packages the corpus is the same byte for byte.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import shutil
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

PROSE_BYTES: Final = 10_000_000
"""Where gathering docstrings stops; manuals come first and are taken whole."""

_FORMAT = 2
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})
# Rich in docstrings and installed wherever Tokenlake's etl extra is; the others follow by name.
_FIRST_PACKAGES = ("polars", "numpy", "huggingface_hub", "prefect", "pyarrow", "sqlalchemy", "fsspec", "rich")
_SMALLEST_TEXT = 200
_LARGEST_MODULE = 1_000_000

Report: TypeAlias = Callable[[str], None]
Document: TypeAlias = tuple[str, str]
"""Where a text comes from, and the text."""


def write_corpus(directory: Path, report: Report) -> dict[str, Path]:
    """Write ``code/`` and ``prose/`` under ``directory``; returns the folder of each source.

    A stamp written last says that the corpus is whole; with it present nothing is done.
    """
    folders = {name: directory / name for name in ("code", "prose")}
    stamp = directory / "corpus.json"
    if _is_complete(stamp):
        return folders
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    report("copying the standard library's modules")
    code = _write_code(folders["code"])
    report("reading manuals and docstrings")
    prose = _write_prose(folders["prose"])
    stamp.write_text(json.dumps({"format": _FORMAT, "bytes": {"code": code, "prose": prose}}) + "\n")
    return folders


def _is_complete(stamp: Path) -> bool:
    try:
        return bool(json.loads(stamp.read_text())["format"] == _FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write_code(folder: Path) -> int:
    total = 0
    root = _standard_library()
    for module in _modules(root):
        source = _utf8(module)
        if not source:
            continue
        target = folder / module.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source)
        total += len(source)
    return total


def _write_prose(folder: Path) -> int:
    manuals = list(_unique([*_manual_topics(), *_descriptions()]))
    docstrings: list[Document] = []
    total = sum(len(text) for _, text in manuals)
    for document in _unique(_docstring_pages()):
        docstrings.append(document)
        total += len(document[1])
        if total >= PROSE_BYTES:
            break
    _write_jsonl(folder / "manuals.jsonl.zst", manuals)
    columns = {"origin": [o for o, _ in docstrings], "text": [t for _, t in docstrings]}
    pq.write_table(pa.table(columns), folder / "docstrings.parquet", row_group_size=64, compression="zstd")
    return total


def _write_jsonl(path: Path, documents: Iterable[Document]) -> None:
    with pa.CompressedOutputStream(str(path), "zstd") as stream:
        for origin, text in documents:
            stream.write(json.dumps({"origin": origin, "text": text}, ensure_ascii=False).encode() + b"\n")


def _unique(documents: Iterable[Document]) -> Iterator[Document]:
    """Drop what is short or was seen before."""
    seen: set[int] = set()
    for origin, text in documents:
        text = text.strip()
        key = xxhash.xxh3_64_intdigest(" ".join(text.split()).encode())
        if len(text) >= _SMALLEST_TEXT and key not in seen:
            seen.add(key)
            yield origin, text


def _manual_topics() -> list[Document]:
    """The chapters of the language reference that ``help('topics')`` shows; some builds leave them out."""
    try:
        from pydoc_data import topics  # optional: some builds of Python leave it out
    except ImportError:
        return []
    return [(f"help/{name}", text) for name, text in sorted(topics.topics.items())]


def _descriptions() -> Iterator[Document]:
    found = {dist.name.lower(): dist for dist in importlib.metadata.distributions() if dist.name}
    for name, dist in sorted(found.items()):
        yield f"{name}/description", _description(dist)


def _description(dist: importlib.metadata.Distribution) -> str:
    """The long description in METADATA: its body, or the older header field; broken text is left out."""
    metadata: Any = dist.metadata  # an email.message.Message, whose type says less
    body = metadata.get_payload()
    text = body if isinstance(body, str) and body.strip() else str(metadata.get("Description", ""))
    try:
        text.encode()
    except UnicodeEncodeError:  # surrogates: the METADATA was not UTF-8
        return ""
    return text


def _docstring_pages() -> Iterator[Document]:
    packages = Path(sysconfig.get_path("purelib"))
    others = sorted(p.name for p in packages.iterdir() if (p / "__init__.py").is_file())
    folders = [packages / name for name in dict.fromkeys((*_FIRST_PACKAGES, *others))]
    for root, folder in [(_standard_library(), _standard_library()), *((packages, f) for f in folders)]:
        for module in _modules(folder):
            name = ".".join(module.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            yield name, _docstrings(module, name)


def _docstrings(module: Path, name: str) -> str:
    """All docstrings of a module as one page: a heading with the qualified name, then the text."""
    source = _utf8(module)
    if not source or len(source) > _LARGEST_MODULE or b'"""' not in source:
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in other people's code are not our message
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    return "\n\n".join(f"{heading}\n\n{text}" for heading, text in _documented(tree, name))


def _documented(node: ast.AST, name: str) -> Iterator[Document]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        if text := ast.get_docstring(node):
            yield name, text
        if isinstance(node, ast.Module | ast.ClassDef):
            for child in node.body:
                yield from _documented(child, f"{name}.{getattr(child, 'name', '')}")


def _standard_library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _modules(folder: Path) -> list[Path]:
    found = (p for p in folder.rglob("*.py") if not _SKIPPED_FOLDERS & set(p.relative_to(folder).parts[:-1]))
    return sorted(found, key=lambda path: path.as_posix())


def _utf8(path: Path) -> bytes | None:
    """The file's bytes if they are text in UTF-8 without NUL (tables generated for codecs are not)."""
    try:
        data = path.read_bytes()
        data.decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if b"\0" in data else data
