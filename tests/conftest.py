"""Fixtures shared by the whole suite; anything used by one file alone lives in that
file.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json.decoder
import os
import signal
import sys
import textwrap
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

from tests.builds import lender, pool, shared_workers
from tokenlake.etl.tokenizers import train_bpe

__all__ = ["lender", "pool", "shared_workers"]

# Begun last, one of these would keep its worker busy for a minute after the other has
# nothing left to do.
LONG = (
    "integration/test_prefect.py",
    "integration/test_embedded.py",
    "trainer/test_runs.py",
    "etl/test_store_executor.py",
    "etl/test_remote_builds.py",
    "tokenizers/test_mutations.py",
    "docs/test_snippets.py",
    "loader/test_jax_hosts.py",
    "tokenizers/test_segment_words.py",
    "etl/test_build.py",
    "text/test_preference_build.py",
    "clean/test_cleaning.py",
    "sources/test_memory.py",
    "tokenizers/test_corpora.py",
    "test_example_train.py",
    "test_recipes.py",
    "text/test_chat_build.py",
    "loader/test_explain.py",
    "cli/test_hostile.py",
    "cli/test_cli.py",
    "loader/test_jax.py",
    "trainer/test_laws.py",
    "docs/test_notebooks.py",
    "text/test_chat_template.py",
    "etl/test_pool.py",
)


_SAMPLED_CORPORA = 3
"""A sample of the tests of corpora has one of so many."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that choose the tests of ``make test-faults`` and ``make
    test-corpora``.
    """
    parser.addoption(
        "--faults",
        choices=("sample", "all"),
        default="sample",
        help="fault cases to run",
    )
    parser.addoption(
        "--corpora",
        choices=("none", "sample", "all"),
        default="none",
        help="tests of real corpora and tokenizers to run",
    )


def pytest_sessionstart() -> None:
    """Have Ctrl-C interrupt, here and in what tests start, also where a shell has it
    ignored in the background.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The log handler of absl (which Grain and Orbax import) takes the standard error of
    # the moment, and closes it when Prefect replaces all handlers. That of a test is
    # pytest's, and no later test would start.
    with contextlib.suppress(ImportError):
        absl_logging = importlib.import_module("absl.logging")
        absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector: what files of tests import stays, and
    need not be looked at again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Choose the tests of corpora, and begin with the modules that take longest.

    The workers of a run then end at about the same time.
    """
    _choose_corpora(config, items)
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path, len(LONG)))


def _choose_corpora(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep none of the tests marked ``corpora``, all of them, or every third one for
    a sample.
    """
    chosen = config.getoption("--corpora")
    if chosen == "all":
        return
    on_corpora = [
        item for item in items if item.get_closest_marker("corpora") is not None
    ]
    if chosen == "sample":
        del on_corpora[::_SAMPLED_CORPORA]
    items[:] = [item for item in items if item not in set(on_corpora)]
    config.hook.pytest_deselected(items=on_corpora)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real ``corpora/`` and ``hf/`` tokenizers, where the machine
    has one.
    """
    default = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("TOKENLAKE_TEST_DATA", default))
    if not (folder / "corpora").is_dir() or not (folder / "hf").is_dir():
        pytest.skip(
            f"no real corpora and tokenizers in {folder}; set TOKENLAKE_TEST_DATA to a folder with both"
        )
    return folder


# gcsfs reads it when it is first imported, by whatever test that is. With its newer
# class, which this turns off, it asks Google itself, without a time limit, what kind of
# bucket an emulator's is.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"

# What JAX compiles here runs for milliseconds: little is spent on making it fast. Read
# when JAX is first used.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_multi_thread_eigen=false",
)

# Storages of other kinds stand in for those that nobody can have on a loopback.
os.environ["TOKENLAKE_ALLOWED_SCHEMES"] = "memory,sftp,ftp,sftpp,dropbox"

# Timings of a shared machine must not fail a law. Every run draws other examples, so a
# few of each do; continuous integration draws the same ones each time, so that what it
# says of a change is about the change.
hypothesis.settings.register_profile(
    "tokenlake",
    max_examples=30,
    deadline=None,
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
)
hypothesis.settings.load_profile("tokenlake")


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small GPT-2-style tokenizer on disk: no BOS, ``<|endoftext|>`` as EOS."""
    texts = [
        Path(module.__file__).read_text()
        for module in (argparse, textwrap, json.decoder)
    ]
    folder = tmp_path_factory.mktemp("tokenizer")
    for name, data in train_bpe(texts, vocab_size=600).files.items():
        (folder / name).write_bytes(data)
    return folder
