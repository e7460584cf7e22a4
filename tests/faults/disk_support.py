"""A small file system of our own, of which size, number of files and mode can be changed while it is in use."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

import pytest


@final
class SmallDisk:
    """A mounted tmpfs."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def change(self, options: str) -> None:
        """Change what it was mounted with: ``size=64k``, ``nr_inodes=20``, ``ro``."""
        _run("mount", "-o", f"remount,{options}", str(self.place))


@contextmanager
def small_disk(place: Path, options: str) -> Iterator[SmallDisk]:
    """Mount a tmpfs for as long as the context lasts; skips where that is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("a small file system is mounted, which needs root")
    place.mkdir()
    try:
        _run("mount", "-t", "tmpfs", "-o", options, "tokenlake-test", str(place))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no tmpfs can be mounted here: {getattr(error, 'stderr', error)}")
    try:
        yield SmallDisk(place)
    finally:
        try:
            _run("umount", str(place))
        except subprocess.CalledProcessError:
            _run("umount", "-l", str(place))
            raise


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
