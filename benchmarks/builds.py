"""Tokenlake builds of the benchmark: configuration, commands, committed version."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.inputs import Input
from benchmarks.measure import ROOT
from benchmarks.vocabularies import Vocabulary

NAME: Final = "bench"
"""Name of the built dataset."""

# Files with clocks, host names and run ids.
FREE: Final = ("runs/", "claim.json")
"""Prefixes of files that may differ between equal builds."""

_DROPPED_VARIABLES: Final = (
    "PYTHONDONTWRITEBYTECODE",
    "PREFECT_API_URL",
    "PREFECT_PROFILE",
    "TOKENIZERS_PARALLELISM",
    "TOKENLAKE_STORE",
)
"""Environment variables that would change a measured program."""


def write_config(
    path: Path,
    source: Input,
    vocabulary: Vocabulary,
    store: Path,
    unit_size: str | None = None,
) -> Path:
    """Write the configuration of a packed build with 2048 tokens per row.

    It is written as JSON, which is valid YAML.

    Args:
        path: File to write.
        source: Input of the build.
        vocabulary: Tokenizer of the build.
        store: Folder of the store.
        unit_size: Size of the units; None: the default of the library.

    Returns:
        The path of the file.
    """
    dataset = {
        "name": "text",
        "data_files": source.pattern,
        "tokenizer": vocabulary.folder,
    }
    config: dict[str, Any] = {
        "name": NAME,
        "datasets": [dataset],
        "pack": {"enabled": True, "seq_length": 2048},
        "save": {"output_dir": str(store)},
    }
    if unit_size is not None:
        config["source"] = {"unit_size": unit_size}
    path.write_text(json.dumps(config, indent=1))
    return path


def library_command(
    config: Path, workers: int, python: str = sys.executable
) -> list[str]:
    """Return the command of a build by the library's runner, without Prefect."""
    program = "benchmarks.systems.tokenlake_build"
    return [python, "-m", program, str(config), str(workers)]


def flow_command(config: Path, workers: int) -> list[str]:
    """Return the command of a build by `tokenlake run`, with Prefect."""
    script = Path(sys.executable).with_name("tokenlake")
    # A checkout may have no installed script.
    program = [sys.executable, "-m", "tokenlake"]
    if script.exists():
        program = [str(script)]
    return [*program, "run", str(config), "--workers", str(workers)]


def environment(work: Path, cache: Path) -> dict[str, str]:
    """Return the environment of a measured program.

    The program imports this checkout, has no network, and has a Prefect home of the
    benchmark. Its modules are compiled once, like those of an installed package.

    Args:
        work: Work folder of the benchmark.
        cache: Folder for hashes of input files.
    """
    variables = dict(os.environ)
    for variable in _DROPPED_VARIABLES:
        variables.pop(variable, None)
    import_paths = [str(ROOT / folder) for folder in ("lib", "flows", "tasks", ".")]
    return variables | {
        "PYTHONPYCACHEPREFIX": str(work / "bytecode"),
        "PYTHONPATH": os.pathsep.join(import_paths),
        "HF_HOME": str(work / "hf-home"),
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "PREFECT_HOME": str(work / "prefect-home"),
        "TOKENLAKE_CACHE": str(cache),
    }


def version_folder(store: Path) -> Path:
    """Return the folder of the only version in a store."""
    return store / NAME / "v1"


def manifest(store: Path) -> Mapping[str, Any]:
    """Return the committed manifest as JSON."""
    return json.loads((version_folder(store) / "manifest.json").read_bytes())


def tree_digests(store: Path) -> dict[str, str]:
    """Return the sha256 of each file of the version, by relative path.

    Temporary files, and files that may differ between equal builds, are left out.
    """
    root = version_folder(store)
    digests: dict[str, str] = {}
    for path in sorted(root.rglob("*")):
        relative_path = path.relative_to(root).as_posix()
        is_temporary = "tmp" in relative_path.split("/")
        # Temporary files belong to interrupted units.
        if path.is_file() and not is_temporary and not relative_path.startswith(FREE):
            digests[relative_path] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests
