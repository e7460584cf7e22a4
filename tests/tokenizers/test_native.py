"""The compiled loops of the cached words are kept as machine code, which is loaded
without numba.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.tokenizers.tokenizer_samples import byte_level
from tokenlake.errors import MissingExtraError
from tokenlake.etl.tokenizers.words import WordBackend, is_compiled, loops, machine_code

NATIVE = "tokenlake.etl.tokenizers.words.native"
COMPILE = "tokenlake.etl.tokenizers.words.native_compiler.compile_loops"


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two folders where the machine code may lie, in order of preference. This
    process has loaded none.
    """
    first, second = tmp_path / "first", tmp_path / "second"
    second.mkdir()
    monkeypatch.setattr(f"{NATIVE}.code_folders", lambda: iter([first, second]))
    monkeypatch.setattr(f"{NATIVE}._LOADED", [])
    return first, second


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The machine code that each compilation from now on takes from this list."""
    results: list[bytes] = []
    monkeypatch.setattr(COMPILE, lambda: results.pop(0))
    return results


def test_a_kept_file_is_loaded_without_numba() -> None:
    loops()
    code = "import sys; from tokenlake.etl.tokenizers.words import loops; loops(); sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_results_and_arguments() -> None:
    compiled_loops = loops()
    merges = np.zeros((16, 2), np.uint64)
    bits = np.zeros(1 << 16, np.uint64)
    left = np.array([1, 3], np.int32)
    assert compiled_loops.add_merges(merges, bits, left, left + 1, left + 2) is None
    assert sorted(merges[:, 0].tolist())[-2:] == [1 << 32 | 2, 3 << 32 | 4]
    words = np.array([2, 3], np.uint64)
    assert compiled_loops.settle(words, 2, np.zeros(0, np.uint64)) == 5
    with pytest.raises(
        TypeError,
        match="settle: got an array of int64, must be contiguous and of uint64",
    ):
        compiled_loops.settle(words.astype(np.int64), 2, words)
    with pytest.raises(TypeError, match="contiguous"):
        compiled_loops.settle(np.zeros(4, np.uint64)[::2], 2, words)


def test_only_a_whole_file_of_this_user_is_loaded(
    folders: tuple[Path, Path], compiled: list[bytes]
) -> None:
    compiled += [b"machine code", b"after a change of rights", b"after a cut"]
    assert not is_compiled()
    assert machine_code() == b"machine code"
    assert is_compiled()
    assert machine_code() == b"machine code"

    (path,) = (path for path in folders[0].iterdir() if path.suffix == ".o")
    path.chmod(0o622)
    assert not is_compiled()
    assert machine_code() == b"after a change of rights"

    path.write_bytes(path.read_bytes()[:-1])
    assert not is_compiled()
    assert machine_code() == b"after a cut"
    assert not list(folders[0].glob("*.o?*")), "temporary files are removed"


def test_a_folder_that_cannot_be_written_is_passed_over(
    folders: tuple[Path, Path], compiled: list[bytes]
) -> None:
    compiled.append(b"machine code")
    folders[0].write_text("a file in the place of the folder")
    assert machine_code() == b"machine code"
    assert list(folders[1].glob("*.o")) != []
    assert machine_code() == b"machine code"


def test_the_file_is_looked_for_in_all_folders(
    folders: tuple[Path, Path], compiled: list[bytes]
) -> None:
    compiled += [b"fresh", b"fresher"]
    assert machine_code() == b"fresh"
    (file,) = folders[0].glob("*.o")
    moved = file.rename(folders[1] / file.name)
    assert machine_code() == b"fresh"
    moved.unlink()
    assert machine_code() == b"fresher"


def test_a_numba_that_cannot_compile_leaves_the_work_to_the_reference(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> bytes:
        raise AttributeError("module 'numba' has no attribute 'cfunc'")

    monkeypatch.setattr(COMPILE, fail)
    with pytest.raises(
        MissingExtraError,
        match=r"tokenizer backend 'words' cannot run here: numba \S+ does not compile",
    ):
        WordBackend(byte_level())
