"""The process that renders templates for this one.

Nothing inside Python stops a program that is in C code. So templates run in a process
of their own (:mod:`tokenlake.etl.text.chat_server`), whose time and memory the kernel
limits. It has no environment, sees the end of its input when this process ends, and is
replaced after a template ended it.

A line of JSON requests goes in, and a line of JSON comes out for every one of them. A
process that does not know a template yet gets its opening first.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, cast, final

from tokenlake.errors import BadRecordError, ConfigError, WorkerDiedError, to_json
from tokenlake.etl.text.chat_protocol import (
    LIMIT,
    NO_DATA,
    OUT_OF_MEMORY,
    Limits,
    template_error,
)

Answer = dict[str, Any]

# Requests that are sent at a time. A pipe takes 64 KiB: the process reads while this one
# writes, but answers only after a whole line.
_MOST_REQUESTS: Final = 64
_MOST_BYTES: Final = 1 << 18
_MOST_TEMPLATES: Final = 64
"""Number of templates that one process knows before it is replaced."""
_MOST_DEATHS: Final = 3
"""Number of conversations in a row that may end a process; then the template is wrong."""
_PACKAGES: Final = ("tokenlake", "jinja2", "markupsafe")
_PROGRAM: Final = "import sys; sys.path += sys.argv[1:]; from tokenlake.etl.text.chat_server import main; main()"


@final
@dataclass(slots=True)
class OpenTemplate:
    """A template for the process.

    Attributes:
        name: Name of the template in requests.
        opening: Request by which a process gets to know the template.
        limits: Limits of a rendering.
        deaths: Number of its conversations in a row that ended a process.
    """

    name: str
    opening: bytes
    limits: Limits
    deaths: int = 0


@final
@dataclass(frozen=True, slots=True)
class _Exchange:
    """The answers to some requests.

    Attributes:
        answers: Answers that came, in the order of the requests.
        problem: Problem of the template if it ended the process before it answered them
            all; "" otherwise.
    """

    answers: list[Answer]
    problem: str


@final
class RenderProcess:
    """The process that renders for this one.

    Threads may use it, one after the other.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._opened: set[str] = set()
        self._lock = threading.Lock()

    def ask(self, template: OpenTemplate, requests: Sequence[bytes]) -> list[Answer]:
        """Return the answer to each request; ``{"error"}`` for one that failed.

        Raises:
            ConfigError: The template ends every process.
        """
        answers: list[Answer] = []
        with self._lock:
            while len(answers) < len(requests):
                next_requests = _next_requests(requests, len(answers))
                exchange = self._exchange(template, next_requests)
                answers += exchange.answers
                if exchange.answers:
                    template.deaths = 0
                # A template that answers once more is not hopeless.
                if not exchange.problem:
                    continue
                # The request after the last answer ended the process.
                template.deaths += 1
                error = template_error(BadRecordError, exchange.problem, reason=LIMIT)
                answers.append({"error": to_json(error)})
                if template.deaths >= _MOST_DEATHS:
                    raise template_error(
                        ConfigError,
                        f"{exchange.problem}, as on the {_MOST_DEATHS - 1} previous conversations",
                    )
        return answers

    def close(self) -> None:
        """End the process; another begins when one is needed."""
        # The name is dropped first: an error below must not leave a dead process in
        # use.
        process = self._process
        self._process = None
        self._opened.clear()
        if process is not None:
            process.kill()
            process.communicate()

    def forget(self) -> None:
        """Leave the process to the parent, after a fork of this one."""
        if self._process is not None:
            # It is no child of this process, which must not wait for it.
            self._process.returncode = 0
        self._process = None
        self._opened = set()
        self._lock = threading.Lock()

    def _exchange(self, template: OpenTemplate, requests: Sequence[bytes]) -> _Exchange:
        """Send requests and read their answers."""
        # 1. The opening comes first in a process that does not know the template.
        process = self._started()
        is_known = template.name in self._opened or requests[0] is template.opening
        lines = list(requests) if is_known else [template.opening, *requests]
        answers: list[Answer] = []
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            # 2. All requests are one line. The name of the template becomes the first
            #    item of each, in the place of its opening bracket.
            name_item = b'["%s", ' % template.name.encode()
            named_requests = b", ".join([name_item + line[1:] for line in lines])
            process.stdin.write(b"[" + named_requests + b"]\n")
            process.stdin.flush()
            self._opened.add(template.name)
            # 3. A line comes back for each, up to the end of the process.
            for line in itertools.islice(process.stdout, len(lines)):
                answers.append(json.loads(line))
        except (BrokenPipeError, json.JSONDecodeError):
            pass  # the process ended, perhaps within a line
        except BaseException:
            self.close()  # Ctrl-C: later answers would belong to no request
            raise
        problem = ""
        if len(answers) < len(lines):
            problem = self._problem_of_end(process, template.limits)
        # The answer to the opening is not one to a request.
        return _Exchange(answers[len(lines) - len(requests) :], problem)

    def _started(self) -> subprocess.Popen[bytes]:
        """Return the process.

        It is a new one where it has ended, or knows too many templates.
        """
        has_ended = self._process is not None and self._process.poll() is not None
        if has_ended or len(self._opened) >= _MOST_TEMPLATES:
            self.close()
        if self._process is None:
            # Isolated, without site packages and without an environment: a template
            # finds nothing of this process.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, *_package_folders()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={},
                start_new_session=True,  # Ctrl-C reaches this process alone
            )
        return self._process

    def _problem_of_end(self, process: subprocess.Popen[bytes], limits: Limits) -> str:
        """Return the problem of a template that ended its process.

        Raises:
            WorkerDiedError: The process ended for another reason.
        """
        exit_code = process.wait()
        self.close()
        if exit_code == -signal.SIGXCPU:
            return f" took more than {limits.seconds} seconds of a processor"
        if exit_code == OUT_OF_MEMORY:
            return f" took more than {limits.memory >> 20:,} MiB of memory"
        # A negative code is the number of a signal.
        cause = f"with exit code {exit_code}"
        if exit_code < 0:
            cause = f"by {signal.Signals(-exit_code).name}"
        raise WorkerDiedError(
            f"the process that runs the chat template was ended {cause}"
        )


def _package_folders() -> list[str]:
    """Return the folders of the packages that the process imports.

    They come behind Python's own folders; neither the working directory nor the
    caller's are among them.
    """
    # A dict keeps the order, and drops folders that packages share.
    folders: dict[str, None] = {}
    for package in _PACKAGES:
        module_spec = find_spec(package)
        assert module_spec is not None
        folders[str(Path(str(module_spec.origin)).parents[1])] = None
    return list(folders)


def _next_requests(requests: Sequence[bytes], first: int) -> Sequence[bytes]:
    """Return the requests from `first` on that are sent at a time.

    They are at least one, and not too many or too long.
    """
    candidates = requests[first : first + _MOST_REQUESTS]
    request_count = 0
    for total_bytes in itertools.accumulate(map(len, candidates)):
        if total_bytes > _MOST_BYTES:
            break
        request_count += 1
    return candidates[: max(1, request_count)]


def request(operation: str, *arguments: Any) -> bytes:
    """Return a request in JSON.

    A value that is no JSON is replaced by the name of its type.

    Raises:
        BadRecordError: The arguments are nested too deep.
    """
    try:
        return json.dumps([operation, *arguments], default=_json_of).encode()
    except (RecursionError, ValueError) as error:
        raise BadRecordError(
            f"the conversation is not plain data: {error}", reason="template_error"
        ) from error


def _json_of(value: Any) -> Any:
    """Return a mapping as a dict, and the name of the type of any other value."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    return {NO_DATA: type(value).__name__}


PROCESS: Final = RenderProcess()
"""The rendering process of this one."""
# The process ends with this one. A forked child leaves it to its parent.
atexit.register(PROCESS.close)
os.register_at_fork(after_in_child=PROCESS.forget)
