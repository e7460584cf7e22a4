"""The one process that renders templates for this one: started when it is needed, ended and replaced when it must be.

A template is somebody's program, and nothing inside Python stops a program that is in C code. So it runs in a process
of its own, whose time and memory the kernel bounds (:class:`tokenlake.templates.rendered.Limits`). It has no
environment, and sees the end of its input when this process ends; where it is busy then, its time ends it.
"""

from __future__ import annotations

import atexit
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, cast, final

from tokenlake.errors import BadRecordError, ConfigError, WorkerDiedError, from_json, to_json
from tokenlake.templates.rendered import LIMIT, NO_DATA, OUT_OF_MEMORY, Lessons, Limits

Answer = dict[str, Any]

_MOST: Final = 64, 1 << 18  # requests at a time, and about how many bytes of them
_TEMPLATES: Final = 64  # that one process knows
_HOPELESS: Final = 3  # conversations in a row that ended the process
_NEEDED: Final = ("tokenlake", "jinja2", "markupsafe")
_BEGIN: Final = "import sys; sys.path += sys.argv[1:]; from tokenlake.templates.serving import main; main()"


@final
class Opening:
    """What a process must know of a template before it renders."""

    def __init__(
        self, text: str, variables: Mapping[str, Any], lessons: Lessons | None, limits: Limits
    ) -> None:
        given = {"text": text, "variables": variables, "limits": asdict(limits)}
        self.limits: Final = limits
        self.line: Final = request("open", {**given, "lessons": asdict(lessons) if lessons else None})
        self.name: Final = hashlib.sha256(self.line).hexdigest()[:16]
        self.ended = 0
        """How many of its conversations ended a process, since one did not."""


def request(op: str, *given: Any) -> bytes:
    """Return a request in JSON; what is no JSON in it is named by its type.

    Raises:
        BadRecordError: what is given is nested too deep.
    """
    try:
        return json.dumps([op, *given], default=_no_data).encode()
    except (RecursionError, ValueError) as error:
        raise BadRecordError(
            f"the conversation is no plain data: {error}", reason="template_error"
        ) from error


def _no_data(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    return {NO_DATA: type(value).__name__}


@final
class RenderProcess:
    """Asks the process; threads may, one after the other."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._opened: set[str] = set()
        self._lock = threading.Lock()

    def open(self, opening: Opening) -> Answer:
        """Compile a template, and return what it is.

        Raises:
            ConfigError: it cannot be used.
        """
        with self._lock:
            answers, ended = self._exchange(opening, [opening.line])
        if ended:
            raise ConfigError(f"the chat template cannot be compiled: {ended}")
        return _usable(answers[0])

    def ask(self, opening: Opening, requests: Sequence[bytes]) -> list[Answer]:
        """Return the answer to each request; ``{"error"}`` where there is none.

        Raises:
            ConfigError: the template ends every process.
        """
        done: list[Answer] = []
        with self._lock:
            while len(done) < len(requests):
                answers, ended = self._exchange(opening, _some(requests[len(done) :]))
                done += answers
                opening.ended = bool(ended) + (0 if answers else opening.ended)
                if ended:
                    done.append({"error": to_json(BadRecordError(ended, reason=LIMIT))})
                if opening.ended >= _HOPELESS:
                    raise ConfigError(f"{ended}, and so it did on the {_HOPELESS - 1} conversations before")
        return done

    def close(self) -> None:
        """End the process; another begins where one is needed."""
        process, self._process = self._process, None
        self._opened.clear()
        if process is not None:
            process.kill()
            process.communicate()

    def forget(self) -> None:
        """Leave the process to the one that this one is a fork of."""
        if self._process is not None:
            self._process.returncode = 0  # not a child of this one, to be waited for
        self._process, self._opened, self._lock = None, set(), threading.Lock()

    def _exchange(self, opening: Opening, requests: Sequence[bytes]) -> tuple[list[Answer], str]:
        """Return the answers that came, and how the process ended where some are missing."""
        answers: list[Answer] = []
        process = self._started()
        new = opening.name not in self._opened and requests[0] is not opening.line
        lines = [opening.line, *requests] if new else requests
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            named = (b'["%s", ' % opening.name.encode() + line[1:] for line in lines)
            process.stdin.write(b"[" + b", ".join(named) + b"]\n")
            process.stdin.flush()
            self._opened.add(opening.name)
            for line in itertools.islice(process.stdout, len(lines)):
                answers.append(json.loads(line))  # noqa: PERF401 (what came before an end counts)
        except (BrokenPipeError, json.JSONDecodeError):
            pass
        except BaseException:
            self.close()  # Ctrl-C: what it would still say is an answer to nothing
            raise
        ended = "" if len(answers) == len(lines) else _ending(self._end(), opening.limits)
        return answers[len(lines) - len(requests) :], ended

    def _started(self) -> subprocess.Popen[bytes]:
        if len(self._opened) >= _TEMPLATES or (
            self._process is not None and self._process.poll() is not None
        ):
            self.close()
        if self._process is None:
            # Behind Python's own folders; neither the working directory nor the caller's are among them.
            found = (str(find_spec(name).origin) for name in _NEEDED)  # pyright: ignore[reportOptionalMemberAccess]
            folders = dict.fromkeys(str(Path(file).parents[1]) for file in found)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BEGIN, *folders],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={},
                start_new_session=True,  # Ctrl-C reaches this process alone
            )
        return self._process

    def _end(self) -> int:
        """Return the exit code of a process that said its last."""
        process = self._process
        assert process is not None
        code = process.wait()
        self.close()
        return code


def _some(requests: Sequence[bytes]) -> Sequence[bytes]:
    most, size = _MOST
    sums = itertools.accumulate(map(len, requests[:most]))
    return requests[: max(1, sum(total <= size for total in sums))]


def _ending(code: int, limits: Limits) -> str:
    """Say what a template did that ended its process; WorkerDiedError where it did nothing."""
    if code == -signal.SIGXCPU:
        return f"the chat template came to more than {limits.seconds} seconds of a processor"
    if code == OUT_OF_MEMORY:
        return f"the chat template came to more than {limits.memory >> 20:,} MiB of memory"
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    raise WorkerDiedError(f"the process that runs the chat template was ended {how}")


def _usable(answer: Answer) -> Answer:
    if "error" in answer:
        raise from_json(answer["error"])
    return answer


PROCESS: Final = RenderProcess()
"""That of this process."""
atexit.register(PROCESS.close)
os.register_at_fork(after_in_child=PROCESS.forget)
