"""What a failing storage is to a build: the errors of inputs."""

from __future__ import annotations

from typing import Final

from tokenlake.errors import SourceError, SourceNotFoundError
from tokenlake.store.remote.retry import Failures

OF_INPUTS: Final = Failures(
    option="data_files",
    failed=SourceError,
    missing=SourceNotFoundError,
    advice="run again: what is finished stays",
)
