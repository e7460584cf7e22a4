"""Run the compiled loops of the cached words without starting numba.

numba needs half a CPU second in each process before the first call, most of it for
parts that these loops do not use (linear algebra, extensions of other packages). So the
loops are compiled by numba once, and the machine code is kept in a file. Other
processes load the file with llvmlite, which takes 0.03 CPU seconds, and call it with
ctypes.

**The file** lies in the folder of Python's own compiled modules, or where that cannot
be written to in the cache folder of the user. Its name has a hash of the source of the
loops, of the versions of numba, llvmlite and Python, and of the processor. It holds the
sha256 of the rest, then the object file of LLVM. It is loaded only if it belongs to
this user and nobody else may write it, because it is executed.

**A call** passes one array of int64, the *block*. An array among the arguments fills
two entries, its address and its length; a number fills one. The results are written to
the first entries.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import stat
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Lock
from typing import Any, Final, final

import numpy as np

from tokenlake.base.cache.disk import default_folder
from tokenlake.errors import StoreError
from tokenlake.etl.tokenizers.words.signatures import (
    NUMBER,
    SIGNATURES,
    Signature,
    symbol_of,
)
from tokenlake.runtime.store.file_locks import locked

_SOURCES: Final = (
    "kernel_constants.py",
    "segment_kernels.py",
    "unigram_kernels.py",
    "words/kernels.py",
    "words/automaton.py",
    "words/native_compiler.py",
    "words/signatures.py",
)
_DIGEST_BYTES: Final = 32
# Called where Python code would raise an exception, which no loop does. They are parts
# of numba, which is not loaded.
_ERROR_PATHS: Final = (
    "NRT_Free",
    "NRT_MemInfo_call_dtor",
    "numba_do_raise",
    "numba_gil_ensure",
    "numba_gil_release",
    "numba_runtime_build_excinfo_struct",
    "numba_unpickle",
)


@final
class Loop:
    """A compiled loop.

    Args:
        name: Its name, for messages.
        signature: Its parameters.
        address: Where its machine code begins.
    """

    def __init__(self, name: str, signature: Signature, address: int) -> None:
        self._name = name
        self._dtypes: list[np.dtype[Any] | None] = []
        size = 0
        for parameter in signature.parameters:
            if parameter == NUMBER:
                self._dtypes.append(None)
                size += 1
            else:
                self._dtypes.append(np.dtype(parameter.removesuffix("x2")))
                size += 2
        self._results = signature.results
        self._block: Any = ctypes.c_int64 * max(size, signature.results)
        self._call: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)

    def __call__(self, *arguments: Any) -> Any:
        """Run the loop; return an integer, a tuple of integers, or None."""
        block = self._block()
        entry = 0
        for dtype, argument in zip(self._dtypes, arguments, strict=True):
            if dtype is None:
                block[entry] = int(argument)
                entry += 1
                continue
            if argument.dtype != dtype or not argument.flags.c_contiguous:
                raise TypeError(
                    f"{self._name}: got an array of {argument.dtype}, must be contiguous and of {dtype}"
                )
            block[entry] = argument.ctypes.data
            block[entry + 1] = len(argument)
            entry += 2
        self._call(ctypes.addressof(block))
        if self._results == 1:
            return block[0]
        return tuple(block[: self._results]) if self._results else None


@final
class Loops:
    """All loops of :data:`~tokenlake.etl.tokenizers.words.signatures.SIGNATURES`.

    Args:
        machine_code: An object file of LLVM with a function for each loop, named by
            :func:`symbol_of`.
    """

    def __init__(self, machine_code: bytes) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        abort = llvm.address_of_symbol("abort")
        for symbol in _ERROR_PATHS:
            if llvm.address_of_symbol(symbol) is None:
                llvm.add_symbol(symbol, abort)
        target = llvm.Target.from_triple(llvm.get_process_triple())
        # The engine owns the code, so it has to stay alive.
        self._engine: Any = llvm.create_mcjit_compiler(
            llvm.parse_assembly(""), target.create_target_machine(jit=True)
        )
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(machine_code))
        self._engine.finalize_object()
        for name, signature in SIGNATURES.items():
            address = self._engine.get_function_address(symbol_of(name))
            setattr(self, name, Loop(name, signature, address))


_LOADED: list[Loops] = []
_ONE_THREAD: Final = Lock()


def loops() -> Any:
    """Return the loops, compiled once for each machine and loaded once for each
    process.

    Raises:
        ImportError: numba is not installed, and nothing was compiled before.
        RuntimeError: numba cannot compile the loops, or LLVM cannot load them.
    """
    with _ONE_THREAD:
        if not _LOADED:
            _LOADED.append(Loops(machine_code()))
        return _LOADED[0]


def is_compiled() -> bool:
    """Whether this machine has compiled the loops before, so that they start at
    once.
    """
    try:
        return bool(_LOADED) or _kept_code(_file_name()) is not None
    except (ImportError, PackageNotFoundError):
        return False


def machine_code() -> bytes:
    """Return the object file: a kept one, or one that is compiled now.

    Processes that start together on a new machine wait for the first of them to
    compile.

    Raises:
        ImportError: numba is not installed, and nothing was compiled before.
        RuntimeError: numba cannot compile the loops.
    """
    name = _file_name()
    code = _kept_code(name)
    if code is not None:
        return code
    with _turn():
        code = _kept_code(name)
        if code is not None:
            return code
        code = _compile()
        for folder in code_folders():
            if write_code(folder / name, code):
                break
    return code


@contextmanager
def _turn() -> Generator[None]:
    """Hold the lock of the first folder that can be locked; where there is none,
    processes do not wait.
    """
    with ExitStack() as stack:
        for folder in code_folders():
            try:
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(folder))
            except (OSError, StoreError):
                continue
            break
        yield


def _compile() -> bytes:
    """Compile the loops.

    Raises:
        ImportError: numba is not installed.
        RuntimeError: numba cannot compile them.
    """
    from tokenlake.etl.tokenizers.words.native_compiler import compile_loops

    try:
        return compile_loops()
    # Some of numba's parts that are used have no stable interface.
    except Exception as error:
        raise RuntimeError(
            f"numba {version('numba')} does not compile its loops ({error!r})"
        ) from error


def _kept_code(name: str) -> bytes | None:
    """Return the object file that was compiled before, or None."""
    for folder in code_folders():
        code = read_code(folder / name)
        if code is not None:
            return code
    return None


def _file_name() -> str:
    """Return the name of the object file for this processor."""
    import llvmlite.binding as llvm

    return f"words-{_identity(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())}.o"


def _identity(*facts: str) -> str:
    """Return a hash of everything that the machine code depends on."""
    digest = hashlib.sha256()
    for fact in (
        *facts,
        platform.python_version(),
        version("numba"),
        version("llvmlite"),
    ):
        digest.update(fact.encode() + b"\n")
    root = Path(__file__).parent.parent
    for source in _SOURCES:
        digest.update((root / source).read_bytes())
    return digest.hexdigest()[:32]


def code_folders() -> Iterator[Path]:
    """Yield the folders where the file may lie, in order of preference."""
    if __spec__.cached is not None:
        yield Path(__spec__.cached).parent
    yield default_folder() / "kernels"


def read_code(path: Path) -> bytes | None:
    """Return a kept object file, or None where there is none that can be trusted."""
    try:
        with path.open("rb") as file:
            if not _is_ours(os.fstat(file.fileno())):
                return None
            content = file.read()
    except OSError:
        return None
    digest = content[:_DIGEST_BYTES]
    code = content[_DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _is_ours(status: os.stat_result) -> bool:
    """Whether a file belongs to this user (or to root, as installed files do), and
    nobody else can write it.
    """
    if not hasattr(os, "geteuid"):
        return True
    is_owned = status.st_uid in (os.geteuid(), 0)
    return is_owned and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def write_code(path: Path, code: bytes) -> bool:
    """Keep an object file; return whether that was possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    except OSError:
        return False
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        return False
    return True
