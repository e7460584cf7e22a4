"""The floors of the library: `make lint` checks the contracts of .importlinter, and these tests check the contracts."""

from __future__ import annotations

import re
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

import pytest

import tokenlake
from tokenlake.etl.after_commit import HOOKS
from tokenlake.etl.engines import ENGINES, EXECUTORS
from tokenlake.etl.worker import JOBS_OF_PARTS
from tokenlake.tokenizers.encoder import FAST_ENGINES

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
def test_a_contract_of_the_floors_has_no_exceptions(contracts: ConfigParser, contract: str) -> None:
    assert "ignore_imports" not in contracts[f"importlinter:contract:{contract}"]


def test_every_module_at_the_top_is_on_a_floor(contracts: ConfigParser) -> None:
    listed = set(
        re.findall(r"tokenlake\.(\w+)(?![\w.])", contracts["importlinter:contract:floors"]["layers"])
    )
    folder = Path(tokenlake.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")}
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert listed == (modules | packages) - APART


REGISTERED = [
    *EXECUTORS.values(),
    *FAST_ENGINES.values(),
    *JOBS_OF_PARTS.values(),
    *(home for hook in HOOKS for home in (hook.check, hook.make)),
]


@pytest.mark.parametrize("home", REGISTERED)
def test_a_registered_part_is_there(home: str) -> None:
    module, _, name = home.partition(":")
    assert callable(getattr(import_module(module), name))


def test_every_engine_has_an_executor() -> None:
    assert list(EXECUTORS) == list(ENGINES)
