"""What ``import tokenlake`` promises, and what it costs."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import tokenlake
from tokenlake import easydel

LIB = Path(tokenlake.__file__).parents[1]


@pytest.mark.parametrize(
    "name", sorted({*tokenlake.__all__, *easydel.__all__, "open"} - {"__version__"})
)
def test_every_public_name_is_there_and_is_no_module(name):
    importlib.import_module("tokenlake.etl.runner")
    value = getattr(tokenlake, name)
    assert callable(value) and not isinstance(value, ModuleType)
    assert name in dir(tokenlake) or value is getattr(easydel, name)


def test_names_are_few_and_stand_once():
    assert len(dir(tokenlake)) <= 64
    assert not {*tokenlake.__all__, "open"} & set(easydel.__all__)
    assert dir(easydel) == easydel.__all__


@pytest.mark.parametrize("name", ["open", "verify", "repair", "remove_version", "explain", "report", "tag",
                                  "export_version", "push_to_hub"])  # fmt: skip
def test_what_is_about_a_version_takes_first_where_it_is(name):
    """As `tl.open` does: ``"artifacts/books@v3"``, or its store and `name`."""
    parameters = list(inspect.signature(getattr(tokenlake, name)).parameters)
    assert parameters[0] == "where" and "name" in parameters


@pytest.mark.parametrize("name", ["sql", "gc"])
def test_what_is_about_a_store_takes_it_first(name):
    assert next(iter(inspect.signature(getattr(tokenlake, name)).parameters)) == "store"


def test_an_unknown_name_is_an_attribute_error():
    for module in (tokenlake, easydel):
        with pytest.raises(
            AttributeError, match=f"{module.__name__}' has no attribute 'nonsense'"
        ):
            module.nonsense  # noqa: B018


def test_all_is_what_dir_shows_but_for_what_would_shadow_a_builtin():
    assert dir(tokenlake) == sorted([*tokenlake.__all__, "open"])


@pytest.mark.parametrize("module", [tokenlake, easydel], ids=["tokenlake", "easydel"])
def test_every_import_of_the_stub_is_a_public_name(module):
    stub = ast.parse(Path(f"{module.__file__}i").read_text())
    names = [
        alias.asname
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(name for name in names if name) == dir(module)  # the star has none


def test_a_star_import_leaves_builtins_alone():
    space = {}
    exec("from tokenlake import *", space)
    assert set(space) - {"__builtins__"} == set(tokenlake.__all__)
    assert not set(space) & set(dir(builtins)) - {"__builtins__"}


def test_a_trainer_can_read_manifests_without_the_build_side():
    """None of the build side's packages is imported by what a trainer uses."""
    script = (
        "import sys, tokenlake, tokenlake.runtime.store.catalog, tokenlake.runtime.schema\n"
        "heavy = {'prefect', 'transformers', 'tokenizers', 'gigatoken', 'awkward', 'polars', 'duckdb', 'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    env = os.environ | {"PYTHONPATH": str(LIB)}
    out = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=env,
    )
    assert out.stdout.strip() == "[]"
