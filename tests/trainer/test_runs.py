"""Whole runs of the trainer; see :mod:`tests.trainer.runs`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tokenlake
from tests.loader.jax_support import packed_store, run
from tests.loader.preference_store import preference_store
from tests.seeds import promise
from tests.trainer.test_docs import blocks
from tokenlake.errors import MissingExtraError


@promise(127, 128, 129, 131, 142, 162, 187, 198, 314, 315, 316)
def test_a_run_that_is_killed_goes_on_as_if_it_had_not_been(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    store = packed_store(tmp_path_factory)
    # Not quiet: Orbax tells of what the killed process left unfinished.
    run(
        "tests.trainer.runs",
        devices=2,
        quiet=False,
        store=str(store),
        folder=str(tmp_path),
        code=blocks("python"),
    )


def test_a_missing_package_is_told_with_its_install_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [
        name for name in sys.modules if name.startswith("tokenlake.runtime.trainer.")
    ]:
        monkeypatch.delitem(sys.modules, name)
    # JAX itself: importing it here would be felt by other tests of this process.
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(vars(tokenlake), "Trainer", raising=False)
    with pytest.raises(
        MissingExtraError, match=r"needs jax, .*: pip install 'tokenlake\[train\]'"
    ):
        _ = tokenlake.Trainer


@promise(127)
def test_preference_runs_learn_and_go_on_where_they_were_cut(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    store = preference_store(tmp_path_factory)
    run(
        "tests.trainer.preference_runs",
        devices=2,
        store=str(store),
        folder=str(tmp_path),
    )


def test_faults_are_refused_or_end_a_run_before_they_reach_a_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    store = packed_store(tmp_path_factory)
    # Not quiet: Orbax complains in a background thread where an array cannot be read.
    run(
        "tests.trainer.faults",
        devices=2,
        quiet=False,
        store=str(store),
        folder=str(tmp_path),
    )
