"""Run a short suite in environments with other versions of Python and of the packages
that we depend on.

``python -m tests.environments`` builds a virtual environment for each entry of
:data:`ENVIRONMENTS` with ``uv``, installs Tokenlake into it and runs the entry's tests
there. Names as arguments select entries: ``python -m tests.environments lowest
pyarrow-20``. Environments stay in ``.venv/environments`` and are reused while what they
install is the same.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv" / "environments"

EXTRAS = "etl,train,prove,transformers"

# What the tests themselves need, always at the versions of constraints.txt: the tools
# are not what is tested.
TOOLS = (
    "pytest",
    "pytest-xdist",
    "pytest-rerunfailures",
    "hypothesis",
    "psutil",
    "polars",
)

# Golden bytes, and a build of every kind that they need.
GOLDEN = ("tests/golden", "tests/parquet/test_writer.py")

# One file for each thing that another version of a package has broken before, or could.
SHORT = (
    *GOLDEN,
    "tests/config/test_models.py",
    "tests/config/test_loading.py",
    "tests/sources/test_parquet.py",
    "tests/sources/test_arrow.py",
    "tests/sources/test_jsonl.py",
    "tests/etl/test_build.py",
    "tests/etl/test_kept.py",
    "tests/etl/test_mix_build.py",
    "tests/loader/test_batches.py",
    "tests/loader/test_jax.py",
    "tests/loader/test_orbax.py",
    "tests/reading/test_pages.py",
    "tests/query/test_query.py",
    "tests/text/test_chat_build.py",
    "tests/tokenizers/test_native.py",
    "tests/trainer/test_laws.py",
)


# Everything that encodes, decodes, masks or describes a tokenizer, and whole builds.
TOKENIZERS = (
    *GOLDEN,
    "tests/tokenizers",
    "tests/tokenizer_guard/test_process.py",
    "tests/text/test_chat_build.py",
    "tests/tokenizers/test_native.py",
    "tests/text/test_chat_families.py",
    "tests/text/test_prompt_build.py",
    "tests/text/test_lengths.py",
    "tests/text/test_preference_build.py",
    "tests/etl/test_build.py",
    "tests/cli/test_doctor.py",
)


@dataclass(frozen=True)
class Environment:
    """A virtual environment and the tests that run in it."""

    name: str
    """Name on the command line and of the folder."""

    tests: tuple[str, ...]
    """Files and folders of tests, relative to the repository."""

    python: str | None = None
    """Version of Python, such as ``"3.12"``; None for the interpreter that runs this
    module.
    """

    resolution: Literal["highest", "lowest-direct"] = "highest"
    """Which versions uv takes where several fit."""

    pins: tuple[str, ...] = ()
    """Requirements beside ours, such as ``"pyarrow==20.*"``."""

    extras: str = EXTRAS
    """Extras of Tokenlake that are installed."""

    demo: bool = False
    """Also run the demo, which builds with real Prefect flows."""

    overrides: tuple[str, ...] = ()
    """Requirements that replace those of other packages, where these cannot be met
    together.
    """

    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables of the tests."""


ENVIRONMENTS = (
    # Newer Pythons have no wheels of the lowest versions.
    Environment("lowest", SHORT, python="3.11", resolution="lowest-direct", demo=True),
    Environment("newest", SHORT, demo=True),
    Environment("python-3.12", SHORT, python="3.12", demo=True),
    Environment("python-3.13", SHORT, python="3.13", demo=True),
    *(
        Environment(f"pyarrow-{major}", GOLDEN, pins=(f"pyarrow=={major}.*",))
        for major in range(20, 26)
    ),
    Environment("tokenizers-0.22", GOLDEN, pins=("tokenizers==0.22.*",)),
    # Without transformers, which requires an older one.
    Environment(
        "tokenizers-1.0",
        TOKENIZERS,
        pins=("tokenizers==1.0.0rc3",),
        extras="etl,train,prove",
        demo=True,
    ),
    # Trainers' own libraries read exports; they are in no extra of ours.
    Environment(
        "peers",
        ("tests/export/test_peer_readers.py",),
        pins=(
            "mosaicml-streaming==0.13.0",
            "litdata==0.2.76",
            "zstd==1.5.7.2",
            "torch==2.13.0",
        ),
        # It declares transformers<5, and imports it for simulations alone.
        overrides=("transformers==5.23.0",),
        extras="etl,train,grain,array_record",
        variables=(("TOKENLAKE_TEST_PEERS", "1"),),
    ),
)


def main() -> int:
    """Run the environments that the command line names, or all of them; return 1 if
    one failed.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.environments", description=__doc__
    )
    parser.add_argument("names", nargs="*", help="environments to run; all by default")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    arguments = parser.parse_args()
    names = [environment.name for environment in ENVIRONMENTS]
    if arguments.list:
        print("\n".join(names))
        return 0
    unknown = set(arguments.names) - set(names)
    if unknown:
        parser.error(
            f"no environment {', '.join(sorted(unknown))}; expected some of {', '.join(names)}"
        )
    failed = list[str]()
    for environment in ENVIRONMENTS:
        if arguments.names and environment.name not in arguments.names:
            continue
        interpreter = find_python(environment.python)
        if interpreter is None:
            print(
                f"{environment.name}: skipped, no Python {environment.python} on this machine",
                flush=True,
            )
            continue
        if not run(environment, interpreter):
            failed.append(environment.name)
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
        return 1
    return 0


def run(environment: Environment, interpreter: str) -> bool:
    """Install an environment and run its tests; return whether both succeeded."""
    start = time.monotonic()
    folder = FOLDER / environment.name
    try:
        install(environment, interpreter, folder)
    except subprocess.CalledProcessError as error:
        print(f"{environment.name}: not installed: {error}", flush=True)
        return False
    python = folder / "bin" / "python"
    versions = ", ".join(installed_versions(python))
    print(
        f"{environment.name}: {versions}; installed in {time.monotonic() - start:.0f} s",
        flush=True,
    )
    command = [
        str(python),
        "-m",
        "pytest",
        "-n",
        "2",
        "--dist",
        "loadfile",
        "--corpora",
        "sample",
    ]
    command += environment.tests
    variables = os.environ | dict(environment.variables)
    tests = subprocess.run(command, cwd=ROOT, env=variables, check=False)
    succeeded = tests.returncode == 0
    if environment.demo:
        succeeded = run_demo(python) and succeeded
    return succeeded


def run_demo(python: Path) -> bool:
    """Run the demo in a folder of its own; print what it says if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        # An older Prefect cannot open the database of a newer one.
        environment = {**os.environ, "PREFECT_HOME": f"{folder}/prefect"}
        finished = subprocess.run(
            [str(python), "-m", "tokenlake.demo", f"{folder}/demo"],
            cwd=ROOT,
            env=environment,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    if finished.returncode != 0:
        print(finished.stdout, flush=True)
    print(f"demo: exit code {finished.returncode}", flush=True)
    return finished.returncode == 0


def install(environment: Environment, interpreter: str, folder: Path) -> None:
    """Make the virtual environment of an entry unless it is there and holds what the
    entry asks for.
    """
    tools = pinned_tools()
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    wanted = f"{interpreter}\n{environment}\n{tools}\n{project}"
    stamp = folder / "installed.txt"
    if stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    uv = [sys.executable, "-m", "uv", "--quiet"]
    subprocess.run([*uv, "venv", "--python", interpreter, str(folder)], check=True)
    requirements = [
        "--editable",
        f"{ROOT}[{environment.extras}]",
        *tools,
        *environment.pins,
    ]
    target = [
        "--python",
        str(folder / "bin" / "python"),
        "--resolution",
        environment.resolution,
    ]
    if environment.overrides:
        override_file = folder / "overrides.txt"
        override_file.write_text("\n".join(environment.overrides) + "\n", "utf-8")
        target += ["--override", str(override_file)]
    subprocess.run([*uv, "pip", "install", *target, *requirements], check=True)
    stamp.write_text(wanted, "utf-8")


def pinned_tools() -> list[str]:
    """Return the tools with their versions, as ``pytest==9.2.0``."""
    pins = dict[str, str]()
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        name, _, version = line.partition("==")
        pins[name] = version
    return [f"{tool}=={pins[tool]}" for tool in TOOLS]


def installed_versions(python: Path) -> Iterator[str]:
    """Yield the versions that make the difference, as ``pyarrow 20.0.0``."""
    names = ("pyarrow", "numpy", "pydantic", "tokenizers", "prefect", "duckdb", "jax")
    code = (
        "import importlib.metadata, platform\n"
        "print('Python', platform.python_version())\n"
        f"for name in {names}: print(name, importlib.metadata.version(name))"
    )
    finished = subprocess.run(
        [str(python), "-c", code], check=True, capture_output=True, text=True
    )
    yield from finished.stdout.splitlines()


def find_python(version: str | None) -> str | None:
    """Return the path of an interpreter of a version, or None where this machine has
    none.
    """
    if (
        version is None
        or version == f"{sys.version_info.major}.{sys.version_info.minor}"
    ):
        return sys.executable
    on_path = shutil.which(f"python{version}")
    candidates = [Path(on_path)] if on_path else list[Path]()
    # What pyenv puts on the path runs only the versions that are switched on; the
    # others lie beside it.
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
    code = "import sys; print(*sys.version_info[:2], sep='.'); print(sys.executable)"
    for candidate in candidates:
        finished = subprocess.run(
            [candidate, "-c", code], check=False, capture_output=True, text=True
        )
        if finished.returncode != 0:
            continue
        found_version, executable = finished.stdout.splitlines()
        if found_version == version:
            return executable
    return None


if __name__ == "__main__":
    sys.exit(main())
