"""A base install: each public name and each command works, or names the extra that it
needs.

A child process stands for it: no module is found there but those of the standard
library, of Tokenlake and of the packages that Tokenlake always depends on.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.store.support import build_store

ROOT = Path(__file__).parents[1]
BASE = ("numpy", "pyarrow", "fsspec", "xxhash", "msgspec")

REFUSE = """
import importlib.machinery, json, sys
ALLOWED = {*sys.stdlib_module_names, "tokenlake", *json.loads(sys.argv[1])}

class Allowed:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ALLOWED or name.startswith("_sysconfigdata"):
            return importlib.machinery.PathFinder.find_spec(name, path, target)
        return None

sys.meta_path[:] = [importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter, Allowed]

def outcome(work):
    try:
        return ["ok", repr(work())[:200]]
    except Exception as error:
        return [type(error).__name__, str(error)]
"""

NAMES = """
import importlib
import tokenlake as tl
from tokenlake import easydel
found = {name: outcome(lambda: getattr(tl, name)) for name in [*dir(tl), *easydel.__all__]}
for path in ("transforms", "utils", "distributed", "execution", "core.config"):
    found[path] = outcome(lambda: importlib.import_module(f"tokenlake.{path}"))
print(json.dumps(found))
"""

COMMANDS = """
import contextlib, io
from tokenlake.cli import COMMANDS
from tokenlake.cli.app import main
found = {}
for name in COMMANDS:
    with contextlib.redirect_stderr(io.StringIO()) as told, contextlib.redirect_stdout(io.StringIO()):
        code = main([name, "--help"])
    found[name] = [code, told.getvalue()]
print(json.dumps(found))
"""

USES = """
import tokenlake as tl
dataset = tl.open(sys.argv[2])
found = {
    "row": outcome(lambda: dataset[0]["input_ids"].shape),
    "batch": outcome(lambda: next(iter(tl.DataLoader(dataset, batch_size=2, seed=0)))["input_ids"].shape),
    "decode": outcome(lambda: dataset.decode(0)),
    "verify": outcome(lambda: tl.verify(sys.argv[2])),
    "https": outcome(lambda: tl.open("https://127.0.0.1:1/lake/set")),
    "s3": outcome(lambda: tl.open("s3://lake/set")),
}
print(json.dumps(found))
"""


def run(code: str, *arguments: str, beside: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run a child process with the base packages, and those `beside` them; return
    what it printed.
    """
    allowed = json.dumps([*BASE, *beside])
    done = subprocess.run(
        [sys.executable, "-c", REFUSE + code, allowed, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def extras() -> dict[str, set[str]]:
    """Return the packages that each extra installs, by itself or by the extras that
    it names.
    """
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    packages: dict[str, set[str]] = {}
    for extra in declared:
        packages[extra] = set()
        pending = [extra]
        while pending:
            for requirement in declared[pending.pop()]:
                inner = re.fullmatch(r"tokenlake\[(.+)\]", requirement)
                pending += inner[1].split(",") if inner else []
                packages[extra].add(
                    re.split(r"[^A-Za-z0-9_-]", requirement)[0]
                    .replace("-", "_")
                    .lower()
                )
    return packages


# What a package is called where its module has another name, or which package brings
# it.
PACKAGE_OF = {
    "yaml": "pyyaml",
    "orbax": "orbax_checkpoint",
    "annotated_types": "pydantic",
}


def test_the_base_packages_are_those_that_are_declared() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "dependencies"
    ]
    assert {re.split("[><=]", requirement)[0] for requirement in declared} == set(BASE)


def test_every_public_name_works_or_names_the_extra_that_it_needs() -> None:
    found = run(NAMES)
    installs = extras()
    for name, (kind, told) in found.items():
        if kind == "ok":
            continue
        assert kind == "MissingExtraError", (name, kind, told)
        match = re.search(
            r"needs? (?P<module>[\w-]+).*: pip install 'tokenlake\[(?P<extra>\w+)\]'$",
            told,
        )
        assert match, (name, told)
        module = match["module"].replace("-", "_")
        assert PACKAGE_OF.get(module, module) in installs[match["extra"]], (name, told)
    assert (
        found["open"][0]
        == found["DataLoader"][0]
        == found["verify"][0]
        == found["gc"][0]
        == "ok"
    )
    assert found["sql"] == ["MissingExtraError", "tokenlake.sql needs duckdb, which is missing: pip install "
                            "'tokenlake[etl]'"]  # fmt: skip
    assert "pip install 'tokenlake[etl]'" in found["build_dataset"][1]
    assert "pip install 'tokenlake[train]'" in found["Trainer"][1]


CLI = (
    "cyclopts",
    "rich",
    "packaging",
    # what these bring along
    "attr",
    "attrs",
    "docstring_parser",
    "docutils",
    "markdown_it",
    "mdurl",
    "pygments",
    "rich_rst",
    "typing_extensions",
)


@pytest.mark.parametrize("beside", [(), CLI], ids=["base", "cli"])
def test_every_command_works_or_names_the_extra_that_it_needs(
    beside: tuple[str, ...],
) -> None:
    found = run(COMMANDS, beside=beside)
    extra = "etl" if beside else "cli"
    for name, (code, told) in found.items():
        assert code == 0 or f"pip install 'tokenlake[{extra}]'" in told, (name, told)
        assert "Traceback" not in told
    assert found["sql"][0] == 1
    if beside:
        assert found["ls"][0] == 0


def test_decoding_needs_tokenizers_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path
) -> None:
    store = build_store(tmp_path_factory.mktemp("base"), tokenizer_dir)
    where = f"{store}/small"
    without = run(USES, where)
    assert without["row"][0] == without["batch"][0] == without["verify"][0] == "ok"
    assert without["decode"] == [
        "MissingExtraError",
        "a tokenizer needs the package tokenizers, which is missing: pip install tokenizers",
    ]
    for scheme, extra in (("https", "http"), ("s3", "s3")):
        kind, message = without[scheme]
        assert kind == "MissingExtraError"
        assert message.endswith(
            f"needs a package that is missing: pip install 'tokenlake[{extra}]'"
        )
    beside = run(USES, where, beside=("tokenizers",))
    assert beside["decode"][0] == "ok"
