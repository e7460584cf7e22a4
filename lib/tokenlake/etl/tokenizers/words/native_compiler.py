"""Compile the loops of the cached words to one object file, see
:mod:`tokenlake.etl.tokenizers.words.native`.
"""

from __future__ import annotations

from typing import Any, Final

import llvmlite.binding as llvm
from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from tokenlake.etl.tokenizers import segment_kernels, unigram_kernels
from tokenlake.etl.tokenizers.words import kernels
from tokenlake.etl.tokenizers.words.signatures import (
    NUMBER,
    SIGNATURES,
    Signature,
    symbol_of,
)

_BITS_PER_BYTE: Final = 8
_COLUMNS: Final = 2
_OPTIMIZE: Final = 3
_MODULES: Final = {
    "segment_kernels": segment_kernels,
    "unigram_kernels": unigram_kernels,
    "words.kernels": kernels,
}


def compile_loops() -> bytes:
    """Return an object file for this processor with a function for each loop."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    modules: list[Any] = []
    for name, signature in SIGNATURES.items():
        entry = _entry_of(signature, _loop(signature.module, name))
        # The text of the module calls the function by a name that is made of its types.
        text = entry.inspect_llvm().replace(entry.native_name, symbol_of(name))
        modules.append(llvm.parse_assembly(text))
    whole = modules[0]
    for module in modules[1:]:
        whole.link_in(module)
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=_OPTIMIZE,
        reloc="default",
        codemodel="jitdefault",
        jit=True,
    )
    return machine.emit_object(whole)


def _loop(module: str, name: str) -> Any:
    """Return a loop as numba compiles it.

    It is compiled anew: what numba keeps on disk does not depend on the functions of
    other files that a loop calls.
    """
    defined: Any = getattr(_MODULES[module], name)
    return njit(defined.py_func)


def _entry_of(signature: Signature, loop: Any) -> Any:
    """Return a C function that takes the block of arguments and runs a loop."""
    parameters = [_numba_type(parameter) for parameter in signature.parameters]
    arguments_type: Any = types.Tuple(parameters)

    def read_arguments(_context: Any, block: Any) -> Any:
        def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            reader = _BlockReader(context, builder, args[0])
            return context.make_tuple(
                builder, arguments_type, [reader.read(kind) for kind in parameters]
            )

        return arguments_type(block), codegen

    arguments_of: Any = intrinsic(read_arguments)
    block_type: Any = types.void(types.CPointer(types.int64))
    results = signature.results
    if results == 0:

        @cfunc(block_type)
        def run_for_nothing(block: Any) -> None:
            loop(*arguments_of(block))

        return run_for_nothing
    if results == 1:

        @cfunc(block_type)
        def run_for_one(block: Any) -> None:
            block[0] = loop(*arguments_of(block))

        return run_for_one

    @cfunc(block_type)
    def run_for_some(block: Any) -> None:
        made = loop(*arguments_of(block))
        for number in range(results):
            block[number] = made[number]

    return run_for_some


class _BlockReader:
    """Reads arguments from a block, one after the other.

    Args:
        context, builder: Of numba and LLVM.
        block: Pointer to the first entry.
    """

    def __init__(self, context: Any, builder: Any, block: Any) -> None:
        self._context = context
        self._builder = builder
        self._block = block
        self._entry = 0

    def read(self, kind: Any) -> Any:
        """Return the next argument."""
        if not isinstance(kind, types.Array):
            return self._read_number()
        address = self._read_number()
        length = self._read_number()
        item_bytes = kind.dtype.bitwidth // _BITS_PER_BYTE
        shape = [length]
        strides = [self._constant(item_bytes)]
        if kind.ndim == _COLUMNS:
            shape = [length, self._constant(_COLUMNS)]
            strides = [
                self._constant(_COLUMNS * item_bytes),
                self._constant(item_bytes),
            ]
        array = self._context.make_array(kind)(self._context, self._builder)
        populate_array(
            array,
            data=self._builder.inttoptr(address, array.data.type),
            shape=shape,
            strides=strides,
            itemsize=self._constant(item_bytes),
            meminfo=None,
        )
        return array._getvalue()

    def _read_number(self) -> Any:
        index = ir.Constant(ir.IntType(64), self._entry)
        self._entry += 1
        return self._builder.load(self._builder.gep(self._block, [index]))

    def _constant(self, value: int) -> Any:
        return self._context.get_constant(types.intp, value)


def _numba_type(parameter: str) -> Any:
    if parameter == NUMBER:
        return types.int64
    is_paired = parameter.endswith("x2")
    item: Any = getattr(types, parameter.removesuffix("x2"))
    return types.Array(item, _COLUMNS if is_paired else 1, "C")
