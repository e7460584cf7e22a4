"""Nothing that is read can run: what the package may not call, seen in its syntax
and in what it imports.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import tokenlake

PACKAGE: Final = Path(tokenlake.__file__).parent
ROOT: Final = Path(__file__).resolve().parents[2]
HOUSE: Final = (
    PACKAGE,
    ROOT / "flows" / "tokenlake_flows",
    ROOT / "tasks" / "tokenlake_tasks",
)

#: Modules that make code of bytes, or run programs. What may import one, and why.
MODULES: Final = {
    **dict.fromkeys(
        (
            "pickle",
            "_pickle",
            "cPickle",
            "cloudpickle",
            "dill",
            "joblib",
            "marshal",
            "shelve",
        ),
        (),
    ),
    **dict.fromkeys(
        ("jsonpickle", "torch.hub", "code", "codeop", "pty", "runpy", "imp", "xmlrpc"),
        (),
    ),
    "subprocess": (
        "tokenlake/etl/worker_process.py",  # starts our own workers, by a fixed command
        # Starts the process of a tokenizer, by a fixed command.
        "tokenlake/runtime/tokenizer_guard/process.py",
        # Starts the process that renders templates, by a fixed command.
        "tokenlake/etl/text/render_process.py",
        "tokenlake/demo.py",  # runs this very command line
        # Starts our own Prefect server, by a fixed command.
        "tokenlake_flows/server.py",
    ),
    "ctypes": (
        # Asks the kernel to end the server with its parent.
        "tokenlake_flows/server_process.py",
        # Runs our own loops, compiled here: see tokenizers/test_native.py.
        "tokenlake/etl/tokenizers/words/native.py",
    ),
    "importlib": (
        "tokenlake/__init__.py",  # our own names, when they are first used
        "tokenlake/base/lazy_names.py",
        "tokenlake/etl/sources/records.py",
        "tokenlake/cli/run.py",
        "tokenlake/cli/doctor.py",
        "tokenlake_flows/settings.py",  # Prefect, in an empty folder
        # Functions that a user's own configuration names.
        "tokenlake/etl/text/steps.py",
    ),
}
BUILTINS: Final = frozenset({"eval", "exec", "compile", "__import__", "execfile"})
#: (object, attribute) of calls that unpickle, run or load what they are given.
CALLS: Final = frozenset(
    {
        ("torch", "load"),
        ("np", "load"),
        ("numpy", "load"),
        ("np", "loads"),
        ("pd", "read_pickle"),
    }
    | {
        ("os", "system"),
        ("os", "popen"),
        ("os", "execv"),
        ("os", "spawnv"),
        ("pd", "eval"),
        ("pl", "deserialize"),
    }
    | {
        ("yaml", "load"),
        ("yaml", "load_all"),
        ("yaml", "unsafe_load"),
        ("yaml", "full_load"),
        ("yaml", "Loader"),
    }
    | {
        ("yaml", "FullLoader"),
        ("yaml", "UnsafeLoader"),
        ("yaml", "full_load_all"),
        ("yaml", "unsafe_load_all"),
    }
    | {
        ("pa", "deserialize"),
        ("pa", "PyExtensionType"),
        ("np", "fromfile"),
        ("np", "genfromtxt"),
    }
)
KEYWORDS: Final = frozenset(
    {"allow_pickle", "trust_remote_code", "shell", "weights_only"}
)


def found_in(source: str, name: str) -> list[str]:
    """Return what a file does that it may not, each with its line."""
    return [f"{name}:{line}: {what}" for line, what in _found(ast.parse(source), name)]


def _found(tree: ast.Module, name: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                modules = [
                    node.module or "",
                    *(f"{node.module}.{module}" for module in modules),
                ]
            yield from (
                (node.lineno, f"imports {module}")
                for module in modules
                if _is_refused(module, name)
            )
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in CALLS:
                yield node.lineno, f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in BUILTINS:
                yield node.lineno, f"{node.func.id}()"
            for keyword in node.keywords:
                off = (
                    isinstance(keyword.value, ast.Constant)
                    and keyword.value.value is False
                )
                if keyword.arg in KEYWORDS and not (
                    off or _is_setting(keyword) or _names_a_shell(node)
                ):
                    yield node.lineno, f"{keyword.arg}="


def _is_refused(module: str, name: str) -> bool:
    return module in MODULES and name not in MODULES[module]


def _is_setting(keyword: ast.keyword) -> bool:
    """`trust_remote_code=` of a resolved configuration: handed on as data; nothing
    acts on it.
    """
    return (
        keyword.arg == "trust_remote_code"
        and "options.trust_remote_code" in ast.unparse(keyword.value)
    )


def _names_a_shell(call: ast.Call) -> bool:
    """`shell=` of cyclopts: for which shell a script of completions is."""
    return ast.unparse(call.func) in (
        "app.generate_completion",
        "app.install_completion",
    )


def files() -> list[tuple[str, Path]]:
    return [
        (f"{root.name}/{path.relative_to(root)}", path)
        for root in HOUSE
        for path in sorted(root.rglob("*.py"))
    ]


def test_no_file_makes_code_of_what_it_reads() -> None:
    assert len(files()) > 200
    assert [
        line for name, path in files() for line in found_in(path.read_text(), name)
    ] == []


@pytest.mark.parametrize(
    "bad",
    [
        "import pickle",
        "from pickle import loads",
        "import cloudpickle as cp",
        "from joblib import load",
        "import marshal",
        "import shelve",
        "import ctypes",
        "import subprocess",
        "from importlib import import_module",
        "eval('1')",
        "exec(text)",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.FullLoader)",
        "numpy.load(path)",
        "np.frombuffer(x, allow_pickle=True)",
        "torch.load(path)",
        "run(command, shell=True)",
        "AutoTokenizer.from_pretrained(name, trust_remote_code=True)",
        "AutoTokenizer.from_pretrained(name, trust_remote_code=flag)",
        "os.system(command)",
    ],
)
def test_it_would_be_seen(bad: str) -> None:
    assert found_in(bad, "tokenlake/runtime/reading/version.py")


def test_every_exception_is_still_needed() -> None:
    text = {name: path.read_text() for name, path in files()}
    for module, allowed in MODULES.items():
        for name in allowed:
            assert f"{module}" in text[name], (
                f"{name} no longer imports {module}: take it off the list"
            )


def test_reading_imports_nothing_that_unpickles() -> None:
    """Arrow imports cloudpickle by itself, for functions given to it; that nothing
    runs is shown by another test.
    """
    code = """
import json, sys
import tokenlake as tl
tl.open, tl.DataLoader
import tokenlake.runtime.reading, tokenlake.runtime.loader, tokenlake.runtime.store
names = ("dill", "joblib", "shelve", "torch", "transformers", "pandas", "yaml", "prefect")
print(json.dumps([name for name in names if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert json.loads(done.stdout) == []


def test_prefect_keeps_no_results() -> None:
    """Prefect pickles results by default, and a planted result file runs as code."""
    from prefect import Flow, Task
    from prefect.cache_policies import NO_CACHE

    import tokenlake_flows
    import tokenlake_tasks

    known: dict[int, Any] = {}
    for package in (tokenlake_flows, tokenlake_tasks):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for value in vars(importlib.import_module(module.name)).values():
                known[id(value)] = value
    found = [value for value in known.values() if isinstance(value, Flow | Task)]
    # Six flows, and three of them with required inputs for the forms of deployments.
    assert len([value for value in found if isinstance(value, Flow)]) == 9
    assert len(found) >= 15
    for value in found:
        assert value.persist_result is False, value.name
        if isinstance(value, Task):
            assert value.cache_policy == NO_CACHE, value.name


@pytest.mark.integration
@pytest.mark.parametrize(
    "command",
    [["inspect", "in.jsonl"], ["run", "lake.yaml", "--no-prefect"]],
    ids=" ".join,
)
def test_modules_in_the_current_folder_are_not_imported(
    command: list[str], tmp_path: Path, tokenizer_dir: Path
) -> None:
    """A data folder may hold a json.py; whoever runs a command there did not choose to
    run it.

    Flows, whose servers and workers see the folder, too, are run there in
    ``integration/test_embedded.py``.
    """
    marks, here = tmp_path / "imported", tmp_path / "data"
    here.mkdir()
    for name in sys.stdlib_module_names | {
        "numpy",
        "pyarrow",
        "tokenizers",
        "xxhash",
        "sitecustomize",
    }:
        text = f"with open({str(marks)!r}, 'a') as marks: marks.write({name!r} + chr(10))\n"
        (here / f"{name}.py").write_text(text)
    (here / "in.jsonl").write_text('{"text": "a lake holds water"}\n' * 40)
    settings = {
        "name": "there",
        "datasets": [{"name": "pages", "data_files": "in.jsonl"}],
        "default_tokenizer": str(tokenizer_dir),
        "pack": {"enabled": True, "seq_length": 16},
    }
    (here / "lake.yaml").write_text(json.dumps(settings))
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        # As the installed script: it has no folder of the caller's on its path.
        [sys.executable, "-P", "-m", "tokenlake", *command],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not marks.exists(), marks.read_text()
