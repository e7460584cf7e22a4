"""The compiled loops of the cached words are kept as machine code, which is loaded without numba."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.tokenizers.tokenizer_samples import byte_level
from tokenlake.errors import MissingExtraError
from tokenlake.etl.tokenizers.words import native
from tokenlake.etl.tokenizers.words.engine import WordEngine


def test_a_kept_file_is_loaded_without_numba() -> None:
    native.loops()
    code = (
        "import sys; from tokenlake.etl.tokenizers.words import native; native.loops(); "
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_results_and_arguments() -> None:
    loops = native.loops()
    merges = np.zeros((16, 2), np.uint64)
    bits = np.zeros(1 << 16, np.uint64)
    left = np.array([1, 3], np.int32)
    assert loops.add_merges(merges, bits, left, left + 1, left + 2) is None
    assert sorted(merges[:, 0].tolist())[-2:] == [1 << 32 | 2, 3 << 32 | 4]
    found = np.array([2, 3], np.uint64)
    assert loops.settle(found, 2, np.zeros(0, np.uint64)) == 5
    with pytest.raises(TypeError, match="settle: got an array of int64, must be contiguous and of uint64"):
        loops.settle(found.astype(np.int64), 2, found)
    with pytest.raises(TypeError, match="contiguous"):
        loops.settle(np.zeros(4, np.uint64)[::2], 2, found)


def test_only_a_whole_file_of_this_user_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "new" / "code.o"
    assert native.read_code(path) is None
    assert native.write_code(path, b"machine code")
    assert native.read_code(path) == b"machine code"
    path.chmod(0o622)
    assert native.read_code(path) is None
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1])
    assert native.read_code(path) is None
    assert not list(tmp_path.glob("new/code.o?*"))


def test_a_folder_that_cannot_be_written_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not native.write_code(tmp_path / "file" / "code.o", b"machine code")


def test_the_file_is_looked_for_in_all_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "code_folders", lambda: iter([tmp_path / "none", tmp_path]))
    compiled: list[bytes] = [b"fresh"]
    from tokenlake.etl.tokenizers.words import native_compiler

    monkeypatch.setattr(native_compiler, "compile_loops", lambda: compiled[0])
    monkeypatch.setattr(native, "_LOADED", [])
    assert not native.is_compiled()
    assert native.machine_code() == b"fresh"
    assert native.is_compiled()
    (file,) = (tmp_path / "none").iterdir()
    compiled[0] = b"fresher"
    assert native.machine_code() == b"fresh"
    file.rename(tmp_path / file.name)
    assert native.machine_code() == b"fresh"
    (tmp_path / file.name).unlink()
    assert native.machine_code() == b"fresher"


def test_a_numba_that_cannot_compile_leaves_the_work_to_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenlake.etl.tokenizers.words import native_compiler

    def fail() -> bytes:
        raise AttributeError("module 'numba' has no attribute 'cfunc'")

    monkeypatch.setattr(native, "code_folders", lambda: iter([tmp_path]))
    monkeypatch.setattr(native_compiler, "compile_loops", fail)
    monkeypatch.setattr(native, "_LOADED", [])
    with pytest.raises(
        MissingExtraError, match=r"engine 'words' cannot run here: numba \S+ does not compile"
    ):
        WordEngine(byte_level())
