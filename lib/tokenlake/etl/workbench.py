"""What a worker process can do: build a unit of texts or of stored rows, or judge an engine.

Tokenizers stay loaded between jobs, and parents open.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast, final

from tokenlake.config.resolved import ResolvedTokenizer
from tokenlake.etl.job import EngineJob, Job, MixJob, UnitJob, WorkerAnswer, answer_of, job_of, to_line
from tokenlake.etl.unit.mix import MixBuild, RepackBuild
from tokenlake.etl.unit.recipe import Recipe, open_recipe, special_mode
from tokenlake.etl.unit.stored_rows import OpenedParents
from tokenlake.etl.unit.text import Progress, TextBuild
from tokenlake.store.address import StoreAddress, open_store
from tokenlake.store.base import Store, read_files
from tokenlake.store.ledger import UnitRecord
from tokenlake.tokenizers.encoder import Encoder
from tokenlake.tokenizers.files import TokenizerFiles
from tokenlake.tokenizers.gate import choose_encoder

#: Documents and bytes that the gate's probe takes from the start of a source, and of one document:
#: the reference encodes 4 MB/s, so this is a tenth of a second.
_PROBE_DOCUMENTS: Final = 200
_PROBE_BYTES: Final = 1 << 18
_PROBE_BYTES_EACH: Final = 1 << 14


@final
class Workbench:
    """What a worker process keeps between jobs: stores, tokenizers (slow to load), and manifests of parents."""

    def __init__(self) -> None:
        self._stores: dict[str, Store] = {}
        self._files: dict[tuple[tuple[str, str], ...], TokenizerFiles] = {}
        self._encoders: dict[tuple[Any, ...], Encoder] = {}
        self._parents = OpenedParents()

    def run(self, job: Job, progress: Progress) -> dict[str, Any]:
        """Do a job and return its result as JSON: the record of a unit, or a verdict on an engine."""
        if isinstance(job, EngineJob):
            return self._choose_engine(job)
        if isinstance(job, UnitJob):
            return self._build_unit(job, progress).to_json()
        unit = MixBuild if isinstance(job, MixJob) else RepackBuild
        stores = self._store(job.store), self._store(job.parents_store)
        return unit(cast("Any", job), *stores, self._parents, progress).build().to_json()

    def _build_unit(self, job: UnitJob, progress: Progress) -> UnitRecord:
        """Build one unit and publish its parts; the caller publishes the record."""
        store = self._store(job.store)
        files = self._tokenizer(job)
        settings = job.source.tokenizer
        recipe = open_recipe(job.source, files)
        mode = special_mode(settings, recipe)
        key = _encoder_key(files, job.engine, mode, settings)
        if key not in self._encoders:
            self._encoders[key] = Encoder(
                files,
                engine=job.engine,
                special_tokens_in_text=mode,
                add_special_tokens=settings.add_special_tokens,
            )
        return TextBuild(job, store, self._encoders[key], recipe, progress).build()

    def _choose_engine(self, job: EngineJob) -> dict[str, Any]:
        """The gate's verdict for one source: ``{"engine", "reason"}``."""
        files = self._tokenizer(job)
        settings = job.source.tokenizer
        recipe = open_recipe(job.source, files)
        mode = special_mode(settings, recipe)
        sample = list(_first_documents(job, recipe))
        choice, encoder = choose_encoder(
            files,
            settings.engine,
            mode,
            sample,
            add_special_tokens=settings.add_special_tokens,
            places=recipe.rendered,
        )
        self._encoders[_encoder_key(files, choice.engine, mode, settings)] = encoder
        return {"engine": choice.engine, "reason": choice.reason}

    def _store(self, address: StoreAddress) -> Store:
        """Return an open store; its connections are kept."""
        key = repr((address.url, address.options))
        if key not in self._stores:
            self._stores[key] = open_store(address)
        return self._stores[key]

    def _tokenizer(self, job: UnitJob | EngineJob) -> TokenizerFiles:
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


def _first_documents(job: EngineJob, recipe: Recipe) -> Iterator[str]:
    """The beginnings of a source's first documents, up to 200; bad records are not our concern here."""
    size = count = 0
    for part in job.ranges[:1]:
        for prepared in recipe.read(part):
            for value in prepared.documents.text:
                # Only the beginning becomes a string: the document may have 200 MB.
                text = str(memoryview(value.as_buffer())[:_PROBE_BYTES_EACH], "utf-8", "ignore")
                size += len(text)
                count += 1
                yield text
                if count >= _PROBE_DOCUMENTS or size >= _PROBE_BYTES:
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

    def run(self, job: Job, on_progress: Progress = lambda fields: None) -> Any:
        """Do a job; errors are raised as they are."""
        told = cast("Job", job_of(to_line(job)))
        return answer_of(to_line(WorkerAnswer(result=self._workbench.run(told, on_progress), rss=1))).result

    def cancel(self) -> None:
        """Nothing runs beside the caller."""
