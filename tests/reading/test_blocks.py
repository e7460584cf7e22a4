"""Memory is used again only when nobody refers to it."""

from __future__ import annotations

import threading

import numpy as np

from tokenlake.runtime.reading import Blocks


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def test_memory_comes_back_when_it_is_let_go():
    blocks = Blocks()
    first = blocks.take(4000)
    where = address(first)
    del first
    assert address(blocks.take(4000)) == where


def test_what_is_kept_in_any_form_is_never_handed_out_again():
    blocks = Blocks()
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
        array = blocks.take(2048).view(np.int32).reshape(8, 64)
        assert address(array) not in taken, name
        taken.add(address(array))
        array[...] = len(kept)
        kept[name] = form(array)
        del array
    for _ in range(100):
        array = blocks.take(2048).view(np.int32).reshape(8, 64)
        assert address(array) not in taken
        array[...] = -1
    assert (np.asarray(kept["slice"]) == 1).all()
    assert (np.asarray(kept["memoryview"]) == 4).all()


def test_arrays_are_aligned_and_of_the_size_that_was_asked_for():
    """As XLA wants memory that it takes over without a copy."""
    for size in (1, 60, 1 << 20):
        array = Blocks().take(size)
        assert array.shape == (size,)
        assert array.flags.writeable
        assert address(array) % 64 == 0


def test_threads_never_share():
    blocks, wrong = Blocks(), []

    def work(mark: int) -> None:
        for _ in range(300):
            array = blocks.take(512).view(np.int64)
            array[...] = mark
            if (array != mark).any():
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
