"""Tokenlake builds as the benchmark makes them: the configuration, both ways to run
it, the finished tree.
"""

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
# What may differ between equal builds: clocks, hosts, run ids.
FREE: Final = ("runs/", "claim.json")


def write_config(
    path: Path,
    source: Input,
    vocabulary: Vocabulary,
    store: Path,
    unit_size: str | None = None,
) -> Path:
    """Writes the configuration (JSON, so YAML too) of a packed build at 2048 tokens
    a sequence.
    """
    config: dict[str, Any] = {
        "name": NAME,
        "datasets": [
            {
                "name": "text",
                "data_files": source.pattern,
                "tokenizer": vocabulary.folder,
            }
        ],
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
    """The library's own runner in a fresh interpreter."""
    return [
        python,
        "-m",
        "benchmarks.systems.tokenlake_build",
        str(config),
        str(workers),
    ]


def flow_command(config: Path, workers: int) -> list[str]:
    """The same build through `tokenlake run`."""
    script = Path(sys.executable).with_name("tokenlake")
    start = [str(script)] if script.exists() else [sys.executable, "-m", "tokenlake"]
    return [*start, "run", str(config), "--workers", str(workers)]


def environment(work: Path, cache: Path) -> dict[str, str]:
    """For every measured program: this checkout, no network, our own Prefect home,
    `cache` for hashes.

    Modules are compiled once, as those of an installed package are, whatever the
    environment says of it.
    """
    dropped = (
        "PYTHONDONTWRITEBYTECODE",
        "PREFECT_API_URL",
        "PREFECT_PROFILE",
        "TOKENIZERS_PARALLELISM",
        "TOKENLAKE_STORE",
    )
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {
        "PYTHONPYCACHEPREFIX": str(work / "bytecode"),
        "PYTHONPATH": os.pathsep.join(
            str(ROOT / folder) for folder in ("lib", "flows", "tasks", ".")
        ),
        "HF_HOME": str(work / "hf-home"),
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "PREFECT_HOME": str(work / "prefect-home"),
        "TOKENLAKE_CACHE": str(cache),
    }


def version_folder(store: Path) -> Path:
    """The only version in the store."""
    return store / NAME / "v1"


def manifest(store: Path) -> Mapping[str, Any]:
    """The committed manifest, as JSON."""
    return json.loads((version_folder(store) / "manifest.json").read_bytes())


def tree_digests(store: Path) -> dict[str, str]:
    """sha256 of every file of the version by relative path, without the few that may
    differ.
    """
    root = version_folder(store)
    files = {
        path.relative_to(root).as_posix(): path
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
    kept = {
        name: path
        for name, path in files.items()
        if not name.startswith(FREE) and "tmp" not in name.split("/")
    }
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in kept.items()
    }
