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
"""Where gathering docstrings stops; manuals come first and are taken whole."""
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
_SMALLEST_TEXT = 200
_LARGEST_MODULE = 1_000_000
Report: TypeAlias = Callable[[str], None]
Document: TypeAlias = tuple[str, str]
"""Where a text comes from, and the text."""
VOCABULARY: Final = 8192
_SAMPLE_BYTES: Final = 6_000_000
_SAMPLE_PER_TEXT: Final = 20_000


def quiet(line: str) -> None:
    """Report nothing."""


def ensure_corpus(
    directory: str | os.PathLike[str], report: Report = quiet
) -> dict[str, Path]:
    """Write the demo's corpus below ``directory`` unless it is there.

    A stamp written last says that the corpus is whole; with it present nothing is done.

    Returns:
        The folder of each source: ``code`` (text files), ``prose`` (JSONL with zstd,
        and Parquet).
    """
    root = Path(directory).resolve() / "corpus"
    folders = {name: root / name for name in ("code", "prose")}
    stamp = root / "corpus.json"
    written = json.dumps({"format": _FORMAT}) + "\n"
    if stamp.is_file() and stamp.read_text() == written:
        return folders
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    report("copying the standard library's modules")
    library = Path(sysconfig.get_path("stdlib"))
    for module in _modules(library):
        if source := _utf8(module):
            target = folders["code"] / module.relative_to(library)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source)
    report("reading manuals and docstrings")
    _write_prose(folders["prose"])
    stamp.write_text(written)
    return folders


def _write_prose(folder: Path) -> None:
    manuals = list(_unique([*_manual_topics(), *_descriptions()]))
    docstrings: list[Document] = []
    total = sum(len(text) for _, text in manuals)
    for document in _unique(_docstring_pages()):
        docstrings.append(document)
        total += len(document[1])
        if total >= PROSE_BYTES:
            break
    with pa.CompressedOutputStream(str(folder / "manuals.jsonl.zst"), "zstd") as stream:
        for origin, text in manuals:
            stream.write(
                json.dumps(
                    {"origin": origin, "text": text}, ensure_ascii=False
                ).encode()
                + b"\n"
            )
    columns = {"origin": [o for o, _ in docstrings], "text": [t for _, t in docstrings]}
    pq.write_table(
        pa.table(columns),
        folder / "docstrings.parquet",
        row_group_size=64,
        compression="zstd",
    )


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
    found = {
        dist.name.lower(): dist
        for dist in importlib.metadata.distributions()
        if dist.name
    }
    for name, dist in sorted(found.items()):
        metadata: Any = dist.metadata  # an email.message.Message, whose type says less
        body = metadata.get_payload()
        text = (
            body
            if isinstance(body, str) and body.strip()
            else str(metadata.get("Description", ""))
        )
        # Surrogates: the METADATA was not UTF-8.
        if not re.search("[\ud800-\udfff]", text):
            yield f"{name}/description", text


def _docstring_pages() -> Iterator[Document]:
    packages = Path(sysconfig.get_path("purelib"))
    others = sorted(p.name for p in packages.iterdir() if (p / "__init__.py").is_file())
    folders = [packages / name for name in dict.fromkeys((*_FIRST_PACKAGES, *others))]
    library = Path(sysconfig.get_path("stdlib"))
    for root, folder in [(library, library), *((packages, f) for f in folders)]:
        for module in _modules(folder):
            name = ".".join(
                module.relative_to(root).with_suffix("").parts
            ).removesuffix(".__init__")
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
    if isinstance(
        node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ):
        if text := ast.get_docstring(node):
            yield name, text
        if isinstance(node, ast.Module | ast.ClassDef):
            for child in node.body:
                yield from _documented(child, f"{name}.{getattr(child, 'name', '')}")


def _modules(folder: Path) -> list[Path]:
    found = (
        p
        for p in folder.rglob("*.py")
        if not _SKIPPED_FOLDERS & set(p.relative_to(folder).parts[:-1])
    )
    return sorted(found, key=lambda path: path.as_posix())


def _utf8(path: Path) -> bytes | None:
    """Return the file's bytes if they are text in UTF-8 without NUL.

    Tables generated for codecs are not.
    """
    try:
        data = path.read_bytes()
        data.decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if b"\0" in data else data


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
    # tokenizer.json last: its presence says that the folder is whole
    for name, data in sorted(
        trained.files.items(), key=lambda item: item[0] == "tokenizer.json"
    ):
        partial = folder / f"{name}.partial"
        partial.write_bytes(data)
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
    tokenizer = (
        {"default_tokenizer": str(ensure_tokenizer(root, corpus, report))}
        if trained
        else {}
    )
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
        # small units: the demo is small, and there should be something to watch and to
        # resume
        "source": {"unit_size": "2MiB", "splits": {"train": 0.98, "validation": 0.02}},
        "pack": {"enabled": True, "seq_length": 1024},
        "save": {"output_dir": str(root / "artifacts")},
    }


def _sample(corpus: Mapping[str, Path]) -> Iterator[str]:
    """Yield beginnings of texts, an equal share of bytes from each source.

    They are spread over all of the source.
    """
    code = [
        path.read_text(encoding="utf-8")
        for path in sorted(corpus["code"].rglob("*.py"))
    ]
    prose = pq.read_table(corpus["prose"] / "docstrings.parquet", columns=["text"])[
        "text"
    ].to_pylist()
    for texts in (code, list(map(str, prose))):
        total = sum(min(len(text), _SAMPLE_PER_TEXT) for text in texts)
        step = max(1, round(total / (_SAMPLE_BYTES // 2)))
        for text in texts[::step]:
            yield text[:_SAMPLE_PER_TEXT]


_QUESTION = """\
select source, count(*) as documents, sum(tokens) as tokens, max(tokens) as longest
from (select source, file, position, sum(length) as tokens from "demo/documents" group by all)
group by source order by source"""


def main(arguments: Sequence[str]) -> int:
    """Run the tour; returns the exit code of the first command that fails."""
    flags = [argument for argument in arguments if argument.startswith("-")]
    folders = [argument for argument in arguments if not argument.startswith("-")]
    if set(flags) - {"--no-prefect"} or len(folders) > 1:
        _say(__doc__ or "")
        return 2
    began, directory = time.monotonic(), Path(folders[0] if folders else ".demo")
    _say(f"preparing corpus, tokenizer and configuration in {directory}/")
    settings = demo_settings(directory, lambda line: _say(f"  {line}"))
    # As a user would type them.
    config, store = str(directory / "demo.yaml"), str(directory / "artifacts")
    Path(config).write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
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
The tour took {duration(time.monotonic() - began)}. Run again, it finds the version and rebuilds nothing. Try next:

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
