"""Jobs and answers as lines of JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tokenlake.base.typed_json import converted, decoder
from tokenlake.errors import WorkerError
from tokenlake.etl.job.messages import (
    BackendJob,
    Job,
    MixJob,
    PreflightJob,
    RepackJob,
    SecretBlocks,
    SignJob,
    UnitJob,
    WarmJob,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAnswer:
    """Line that a worker writes.

    A job has any number of lines with `progress`, then one with `rss` and either
    `result` or `error`.

    Attributes:
        progress: Increments since the last line; any line may have them.
        result: Result of the job, as JSON.
        error: Error of the job, as :func:`tokenlake.errors.to_json` makes it.
        rss: Resident bytes of the worker.
    """

    progress: dict[str, int] | None = None
    result: Any = None
    error: dict[str, Any] | None = None
    rss: int = 0


_CLASSES: Final[dict[str, Any]] = {
    "unit": UnitJob,
    "mix": MixJob,
    "repack": RepackJob,
    "engine": BackendJob,
    "preflight": PreflightJob,
    "sign": SignJob,
    "blocks": SecretBlocks,
    "warm": WarmJob,
}
"""Value of the field `op` to the class of the message."""


class _Envelope(msgspec.Struct):
    """Field that every message to a worker has."""

    op: str


def to_line(message: Job | SecretBlocks | WarmJob | WorkerAnswer) -> bytes:
    """Return a job or an answer as a line of JSON, with its line feed."""
    try:
        return msgspec.json.encode(message) + b"\n"
    except (UnicodeEncodeError, OverflowError):
        # The name of a file may hold bytes that are not UTF-8: Python's own JSON
        # escapes them.
        fields = msgspec.to_builtins(message, str_keys=True)
        return json.dumps(fields).encode() + b"\n"


def job_of(line: bytes) -> Job | SecretBlocks | WarmJob:
    """Return the job of a line.

    Raises:
        WorkerError: The line has a job of another release, which this one does not
            know.
    """
    # The field `op` names the class, with which the line is decoded and checked.
    try:
        envelope = decoder(_Envelope).decode(line)
        return decoder(_class_of(envelope.op)).decode(line)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # The line has escaped bytes that are not UTF-8, see `to_line`.
        fields = json.loads(line)
        return converted(fields, _class_of(fields["op"]), str_keys=True)


def answer_of(line: bytes) -> WorkerAnswer:
    """Return the answer of a line."""
    try:
        return decoder(WorkerAnswer).decode(line)
    except msgspec.DecodeError:
        # Escaped bytes that are not UTF-8, as in `job_of`.
        return converted(json.loads(line), WorkerAnswer)


def _class_of(op: str) -> Any:
    """Return the class of a message, by its field `op`."""
    message_class = _CLASSES.get(op)
    if message_class is None:
        raise WorkerError(f"unknown job {op!r}; expected one of {', '.join(_CLASSES)}")
    return message_class
