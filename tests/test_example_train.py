"""``examples/train_jax.py``: it learns, keeps documents apart, and goes on from a
checkpoint as if never stopped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.reading.support import lake_of

ROOT = Path(__file__).resolve().parents[1]
TINY = (
    "--batch-size",
    "8",
    "--width",
    "32",
    "--layers",
    "2",
    "--heads",
    "2",
    "--every",
    "6",
    "--log",
    "1",
)
STEPS = 30

RUNS = """
import json, sys
from examples.train_jax import main

dataset, whole, killed, *options = sys.argv[1:]
begin = [dataset, *options, "--checkpoint"]
print(json.dumps([main([*begin, whole]), main([*begin, killed, "--resume"])]), flush=True)
"""

KILLED = """
import os, signal, sys
from examples.train_jax import main

class Killing:
    def write(self, text):
        if text.startswith("step 14 "):
            os.kill(os.getpid(), signal.SIGKILL)

    def flush(self):
        pass

sys.stdout = Killing()
main(sys.argv[1:])
"""

ISOLATED = """
import sys
import jax, numpy as np
import tokenlake as tl
from examples.train_jax import COLUMNS, NO_TARGET, init, losses_of

ds = tl.open(sys.argv[1], split="train")
params = init(jax.random.key(0), vocabulary=ds.vocab_size, width=32, layers=2, heads=2)
rows = [row for row in range(len(ds)) if ds[row]["segment_ids"].max() >= 3][:4]
batch = ds.take(rows, COLUMNS)
segments = batch["segment_ids"]
losses_of = jax.jit(losses_of)
before = np.asarray(losses_of(params, batch))
assert (before > 0).any() and (before[batch["targets"] == NO_TARGET] == 0).all()

changed = {name: column.copy() for name, column in batch.items()}
changed["input_ids"][segments == 2] = (changed["input_ids"][segments == 2] + 7) % 100
after = np.asarray(losses_of(params, changed))
assert np.array_equal(before[segments != 2], after[segments != 2])
assert (before != after)[(segments == 2) & (batch["targets"] != NO_TARGET)].all()

gradient = jax.jit(jax.grad(lambda params, batch: losses_of(params, batch)[segments == 1].sum()))
for ours, theirs in zip(*(jax.tree.leaves(gradient(params, each)) for each in (batch, changed)), strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)

each = [segments[row] == segment for row in range(len(rows)) for segment in (1, 2, 3)]
alone = {name: np.zeros((len(each), ds.seq_length), np.int32) for name in COLUMNS}
alone["targets"][:] = NO_TARGET
for index, there in enumerate(each):
    for name in COLUMNS:
        alone[name][index, : there.sum()] = batch[name][index // 3, there]
after = np.asarray(losses_of(params, alone))
for index, there in enumerate(each):
    np.testing.assert_allclose(after[index, : there.sum()], before[index // 3, there], rtol=1e-4)
"""


def command(cache: Path, code: str, *arguments: str) -> dict[str, Any]:
    """A Python of its own: JAX takes over the process that it is first imported in."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "lib"), str(ROOT)]),
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return {
        "args": [sys.executable, "-c", code, *arguments],
        "env": environment,
        "text": True,
    }


def arrays(folder: Path) -> dict[str, Any]:
    (checkpoint,) = folder.glob("step-*")
    with np.load(checkpoint / "arrays.npz") as found:
        return {**found, "loader": json.loads((checkpoint / "loader.json").read_text())}


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A run that is killed; then a whole one, what is left of the other, and
    documents apart, in one process.
    """
    dataset, folder = (
        f"{lake_of(tmp_path_factory).url}/plain",
        tmp_path_factory.mktemp("runs"),
    )
    options = (*TINY, "--steps", str(STEPS))
    killed = (dataset, *options, "--checkpoint", str(folder / "killed"))
    died = subprocess.run(**command(folder / "cache", KILLED, *killed), check=False)
    assert died.returncode == -signal.SIGKILL
    (checkpoint,) = (folder / "killed").glob("step-*")
    assert checkpoint.name == "step-00000012"
    both = (dataset, str(folder / "whole"), str(folder / "killed"), *options)
    return folder, subprocess.run(
        **command(folder / "cache", RUNS + ISOLATED, *both),
        capture_output=True,
        check=False,
    )


def test_the_loss_falls_and_a_run_that_was_killed_goes_on_as_if_it_had_not_been(
    runs: tuple[Path, subprocess.CompletedProcess[str]],
):
    folder, done = runs
    told = [line for line in done.stdout.splitlines() if line.startswith("[[")]
    assert told, done.stderr
    whole, resumed = json.loads(told[0])
    assert len(whole) == STEPS
    assert np.mean(whole[-5:]) < 0.85 * np.mean(whole[:5])
    assert resumed == whole[12:]
    ours, theirs = arrays(folder / "killed"), arrays(folder / "whole")
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_documents_of_a_row_do_not_see_each_other(
    runs: tuple[Path, subprocess.CompletedProcess[str]],
):
    assert runs[1].returncode == 0, runs[1].stderr
