"""The worker process: jobs in, answers out, as :mod:`tokenlake.etl.job` writes them.

Arguments: the file descriptors of the connection and of the note (:mod:`tokenlake.etl.pool`), and folders of a user's
own modules. An unexpected exception is an error of type ``WorkerError`` whose message ends with the traceback: a bug
should be seen, and the pool should live.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final, cast, final

from tokenlake.base.arrays import text_of_strings
from tokenlake.base.cache.disk import DiskCache, default_folder
from tokenlake.base.lazy_names import load
from tokenlake.base.secrets import hide, provide_blocks, scrub
from tokenlake.config.resolved import ResolvedTokenizer
from tokenlake.errors import ConfigError, StoreError, TokenlakeError, WorkerError, to_json
from tokenlake.etl import job as jobs
from tokenlake.etl.pool import NOTE_BYTES
from tokenlake.etl.step_clock import CLOCK
from tokenlake.etl.tokenizers.encoder import Encoder
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.etl.tokenizers.gate import choose_encoder, likely_encoder
from tokenlake.etl.unit.documents import Recipe
from tokenlake.etl.unit.text import TextBuild
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.base import Store, read_files
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import UnitRecord

if TYPE_CHECKING:  # what most jobs do without is imported where it is used: a worker begins sooner
    from tokenlake.etl.unit.opened_parents import OpenedParents


def main() -> None:
    """Serve jobs until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What `nohup` has ignored, and what ends a group that its parent left behind.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # In the background of a terminal; what a library writes to it must not stop the process.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    # Behind everything else: a user's own functions are found, and no module of ours or Python's is hidden by theirs.
    sys.path += sys.argv[3:]
    # Parsed JSON is millions of objects without a cycle among them: looking for one takes 15% of a build of chats.
    gc.set_threshold(200_000, 50, 50)
    parent = Connection(int(sys.argv[1]))
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(parent, waiting), daemon=True).start()

    voice = _Voice(parent)
    descriptor, numbers = int(sys.argv[2]), count(1)
    jobs.listen(lambda text: _note(descriptor, next(numbers), text))
    CLOCK.on_begin = lambda mark: os.pwrite(descriptor, mark, NOTE_BYTES)
    workbench = Workbench()
    while True:
        _answer(workbench, waiting.get(), voice)


def _receive(parent: Connection, waiting: queue.SimpleQueue[bytes]) -> None:
    """Queue incoming messages; the end of them means that the parent is gone or done with us."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            waiting.put(parent.recv_bytes())
    os._exit(0)


def _note(descriptor: int, number: int, text: str) -> None:
    """Write what the worker does next where the parent finds it even when this process is stuck in C code."""
    told = f"{number} {hide(text)}".encode(errors="backslashreplace")[: NOTE_BYTES - 1]
    os.pwrite(descriptor, told + b"\0", 0)


_OFTEN: Final = 0.1  # seconds between messages that only say how far a job is


@final
class _Voice:
    """What the worker says; progress waits for the next message where one has just been sent: each costs both sides."""

    def __init__(self, parent: Connection) -> None:
        self._parent = parent
        self._held: Counter[str] = Counter()
        self._last = 0.0

    def say(self, **answer: Any) -> None:
        """Send a message, with the progress that waits."""
        message = jobs.WorkerAnswer(progress=dict(self._held) or None, **answer)
        self._held.clear()
        self._parent.send_bytes(jobs.to_line(message))
        self._last = time.monotonic()

    def hold(self, fields: dict[str, int]) -> None:
        """Say what more is done with the next message."""
        self._held.update(fields)

    def progress(self, fields: dict[str, int]) -> None:
        """Say what more is done, now or with the next message."""
        self.hold(fields)
        if time.monotonic() - self._last > _OFTEN:
            self.say()


def _answer(workbench: Workbench, line: bytes, voice: _Voice) -> None:
    result, error = None, None
    try:
        CLOCK.clear()
        job = jobs.job_of(line)
        if isinstance(job, jobs.SecretBlocks):
            provide_blocks(job.values)
            return
        if isinstance(job, jobs.WarmJob):
            workbench.warm(job)
            return
        result = workbench.run(job, voice.progress)
    except TokenlakeError as wrong:
        error = _hidden(to_json(wrong))
    except MemoryError as wrong:  # Python, or Arrow, was refused memory
        why = f" ({wrong})" if str(wrong) else ""
        ended = WorkerError(
            f"a worker process got no more memory{why}; it was {jobs.last_told()}. Use fewer workers or smaller "
            "records, or raise the limit of memory that this runs under"
        )
        error = _hidden(to_json(ended))
    except BaseException:
        bug = scrub(f"unexpected error in a worker process; this is a bug:\n{traceback.format_exc()}")
        error = _hidden(to_json(WorkerError(bug)))
    if error is not None:
        CLOCK.fail()
    voice.hold(CLOCK.fields())
    voice.say(result=result, error=error, rss=_resident())


def _hidden(error: dict[str, Any]) -> dict[str, Any]:
    """Return an error without secrets: a message may quote another library's, and is logged and stored."""
    details = {
        key: hide(value) if isinstance(value, str) else value for key, value in error["details"].items()
    }
    return {**error, "message": hide(error["message"]), "details": details}


def _resident() -> int:
    """Resident bytes now (Linux), else the peak."""
    try:
        with open("/proc/self/statm", "rb") as stat:  # noqa: PTH123 - no Path needed in a hot loop
            return int(stat.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


#: Documents and bytes that the gate's probe takes from the start of a source, and of one document:
#: the reference encodes 4 MB/s, so this is a tenth of a second.
_PROBES_BYTES: Final = 16 << 20  # that are remembered
_PROBE_DOCUMENTS: Final = 200
_PROBE_BYTES: Final = 1 << 18
_PROBE_BYTES_EACH: Final = 1 << 14
_PROBE_BLOCK: Final = 1 << 20  # read and parsed at a time, until there are enough


JOBS_OF_PARTS: Final[Mapping[str, str]] = {"sign": "tokenlake.etl.clean.sign_unit:run_sign_job"}
"""Kind of a job of an optional part -> the function that does it, as ``module:name``. It is imported by the
first job of its kind. Its arguments are the job, its store, a dictionary for what it keeps between jobs, and a function
that is told the progress."""


@final
class Workbench:
    """What a worker process keeps between jobs: stores, tokenizers (slow to load), and manifests of parents."""

    def __init__(self) -> None:
        self._stores: dict[str, Store] = {}
        self._files: dict[tuple[tuple[str, str], ...], TokenizerFiles] = {}
        self._encoders: dict[tuple[Any, ...], Encoder] = {}
        self._kept: dict[Any, Any] = {}
        self._parents: OpenedParents | None = None
        self._probes = DiskCache(default_folder() / "probes", max_bytes=_PROBES_BYTES)

    def run(self, job: jobs.Job, progress: jobs.Progress) -> dict[str, Any] | str:
        """Do a job and return its result: the ledger record of a unit, sealed, or a verdict on an engine."""
        if isinstance(job, jobs.EngineJob):
            return self._choose_engine(job)
        if isinstance(job, jobs.PreflightJob):
            self._check_machine(job)
            return ""
        if isinstance(job, jobs.UnitJob):
            return self._build_unit(job, progress).to_bytes().decode()
        if isinstance(job, jobs.SignJob):
            run_job = load(JOBS_OF_PARTS[job.op], f"job {job.op!r}", "etl")
            return run_job(job, self._store(job.store), self._kept, progress)
        from tokenlake.etl.unit.mix import mix_unit
        from tokenlake.etl.unit.opened_parents import OpenedParents
        from tokenlake.etl.unit.repack import repack_unit

        self._parents = self._parents or OpenedParents()
        around = self._store(job.store), self._store(job.parents_store), self._parents, progress
        made = mix_unit(job, *around) if isinstance(job, jobs.MixJob) else repack_unit(job, *around)
        return made.to_bytes().decode()

    def warm(self, job: jobs.WarmJob) -> None:
        """Load the tokenizer and the engine that the gate is likely to choose.

        Whatever fails here fails again in the job that needs it, whose answer tells.
        """
        with contextlib.suppress(Exception):
            files = self._tokenizer(job)
            settings = job.source.tokenizer
            mode = Recipe(job.source, files).special_tokens_in_text
            encoder = likely_encoder(
                files, settings.engine, mode, job.size, add_special_tokens=settings.add_special_tokens
            )
            self._encoders[_encoder_key(files, encoder.engine, mode, settings)] = encoder
            # pyarrow imports pandas, where it is installed, for the first array that it makes of Python's values, and
            # gigatoken's engine awkward for the first text.
            text = text_of_strings([""])
            if encoder.engine == "gigatoken":
                encoder.encode(text)

    def _build_unit(self, job: jobs.UnitJob, progress: jobs.Progress) -> UnitRecord:
        """Build one unit and publish its parts; the caller publishes the record."""
        store = self._store(job.store)
        files = self._tokenizer(job)
        settings = job.source.tokenizer
        recipe = Recipe(job.source, files)
        mode = recipe.special_tokens_in_text
        key = _encoder_key(files, job.engine, mode, settings)
        if key not in self._encoders:
            self._encoders[key] = Encoder(
                files,
                engine=job.engine,
                special_tokens_in_text=mode,
                add_special_tokens=settings.add_special_tokens,
            )
        return TextBuild(job, store, self._encoders[key], recipe, progress).build()

    def _choose_engine(self, job: jobs.EngineJob) -> dict[str, Any]:
        """The gate's verdict for one source: ``{"engine", "reason"}``."""
        files = self._tokenizer(job)
        settings = job.source.tokenizer
        recipe = Recipe(job.source, files)
        mode = recipe.special_tokens_in_text
        sample = list(_first_documents(job, recipe))
        more = {"add_special_tokens": settings.add_special_tokens, "places": recipe.rendered}
        choice, encoder = choose_encoder(
            files, settings.engine, mode, sample, job.size, known=self._probes, **more
        )
        self._encoders[_encoder_key(files, choice.engine, mode, settings)] = encoder
        return {"engine": choice.engine, "reason": choice.reason}

    def _check_machine(self, job: jobs.PreflightJob) -> None:
        """Raise ConfigError where this machine makes other bytes, or reaches not all that it needs."""
        layout = Layout(job.dataset, job.version)
        whole = f"this machine ({socket.gethostname()}) cannot build {job.dataset}@v{job.version}"
        if different := jobs.other_versions(job.versions):
            raise ConfigError(
                f"{whole}, as its bytes would differ. It has {'; '.join(different)}. Install the same versions"
            )
        if not self._store(job.store).exists(layout.claim):
            raise ConfigError(
                f"{whole}: {job.store} has no {layout.claim} here. Every machine needs the same store under the same "
                "address"
            )
        if job.probe is None:
            return
        whole = f"{whole}, source {job.probe.source.name!r}"
        try:
            got = self._choose_engine(job.probe)
        except StoreError:
            raise
        except TokenlakeError as error:
            raise ConfigError(f"{whole}: {error}") from error
        if got["engine"] != job.engine:
            raise ConfigError(
                f"{whole}: its tokenizer engine is {got['engine']} ({got['reason']}), expected {job.engine}, which the "
                "plan has"
            )

    def _store(self, address: StoreAddress) -> Store:
        """Return an open store; its connections are kept."""
        key = repr((address.url, address.options))
        if key not in self._stores:
            self._stores[key] = open_store(address)
        return self._stores[key]

    def _tokenizer(self, job: jobs.UnitJob | jobs.EngineJob | jobs.WarmJob) -> TokenizerFiles:
        """Return a tokenizer's files, read from the store once, and the very ones that the plan saw."""
        key = tuple(sorted(job.tokenizer_files.items()))
        if key not in self._files:
            found = read_files(self._store(job.store), job.tokenizer, job.tokenizer_files)
            self._files[key] = TokenizerFiles(name=job.tokenizer, files=found)
        return self._files[key]


def _encoder_key(
    files: TokenizerFiles, engine: str, mode: str, settings: ResolvedTokenizer
) -> tuple[Any, ...]:
    return files.json_bytes, engine, mode, settings.add_special_tokens


def _first_documents(job: jobs.EngineJob, recipe: Recipe) -> Iterator[str]:
    """The beginnings of a source's first documents, up to 200; bad records are not our concern here."""
    size, number = 0, count(1)
    for part in job.ranges[:1]:
        for prepared in recipe.read(part, _PROBE_BLOCK):
            for value in prepared.documents.text:
                # Only the beginning becomes a string: the document may have 200 MB.
                text = str(memoryview(value.as_buffer())[:_PROBE_BYTES_EACH], "utf-8", "ignore")
                size += len(text)
                yield text
                if next(number) >= _PROBE_DOCUMENTS or size >= _PROBE_BYTES:
                    return


@final
class InProcessPool:
    """Stands in for a pool of workers in tests and profiles: this process does the jobs, after a trip through JSON.

    Args:
        workbench: to keep between pools; None: a new one.
    """

    workers = 1

    def __init__(self, workbench: Workbench | None = None) -> None:
        self._workbench = workbench or Workbench()

    def run(self, job: jobs.Job, on_progress: jobs.Progress = lambda fields: None) -> Any:
        """Do a job; errors are raised as they are."""
        told = cast("jobs.Job", jobs.job_of(jobs.to_line(job)))
        return jobs.answer_of(
            jobs.to_line(jobs.WorkerAnswer(result=self._workbench.run(told, on_progress), rss=1))
        ).result

    def expect(self, number: int, coming: object = None) -> None:
        """One process does all jobs, one after the other."""

    def cancel(self) -> None:
        """Nothing runs beside the caller."""


if __name__ == "__main__":
    main()
