"""Memory is used again only when nobody refers to it."""

from __future__ import annotations

import threading

import numpy as np

from tokenlake.loader.buffers import ALIGNMENT, Buffers


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def test_memory_comes_back_when_it_is_let_go():
    buffers = Buffers()
    first = buffers.array((4, 1000), np.int32)
    where = address(first)
    del first
    assert address(buffers.array((4, 1000), np.int32)) == where


def test_what_is_kept_in_any_form_is_never_handed_out_again():
    buffers = Buffers()
    forms = {
        "array": lambda array: array,
        "slice": lambda array: array[1:2],
        "other type": lambda array: array.view(np.uint8)[5:],
        "transposed": lambda array: array.T,
        "memoryview": memoryview,
        "part of one": lambda array: memoryview(array)[2:],
        "dlpack": lambda array: np.from_dlpack(array),
        "in a closure": lambda array: lambda: array,
    }
    kept, taken = {}, set()
    for name, form in forms.items():
        array = buffers.array((8, 64), np.int32)
        assert address(array) not in taken, name
        taken.add(address(array))
        array[...] = len(kept)
        kept[name] = form(array)
        del array
    for _ in range(100):
        array = buffers.array((8, 64), np.int32)
        assert address(array) not in taken
        array[...] = -1
    assert (np.asarray(kept["slice"]) == 1).all()
    assert (np.asarray(kept["memoryview"]) == 4).all()


def test_arrays_are_aligned_whole_and_of_what_was_asked_for():
    buffers = Buffers()
    for shape, kind in (((3, 5), np.int32), ((7,), np.bool_), ((0, 4), np.int32), ((2, 3, 4), np.int64)):
        array = buffers.array(shape, kind)
        assert array.shape == shape
        assert array.dtype == kind
        assert array.flags.c_contiguous and array.flags.writeable
        assert array.size == 0 or address(array) % ALIGNMENT == 0


def test_threads_never_share():
    buffers, wrong = Buffers(), []

    def work(mark: int) -> None:
        for _ in range(300):
            array = buffers.array((64,), np.int64)
            array[...] = mark
            if (array != mark).any():
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
