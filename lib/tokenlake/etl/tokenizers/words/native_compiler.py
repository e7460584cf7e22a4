"""Compile the loops of the cached words to one object file.

:mod:`tokenlake.etl.tokenizers.words.native` stores and loads it.
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
# Columns of an array of type "uint64x2".
_COLUMNS: Final = 2
# LLVM's level -O3.
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

    # 1. Compile each loop to an LLVM module whose function has the loop's symbol.
    modules: list[Any] = []
    for loop_name, signature in SIGNATURES.items():
        entry = _entry_of(signature, _loop(signature.module, loop_name))
        # numba's own name of the function is made of its types.
        assembly = entry.inspect_llvm().replace(entry.native_name, symbol_of(loop_name))
        modules.append(llvm.parse_assembly(assembly))

    # 2. Link the modules, and compile the whole for this processor.
    linked = modules[0]
    for module in modules[1:]:
        linked.link_in(module)
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=_OPTIMIZE,
        reloc="default",
        codemodel="jitdefault",
        jit=True,
    )
    return machine.emit_object(linked)


def _loop(module: str, name: str) -> Any:
    """Return a loop that is compiled anew.

    Machine code that numba has on disk may be outdated: it does not depend on functions
    of other files that a loop calls.
    """
    cached_loop: Any = getattr(_MODULES[module], name)
    return njit(cached_loop.py_func)


def _entry_of(signature: Signature, loop: Any) -> Any:
    """Return a C function that takes the block of arguments and runs a loop."""
    # 1. An intrinsic that turns the block into a tuple of numbers and arrays.
    parameters = [_numba_type(parameter) for parameter in signature.parameters]
    arguments_type: Any = types.Tuple(parameters)

    def read_arguments(_context: Any, block: Any) -> Any:
        def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            reader = _BlockReader(context, builder, args[0])
            arguments = [reader.read(parameter) for parameter in parameters]
            return context.make_tuple(builder, arguments_type, arguments)

        return arguments_type(block), codegen

    arguments_of: Any = intrinsic(read_arguments)

    # 2. A function for each number of results: a loop returns a tuple only if it has
    #    several.
    block_type: Any = types.void(types.CPointer(types.int64))
    results = signature.results
    if results == 0:

        @cfunc(block_type)
        def run_without_result(block: Any) -> None:
            loop(*arguments_of(block))

        return run_without_result
    if results == 1:

        @cfunc(block_type)
        def run_for_one_result(block: Any) -> None:
            block[0] = loop(*arguments_of(block))

        return run_for_one_result

    @cfunc(block_type)
    def run_for_results(block: Any) -> None:
        loop_results = loop(*arguments_of(block))
        for number in range(results):
            block[number] = loop_results[number]

    return run_for_results


class _BlockReader:
    """Reader of the arguments in a block, one after the other.

    Args:
        context: Target context of numba.
        builder: LLVM builder of the function that reads.
        block: Pointer to the first entry.
    """

    def __init__(self, context: Any, builder: Any, block: Any) -> None:
        self._context = context
        self._builder = builder
        self._block = block
        self._entry = 0

    def read(self, argument_type: Any) -> Any:
        """Return the next argument."""
        if not isinstance(argument_type, types.Array):
            return self._read_number()
        # An array has an address and a length, and C order.
        address = self._read_number()
        length = self._read_number()
        item_bytes = argument_type.dtype.bitwidth // _BITS_PER_BYTE
        shape = [length]
        strides = [self._constant(item_bytes)]
        if argument_type.ndim == _COLUMNS:
            shape = [length, self._constant(_COLUMNS)]
            strides = [
                self._constant(_COLUMNS * item_bytes),
                self._constant(item_bytes),
            ]
        array = self._context.make_array(argument_type)(self._context, self._builder)
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
        """Return the number in the next entry."""
        index = ir.Constant(ir.IntType(64), self._entry)
        self._entry += 1
        return self._builder.load(self._builder.gep(self._block, [index]))

    def _constant(self, value: int) -> Any:
        return self._context.get_constant(types.intp, value)


def _numba_type(parameter: str) -> Any:
    """Return numba's type of a parameter."""
    if parameter == NUMBER:
        return types.int64
    dimensions = 1
    if parameter.endswith("x2"):
        dimensions = 2
    item_type: Any = getattr(types, parameter.removesuffix("x2"))
    return types.Array(item_type, dimensions, "C")
