"""The tour: ``python -m tokenlake.demo [DIRECTORY] [--no-prefect]``.

`make demo` runs it.

It makes a small real corpus that every machine with Python has, and a tokenizer trained
on it, then runs the commands a user would type, each shown before it runs. Nothing is
downloaded.

``code`` is the standard library's own modules, copied as they are: text files, each one
document. ``prose`` is documentation: the reference manual behind ``help()``, the
descriptions of installed distributions (``manuals.jsonl.zst``) and the docstrings of
the standard library and of installed packages (``docstrings.parquet``, a row per
module), gathered until there are :data:`PROSE_BYTES` of it.

For one Python and one set of installed packages the corpus is the same byte for byte.
The flows use these functions when they are given no data.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
import yaml

from tokenlake.base.numbers import duration
from tokenlake.etl.tokenizers.training import train_bpe

PROSE_BYTES: Final = 10_000_000
"""Size at which no more docstrings are gathered; manuals come first, all of them."""

# Version of the corpus: a corpus of another one is written anew.
_FORMAT = 3
_SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
)

# Rich in docstrings and installed wherever Tokenlake's etl extra is; the others follow
# by name.
_FIRST_PACKAGES = (
    "polars",
    "numpy",
    "huggingface_hub",
    "prefect",
    "pyarrow",
    "sqlalchemy",
    "fsspec",
    "rich",
)
# Characters of a document, so that one-line docstrings are left out; bytes of a module,
# so that generated tables are.
_SMALLEST_TEXT = 200
_LARGEST_MODULE = 1_000_000
Report: TypeAlias = Callable[[str], None]
"""Function that shows a line of progress."""

Document: TypeAlias = tuple[str, str]
"""Origin of a text, and the text."""

VOCABULARY: Final = 8192
"""Number of ids of the tokenizer."""

# Characters that the tokenizer is trained on, of all texts and of one at most.
_SAMPLE_BYTES: Final = 6_000_000
_SAMPLE_PER_TEXT: Final = 20_000


def quiet(line: str) -> None:
    """Report nothing."""


def ensure_corpus(
    directory: str | os.PathLike[str], report: Report = quiet
) -> dict[str, Path]:
    """Write the demo's corpus below ``directory`` unless it is there.

    A stamp that is written last marks a complete corpus, which is used as it is.

    Args:
        directory: Folder of the demo.
        report: Function that shows progress.

    Returns:
        The folder of each source: ``code`` (text files), ``prose`` (JSONL with zstd,
        and Parquet).
    """
    root = Path(directory).resolve() / "corpus"
    folders = {"code": root / "code", "prose": root / "prose"}
    stamp = root / "corpus.json"
    stamp_text = json.dumps({"format": _FORMAT}) + "\n"
    if stamp.is_file() and stamp.read_text() == stamp_text:
        return folders

    # An interrupted run may have left a part of a corpus.
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    report("copying the standard library's modules")
    library = Path(sysconfig.get_path("stdlib"))
    for module in _modules(library):
        source = _utf8(module)
        if source:
            target = folders["code"] / module.relative_to(library)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source)
    report("reading manuals and docstrings")
    _write_prose(folders["prose"])
    stamp.write_text(stamp_text)
    return folders


def _write_prose(folder: Path) -> None:
    """Write the manuals as JSONL with zstd, and the docstrings as Parquet."""
    # 1. All manuals, and docstrings until there is enough prose.
    manuals = list(_unique([*_manual_topics(), *_descriptions()]))
    docstrings: list[Document] = []
    total = sum(len(text) for _, text in manuals)
    for document in _unique(_docstring_pages()):
        docstrings.append(document)
        total += len(document[1])
        if total >= PROSE_BYTES:
            break

    # 2. Files of two formats, so that the demo reads more than one.
    with pa.CompressedOutputStream(str(folder / "manuals.jsonl.zst"), "zstd") as stream:
        for origin, text in manuals:
            record = {"origin": origin, "text": text}
            line = json.dumps(record, ensure_ascii=False) + "\n"
            stream.write(line.encode())
    columns = {
        "origin": [origin for origin, _ in docstrings],
        "text": [text for _, text in docstrings],
    }
    # Small row groups, because a unit is one or more of them.
    pq.write_table(
        pa.table(columns),
        folder / "docstrings.parquet",
        row_group_size=64,
        compression="zstd",
    )


def _unique(documents: Iterable[Document]) -> Iterator[Document]:
    """Yield documents, without short ones and those that came before."""
    # Texts that differ only in white space are one.
    seen_hashes: set[int] = set()
    for origin, text in documents:
        document_text = text.strip()
        text_hash = xxhash.xxh3_64_intdigest(" ".join(document_text.split()).encode())
        if len(document_text) >= _SMALLEST_TEXT and text_hash not in seen_hashes:
            seen_hashes.add(text_hash)
            yield origin, document_text


def _manual_topics() -> list[Document]:
    """Return the chapters of the language reference that ``help('topics')`` shows.

    Some builds leave them out.
    """
    try:
        from pydoc_data import topics  # optional: some builds of Python leave it out
    except ImportError:
        return []
    return [(f"help/{name}", text) for name, text in sorted(topics.topics.items())]


def _descriptions() -> Iterator[Document]:
    """Yield the long descriptions in METADATA; broken text is left out.

    A description is the body, or the older header field.
    """
    # Sorted by name: the order of the folders on a disk is no order of the corpus.
    distributions: dict[str, importlib.metadata.Distribution] = {}
    for distribution in importlib.metadata.distributions():
        if distribution.name:
            distributions[distribution.name.lower()] = distribution
    for name, distribution in sorted(distributions.items()):
        # An email.message.Message, whose declared type has fewer methods.
        metadata: Any = distribution.metadata
        body = metadata.get_payload()
        if isinstance(body, str) and body.strip():
            text = body
        else:
            text = str(metadata.get("Description", ""))
        # Surrogates: the METADATA was not UTF-8.
        if not re.search("[\ud800-\udfff]", text):
            yield f"{name}/description", text


def _docstring_pages() -> Iterator[Document]:
    """Yield a page of docstrings for each module of Python and of its packages."""
    # 1. Folders to search: the standard library, then packages, rich ones first.
    library = Path(sysconfig.get_path("stdlib"))
    packages = Path(sysconfig.get_path("purelib"))
    package_names: list[str] = []
    for folder in packages.iterdir():
        if (folder / "__init__.py").is_file():
            package_names.append(folder.name)
    folders = [(library, library)]
    for package_name in dict.fromkeys((*_FIRST_PACKAGES, *sorted(package_names))):
        folders.append((packages, packages / package_name))

    # 2. Their modules, by the name under which they are imported.
    for root, folder in folders:
        for module in _modules(folder):
            parts = module.relative_to(root).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__init__")
            yield name, _docstrings(module, name)


def _docstrings(module: Path, name: str) -> str:
    """Return all docstrings of a module as one page.

    Each is a heading with the qualified name, then the text.
    """
    source = _utf8(module)
    if not source or len(source) > _LARGEST_MODULE or b'"""' not in source:
        return ""
    try:
        with warnings.catch_warnings():
            # Old escapes in other people's code are not our message.
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    return "\n\n".join(
        f"{heading}\n\n{text}" for heading, text in _documented(tree, name)
    )


def _documented(node: ast.AST, name: str) -> Iterator[Document]:
    """Yield the qualified name and the docstring of a node and of those inside it."""
    has_docstring = isinstance(
        node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    )
    if not has_docstring:
        return
    text = ast.get_docstring(node)
    if text:
        yield name, text
    # Functions inside functions are no documentation.
    if isinstance(node, ast.Module | ast.ClassDef):
        for child in node.body:
            yield from _documented(child, f"{name}.{getattr(child, 'name', '')}")


def _modules(folder: Path) -> list[Path]:
    """Return the modules of a folder, sorted by path, without those of tests."""
    modules: list[Path] = []
    for path in folder.rglob("*.py"):
        parents = path.relative_to(folder).parts[:-1]
        if _SKIPPED_FOLDERS.isdisjoint(parents):
            modules.append(path)
    return sorted(modules, key=lambda path: path.as_posix())


def _utf8(path: Path) -> bytes | None:
    """Return the file's bytes if they are text in UTF-8 without NUL.

    Tables generated for codecs are not.
    """
    try:
        data = path.read_bytes()
        data.decode()
    except (OSError, UnicodeDecodeError):
        return None
    if b"\0" in data:
        return None
    return data


def ensure_tokenizer(
    directory: str | os.PathLike[str],
    corpus: Mapping[str, Path],
    report: Report = quiet,
) -> Path:
    """Train a byte-level BPE of 8,192 ids on a sample of ``corpus``.

    A tokenizer that ``directory`` already has is kept.

    Returns:
        The tokenizer's folder.
    """
    folder = Path(directory).resolve() / "tokenizer"
    if (folder / "tokenizer.json").is_file():
        return folder
    report(f"training a byte-level BPE of {VOCABULARY:,} ids")
    trained = train_bpe(_sample(corpus), VOCABULARY, name="demo")
    folder.mkdir(parents=True, exist_ok=True)
    # tokenizer.json comes last: its presence says that the folder is complete.
    names = sorted(trained.files, key=lambda name: name == "tokenizer.json")
    for name in names:
        partial = folder / f"{name}.partial"
        partial.write_bytes(trained.files[name])
        partial.replace(folder / name)
    return folder


def demo_settings(
    directory: str | os.PathLike[str], report: Report = quiet, *, trained: bool = True
) -> dict[str, Any]:
    """Return the demo's configuration, as a person would write it in YAML.

    Corpus and tokenizer are made where missing.

    Args:
        trained: True for a tokenizer of the demo itself, which takes some seconds to
            train.
    """
    root = Path(directory).resolve()
    corpus = ensure_corpus(root, report)
    tokenizer: dict[str, Any] = {}
    if trained:
        tokenizer["default_tokenizer"] = str(ensure_tokenizer(root, corpus, report))
    return {
        "name": "demo",
        "datasets": [
            {
                "name": "code",
                "data_files": str(corpus["code"] / "**" / "*.py"),
                "type": "txt",
            },
            {"name": "prose", "data_files": str(corpus["prose"])},
        ],
        **tokenizer,
        # The demo is small: only small units leave something to watch and to resume.
        "source": {"unit_size": "2MiB", "splits": {"train": 0.98, "validation": 0.02}},
        "pack": {"enabled": True, "seq_length": 1024},
        "save": {"output_dir": str(root / "artifacts")},
    }


def _sample(corpus: Mapping[str, Path]) -> Iterator[str]:
    """Yield beginnings of texts, an equal share of bytes from each source.

    They are spread over all of the source.
    """
    code: list[str] = []
    for path in sorted(corpus["code"].rglob("*.py")):
        code.append(path.read_text(encoding="utf-8"))
    table = pq.read_table(corpus["prose"] / "docstrings.parquet", columns=["text"])
    prose = [str(text) for text in table["text"].to_pylist()]
    # Every n-th text, so that the beginnings of all chosen ones fill half of the sample.
    for texts in (code, prose):
        total = sum(min(len(text), _SAMPLE_PER_TEXT) for text in texts)
        step = max(1, round(total / (_SAMPLE_BYTES // 2)))
        for text in texts[::step]:
            yield text[:_SAMPLE_PER_TEXT]


_QUESTION = """\
select source, count(*) as documents, sum(tokens) as tokens, max(tokens) as longest
from (select source, file, position, sum(length) as tokens from "demo/documents" group by all)
group by source order by source"""


def main(arguments: Sequence[str]) -> int:
    """Run the tour, and return the exit code of the first command that fails."""
    # 1. Arguments: a folder at most, and one flag. The module's docstring is the help.
    flags = [argument for argument in arguments if argument.startswith("-")]
    folders = [argument for argument in arguments if not argument.startswith("-")]
    if set(flags) - {"--no-prefect"} or len(folders) > 1:
        _say(__doc__ or "")
        return 2

    # 2. Input and configuration, as a user would have them.
    start_time = time.monotonic()
    directory = Path(".demo")
    if folders:
        directory = Path(folders[0])
    _say(f"preparing corpus, tokenizer and configuration in {directory}/")
    settings = demo_settings(directory, lambda line: _say(f"  {line}"))
    config = str(directory / "demo.yaml")
    store = str(directory / "artifacts")
    Path(config).write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")

    # 3. Commands as a user would type them.
    commands = [
        ["run", config, *flags],
        ["peek", "demo", "-n", "2", "--row", "1", "--store", store],
        ["sql", _QUESTION, "--store", store],
    ]
    for command in commands:
        _say(f"\n$ tokenlake {shlex.join(command)}\n")
        try:
            run = [sys.executable, "-P", "-m", "tokenlake", *command]
            code = subprocess.run(run, check=False).returncode
        except KeyboardInterrupt:
            # The command got the same Ctrl-C and has said what there is to say.
            return 130
        if code:
            return code
    _say(f"""
The tour took {duration(time.monotonic() - start_time)}. Run again, it finds the version and rebuilds nothing. Try next:

  export TOKENLAKE_STORE={shlex.quote(store)}
  tokenlake show demo             totals, splits, the audit, lineage
  tokenlake verify demo --deep    every byte, checksum and count
  tokenlake sql                   tables and views to query
  tokenlake plan {config} --set pack.seq_length=2048""")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
