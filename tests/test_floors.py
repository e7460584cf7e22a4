"""The floors of the library: `make lint` checks the contracts of .importlinter, and
these tests check the contracts.
"""

from __future__ import annotations

import ast
import re
import sys
from configparser import ConfigParser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import tokenlake
from tokenlake.errors import ConfigError

ROOT = Path(__file__).parents[1]
FLOORS = ("floors", "base", "runtime", "etl", "optional")
APART = {"__init__", "_version"}
"""Modules of no floor: they import nothing, or names on first use."""


@pytest.fixture(scope="module")
def contracts() -> ConfigParser:
    parser = ConfigParser()
    parser.read(ROOT / ".importlinter", "utf-8")
    return parser


@pytest.mark.parametrize("contract", FLOORS)
def test_a_contract_of_the_floors_has_no_exceptions(
    contracts: ConfigParser, contract: str
) -> None:
    assert "ignore_imports" not in contracts[f"importlinter:contract:{contract}"]


def test_every_module_at_the_top_is_on_a_floor(contracts: ConfigParser) -> None:
    listed = set(
        re.findall(
            r"tokenlake\.(\w+)(?![\w.])",
            contracts["importlinter:contract:floors"]["layers"],
        )
    )
    folder = Path(tokenlake.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")}
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert listed == (modules | packages) - APART


RUNTIME = {"fsspec", "msgspec", "numpy", "pyarrow", "xxhash"}
"""Packages that a base install has."""
EXTRAS = {
    "tokenlake.base.section": {"annotated_types", "pydantic", "pydantic_core"},
    "tokenlake.base.section_file": {"pydantic"},
    "tokenlake.base.yaml_file": {"yaml"},
    "tokenlake.base.json_text": {"orjson"},
    "tokenlake.runtime.loader.grain": {"grain"},
    "tokenlake.runtime.loader.jax": {"jax"},
    "tokenlake.runtime.loader.jax_columns": {"jax"},
    "tokenlake.runtime.loader.orbax": {"jax", "orbax"},
    "tokenlake.runtime.loader.torch": {"torch"},
    "tokenlake.runtime.store.http_session": {"aiohttp"},
    "tokenlake.runtime.trainer": {
        "annotated_types",
        "jax",
        "optax",
        "orbax",
        "pydantic",
    },
}
"""Optional modules and packages of the lower floors -> what they import beside that."""


def test_the_lower_floors_import_what_a_base_install_has(
    contracts: ConfigParser,
) -> None:
    places = [
        contracts[f"importlinter:contract:{floor}"]["layers"]
        for floor in ("base", "runtime")
    ]
    foreign: dict[str, set[str]] = {}
    for name in re.findall(r"[\w.]+", " ".join(places)):
        spec = find_spec(name)
        assert spec is not None and spec.origin is not None
        file = Path(spec.origin)
        files = file.parent.rglob("*.py") if file.name == "__init__.py" else [file]
        for path in files:
            module = name if path == file else f"{name}.{path.stem}"
            allowed = RUNTIME | EXTRAS.get(name, set()) | EXTRAS.get(module, set())
            if unexpected := _packages(path) - allowed:
                foreign[module] = unexpected
    assert foreign == {}


def _packages(path: Path) -> set[str]:
    """Return the packages of others that importing a file imports: not what
    functions import, or type checkers.
    """
    packages: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            packages.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            packages.add(node.module.partition(".")[0])
    return packages - sys.stdlib_module_names - {"tokenlake"}


def registered_parts() -> list[str]:
    """Return every ``module:name`` that the library holds as text: a part that is
    imported when it is first used.
    """
    parts: set[str] = set()
    for path in Path(tokenlake.__file__).parent.rglob("*.py"):
        parts.update(
            re.findall(r'"(tokenlake(?:\.\w+)+:\w+)"', path.read_text("utf-8"))
        )
    return sorted(parts)


def test_a_registered_part_is_there() -> None:
    parts = registered_parts()
    assert len(parts) >= 10  # executors, tokenizer backends, jobs of workers, exports
    for part in parts:
        module, _, name = part.partition(":")
        assert callable(getattr(import_module(module), name)), part


def test_every_executor_can_be_loaded_by_its_name(tmp_path: Path) -> None:
    config = {
        "name": "set",
        "datasets": [{"data_files": "x"}],
        "save": {"output_dir": str(tmp_path)},
    }
    with pytest.raises(ConfigError, match="expected one of") as error:
        tokenlake.build_dataset(config, executor="nowhere")  # pyright: ignore[reportArgumentType]
    names = str(error.value).rpartition("expected one of ")[2].split(", ")
    executors = {
        part.rpartition(":open_")[2].removesuffix("_pool")
        for part in registered_parts()
    }
    assert len(names) >= 4 and set(names) <= executors
