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
# Bytes of a sha256.
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
        name: Name of the loop, for messages.
        signature: Types of its parameters, and the number of its results.
        address: Address of its machine code.
    """

    def __init__(self, name: str, signature: Signature, address: int) -> None:
        self._name = name
        # None stands for a number, which fills one entry of the block. An array fills
        # two. The results are written to the same entries, so they need room as well.
        self._dtypes: list[np.dtype[Any] | None] = []
        entry_count = 0
        for parameter in signature.parameters:
            if parameter == NUMBER:
                self._dtypes.append(None)
                entry_count += 1
            else:
                self._dtypes.append(np.dtype(parameter.removesuffix("x2")))
                entry_count += 2
        self._results = signature.results
        self._block: Any = ctypes.c_int64 * max(entry_count, signature.results)
        self._call: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)

    def __call__(self, *arguments: Any) -> Any:
        """Run the loop; return an integer, a tuple of integers, or None."""
        # 1. Fill the block. An array of another type or layout would be read as wrong
        #    numbers, because machine code checks nothing.
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

        # 2. Run the loop, which writes its results over the arguments.
        self._call(ctypes.addressof(block))
        if self._results == 0:
            return None
        if self._results == 1:
            return block[0]
        return tuple(block[: self._results])


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
        # Every symbol of the object file must exist, or it does not load.
        abort = llvm.address_of_symbol("abort")
        for symbol in _ERROR_PATHS:
            if llvm.address_of_symbol(symbol) is None:
                llvm.add_symbol(symbol, abort)
        target = llvm.Target.from_triple(llvm.get_process_triple())
        # The engine owns the code, so it has to stay alive.
        self._backend: Any = llvm.create_mcjit_compiler(
            llvm.parse_assembly(""), target.create_target_machine(jit=True)
        )
        self._backend.add_object_file(llvm.ObjectFileRef.from_data(machine_code))
        self._backend.finalize_object()
        for name, signature in SIGNATURES.items():
            address = self._backend.get_function_address(symbol_of(name))
            setattr(self, name, Loop(name, signature, address))


# The loops of this process, once they are loaded.
_LOADED: list[Loops] = []
_ONE_THREAD: Final = Lock()


def loops() -> Any:
    """Return the loops, compiled once per machine and loaded once per process.

    Raises:
        ImportError: numba is not installed, and nothing was compiled before.
        RuntimeError: numba cannot compile the loops, or LLVM cannot load them.
    """
    with _ONE_THREAD:
        if not _LOADED:
            _LOADED.append(Loops(machine_code()))
        return _LOADED[0]


def is_compiled() -> bool:
    """Whether this machine has compiled the loops before, and they start at once."""
    try:
        return bool(_LOADED) or _cached_code(_file_name()) is not None
    except (ImportError, PackageNotFoundError):
        return False


def machine_code() -> bytes:
    """Return the object file from the cache, or compile it.

    Processes that start together on a new machine wait for the first of them to
    compile.

    Raises:
        ImportError: numba is not installed, and nothing was compiled before.
        RuntimeError: numba cannot compile the loops.
    """
    file_name = _file_name()
    code = _cached_code(file_name)
    if code is not None:
        return code
    with _turn():
        # Another process may have compiled while this one waited.
        code = _cached_code(file_name)
        if code is not None:
            return code
        code = _compile()
        for folder in code_folders():
            if write_code(folder / file_name, code):
                break
    return code


@contextmanager
def _turn() -> Generator[None]:
    """Hold the lock of the first folder that can be locked.

    If none can, processes do not wait for each other, and each one compiles.
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
    # Some of the parts of numba that are used have no stable interface. So any error
    # means that this version of numba cannot be used.
    except Exception as error:
        raise RuntimeError(
            f"numba {version('numba')} does not compile its loops ({error!r})"
        ) from error


def _cached_code(file_name: str) -> bytes | None:
    """Return the object file that was compiled before, or None."""
    for folder in code_folders():
        code = read_code(folder / file_name)
        if code is not None:
            return code
    return None


def _file_name() -> str:
    """Return the name of the object file for this processor."""
    import llvmlite.binding as llvm

    processor = llvm.get_host_cpu_name()
    features = llvm.get_host_cpu_features().flatten()
    return f"words-{_identity(processor, features)}.o"


def _identity(processor: str, features: str) -> str:
    """Return a hash of everything that the machine code depends on."""
    digest = hashlib.sha256()
    for line in (
        processor,
        features,
        platform.python_version(),
        version("numba"),
        version("llvmlite"),
    ):
        digest.update(line.encode() + b"\n")
    root = Path(__file__).parent.parent
    for source in _SOURCES:
        digest.update((root / source).read_bytes())
    return digest.hexdigest()[:32]


def code_folders() -> Iterator[Path]:
    """Yield the folders where the file may lie, in order of preference."""
    # The folder of compiled modules is shared by all users of an installation.
    if __spec__.cached is not None:
        yield Path(__spec__.cached).parent
    yield default_folder() / "kernels"


def read_code(path: Path) -> bytes | None:
    """Return a cached object file, or None if none can be trusted."""
    try:
        with path.open("rb") as code_file:
            # The open file is examined, because a path may be replaced in between.
            if not _is_ours(os.fstat(code_file.fileno())):
                return None
            content = code_file.read()
    except OSError:
        return None
    digest = content[:_DIGEST_BYTES]
    code = content[_DIGEST_BYTES:]
    if hashlib.sha256(code).digest() != digest:
        return None
    return code


def _is_ours(status: os.stat_result) -> bool:
    """Whether a file belongs to this user or to root, and nobody else can write it.

    Root owns the files of an installation.
    """
    # Windows has no such owners; there the folder belongs to the user.
    if not hasattr(os, "geteuid"):
        return True
    is_owned = status.st_uid in (os.geteuid(), 0)
    return is_owned and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def write_code(path: Path, code: bytes) -> bool:
    """Store an object file, and return whether that was possible."""
    # A temporary file is renamed, so that no other process reads half of it.
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary_name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    except OSError:
        return False
    temporary = Path(temporary_name)
    try:
        with os.fdopen(handle, "wb") as code_file:
            code_file.write(hashlib.sha256(code).digest() + code)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        return False
    return True
