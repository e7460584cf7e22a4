"""The library's own code: what `python -m benchmarks.house` counts must not slide
back.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import tokenlake
from benchmarks.house import CodeStatistics, cycles, measure

# The imports of a file stand together, before anything else: to parse these alone takes
# a tenth of the time.
_HEAD = re.compile(
    r"^(?:from [\w.]+ import|import \w).*\n(?:(?:from |import |\)|#|if TYPE_CHECKING|[ \t]).*\n|\n)*",
    re.MULTILINE,
)
HEAVY = {"datasets", "jax", "prefect", "torch", "transformers"}
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def house() -> CodeStatistics:
    return measure(Path(tokenlake.__file__).parent)


@pytest.mark.parametrize("folder", ["flows/tokenlake_flows", "tasks/tokenlake_tasks"])
def test_flows_and_tasks_have_no_cycles_and_are_annotated(folder: str) -> None:
    package = measure(ROOT / folder)
    assert len(package.sources) > 10
    assert cycles(package.edges) == []
    assert package.annotated == len(package.functions)


def test_no_modules_import_each_other(house: CodeStatistics) -> None:
    assert cycles(house.edges) == []


def test_a_class_name_means_one_thing(house: CodeStatistics) -> None:
    assert {name: where for name, where in house.names.items() if len(where) > 1} == {}


def test_every_function_is_annotated(house: CodeStatistics) -> None:
    assert house.annotated == len(house.functions)


def test_no_file_of_tests_imports_what_is_heavy_when_it_is_collected(
    house: CodeStatistics,
) -> None:
    """Each process of a run collects every file; `tests.lazily` imports what a test
    needs when it first uses it.
    """
    imported = {
        _name(source.path): set(_imported(source.tree.body)) for source in house.sources
    }
    for path in (
        path
        for name in ("tests", "examples", "flows", "tasks")
        for path in (ROOT / name).rglob("*.py")
    ):
        head = _HEAD.search(path.read_text("utf-8"))
        imported[_name(path)] = (
            set(_imported(ast.parse(head[0]).body)) if head else set[str]()
        )
    collected = [
        name
        for name in imported
        if name.rpartition(".")[2].startswith(("test_", "conftest"))
    ]
    assert {
        name: found for name in collected if (found := sorted(_heavy(name, imported)))
    } == {}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    is_source_root = parts[0] in ("lib", "flows", "tasks")
    return ".".join(parts[is_source_root:]).removesuffix(".__init__")


def _imported(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield what the import of a file imports: none of what stands under
    TYPE_CHECKING, or in functions.
    """
    for node in body:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (
                node.module,
                *(f"{node.module}.{each.name}" for each in node.names),
            )
        elif isinstance(node, ast.Try | ast.With):
            yield from _imported(node.body)


def _heavy(name: str, imported: dict[str, set[str]]) -> set[str]:
    """Return what is heavy of all that a module imports, and of what that imports."""
    seen, waiting, found = {name}, [name], set[str]()
    while waiting:
        for each in imported[waiting.pop()]:
            parts = each.split(".")
            found |= {parts[0]} & HEAVY
            above = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
            waiting += (above & imported.keys()) - seen
            seen |= above
    return found


def test_of_tokenizers_only_what_all_its_versions_have_is_imported() -> None:
    """Version 1.0 of the package has no models, trainers, normalizers,
    pre-tokenizers or processors.
    """
    statement = re.compile(r"^\s*(?:from|import) tokenizers\b", re.MULTILINE)
    others: dict[str, list[str]] = {}
    for folder in ("lib", "tests", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            source = path.read_text("utf-8")
            names = (
                _names_of_tokenizers(source) if statement.search(source) else set[str]()
            )
            if names - {"Tokenizer", "Encoding"}:
                others[path.relative_to(ROOT).as_posix()] = sorted(names)
    assert others == {}


def _names_of_tokenizers(source: str) -> set[str]:
    """Return the names that a file imports from the package `tokenizers`, in its
    functions too.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "tokenizers":
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith(
            "tokenizers."
        ):
            names.add(str(node.module))
        elif isinstance(node, ast.Import):
            names.update(
                alias.name
                for alias in node.names
                if alias.name.startswith("tokenizers.")
            )
    return names
