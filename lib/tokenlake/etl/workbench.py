"""Jobs of a worker process, and everything that it keeps open between them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, final

from tokenlake.base.arrays import text_of_strings
from tokenlake.base.cache.disk import DiskCache, default_folder
from tokenlake.base.lazy_names import load
from tokenlake.config.resolved import ResolvedTokenizer
from tokenlake.errors import ConfigError, StoreError, TokenlakeError
from tokenlake.etl.job.activity import Progress
from tokenlake.etl.job.messages import (
    NO_BACKEND,
    REFERENCE,
    BackendJob,
    Job,
    MixJob,
    PreflightJob,
    RepackJob,
    SignJob,
    UnitJob,
    WarmJob,
)
from tokenlake.etl.job.versions import other_versions
from tokenlake.etl.tokenizers.encoder import Encoder
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.etl.tokenizers.gate import choose_encoder, likely_encoder
from tokenlake.etl.unit.documents import Recipe
from tokenlake.etl.unit.text import TextBuild
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.base import Store, read_files
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import UnitRecord

if TYPE_CHECKING:
    # Most jobs do without it, so that it is imported where it is used: a worker begins
    # sooner.
    from tokenlake.etl.unit.opened_parents import OpenedParents

_MOST_PROBES_BYTES: Final = 16 << 20
"""Largest size of the verdicts of the gate on disk."""

# The gate's probe takes documents from the start of a source, until it has enough of
# them. The reference encodes 4 MB/s, so that this takes a tenth of a second.
_PROBE_DOCUMENTS: Final = 200
_PROBE_BYTES: Final = 1 << 18
_PROBE_BYTES_OF_DOCUMENT: Final = 1 << 14
_PROBE_BLOCK_BYTES: Final = 1 << 20

JOBS_OF_PARTS: Final[Mapping[str, str]] = {
    "sign": "tokenlake.etl.clean.sign_unit:run_sign_job"
}
"""Kind of a job of an optional part to the function that runs it, as ``module:name``.

The module is imported by the first job of its kind. The arguments of the function are
the job, its store, a dictionary in which it may keep things between jobs, and a
function that receives the progress.
"""


@final
class Workbench:
    """Runner of jobs in one process.

    Stores, tokenizers and manifests of parents are slow to open, so they stay open
    between jobs.
    """

    def __init__(self) -> None:
        self._stores: dict[str, Store] = {}
        self._files: dict[tuple[tuple[str, str], ...], TokenizerFiles] = {}
        self._encoders: dict[tuple[Any, ...], Encoder] = {}
        self._kept: dict[Any, Any] = {}
        self._parents: OpenedParents | None = None
        self._probes = DiskCache(
            default_folder() / "probes", max_bytes=_MOST_PROBES_BYTES
        )

    def run(self, job: Job, progress: Progress) -> dict[str, Any] | str:
        """Run a job and return its result.

        Args:
            job: Job of any kind.
            progress: Function that receives the progress of the job.

        Returns:
            Ledger record of a unit, sealed; the verdict on a backend; or "".
        """
        # 1. Jobs before the units: the gate, and the check of a machine.
        if isinstance(job, BackendJob):
            progress({"begun": 1})
            return self._choose_backend(job)
        if isinstance(job, PreflightJob):
            self._check_machine(job)
            return ""

        # 2. Units.
        if isinstance(job, UnitJob):
            return self._build_unit(job, progress).to_bytes().decode()
        if isinstance(job, SignJob):
            run_job = load(JOBS_OF_PARTS[job.op], f"job {job.op!r}", "etl")
            return run_job(job, self._store(job.store), self._kept, progress)
        return self._build_from_parents(job, progress).to_bytes().decode()

    def warm(self, job: WarmJob) -> None:
        """Load the tokenizer and the backend that the gate will probably choose.

        An error is ignored: the job that needs them fails with it again, and reports
        it.
        """
        with contextlib.suppress(Exception):
            files = self._tokenizer(job)
            settings = job.source.tokenizer
            mode = Recipe(job.source, files).special_tokens_in_text
            encoder = likely_encoder(
                files,
                settings.engine,
                mode,
                job.size,
                add_special_tokens=settings.add_special_tokens,
            )
            encoder_key = _encoder_key(files, encoder.engine, mode, settings)
            self._encoders[encoder_key] = encoder
            # pyarrow imports pandas, where it is installed, for the first array that it
            # makes of Python's values, and gigatoken's backend awkward for the first
            # text.
            empty_text = text_of_strings([""])
            if encoder.engine == "gigatoken":
                encoder.encode(empty_text)

    def _build_unit(self, job: UnitJob, progress: Progress) -> UnitRecord:
        """Build one unit of texts and publish its parts.

        The caller publishes the record.
        """
        store = self._store(job.store)
        files = self._tokenizer(job)
        settings = job.source.tokenizer
        recipe = Recipe(job.source, files)
        mode = recipe.special_tokens_in_text
        backend = job.engine
        if backend == NO_BACKEND:
            # Nothing is encoded, but the special tokens of the tokenizer are used.
            backend = REFERENCE
        encoder_key = _encoder_key(files, backend, mode, settings)
        if encoder_key not in self._encoders:
            self._encoders[encoder_key] = Encoder(
                files,
                engine=backend,
                special_tokens_in_text=mode,
                add_special_tokens=settings.add_special_tokens,
            )
        return TextBuild(
            job, store, self._encoders[encoder_key], recipe, progress
        ).build()

    def _build_from_parents(
        self, job: MixJob | RepackJob, progress: Progress
    ) -> UnitRecord:
        """Build one unit of stored rows and publish its parts.

        The caller publishes the record.
        """
        # A worker of texts does not import all that mixes.
        from tokenlake.etl.unit.mix import mix_unit
        from tokenlake.etl.unit.opened_parents import OpenedParents
        from tokenlake.etl.unit.repack import repack_unit

        if self._parents is None:
            self._parents = OpenedParents()
        store = self._store(job.store)
        parents_store = self._store(job.parents_store)
        if isinstance(job, MixJob):
            return mix_unit(job, store, parents_store, self._parents, progress)
        return repack_unit(job, store, parents_store, self._parents, progress)

    def _choose_backend(self, job: BackendJob) -> dict[str, Any]:
        """Return the gate's verdict on a source: ``{"engine", "reason"}``."""
        files = self._tokenizer(job)
        settings = job.source.tokenizer
        recipe = Recipe(job.source, files)
        mode = recipe.special_tokens_in_text
        choice, encoder = choose_encoder(
            files,
            settings.engine,
            mode,
            list(_first_documents(job, recipe)),
            job.size,
            probes=self._probes,
            add_special_tokens=settings.add_special_tokens,
            places=recipe.rendered,
        )
        # The first unit of the source runs in this worker most likely.
        self._encoders[_encoder_key(files, choice.engine, mode, settings)] = encoder
        return {"engine": choice.engine, "reason": choice.reason}

    def _check_machine(self, job: PreflightJob) -> None:
        """Check that this machine writes the same bytes and reaches all it needs.

        Raises:
            ConfigError: It does not.
        """
        layout = Layout(job.dataset, job.version)
        problem = f"this machine ({socket.gethostname()}) cannot build {job.dataset}@v{job.version}"
        # 1. The same versions of the packages that write.
        differences = other_versions(job.versions)
        if differences:
            raise ConfigError(
                f"{problem}, because its bytes would differ. It has {'; '.join(differences)}. Install the same "
                "versions"
            )
        # 2. The same store: its claim of this version.
        if not self._store(job.store).exists(layout.claim):
            raise ConfigError(
                f"{problem}: {job.store} has no {layout.claim} here. Every machine must reach the same store under "
                "the same address"
            )
        # 3. The same backend. An error of the store may pass, and is raised as it is.
        if job.probe is None:
            return
        problem = f"{problem}, source {job.probe.source.name!r}"
        try:
            verdict = self._choose_backend(job.probe)
        except StoreError:
            raise
        except TokenlakeError as error:
            raise ConfigError(f"{problem}: {error}") from error
        if verdict["engine"] != job.engine:
            raise ConfigError(
                f"{problem}: its tokenizer backend is {verdict['engine']} ({verdict['reason']}), expected "
                f"{job.engine}, which the plan has"
            )

    def _store(self, address: StoreAddress) -> Store:
        """Return an open store, whose connections stay open."""
        store_key = repr((address.url, address.options))
        if store_key not in self._stores:
            self._stores[store_key] = open_store(address)
        return self._stores[store_key]

    def _tokenizer(self, job: UnitJob | BackendJob | WarmJob) -> TokenizerFiles:
        """Return a tokenizer's files, which are read from the store once.

        They have the hashes of the plan.
        """
        files_key = tuple(sorted(job.tokenizer_files.items()))
        if files_key not in self._files:
            contents = read_files(
                self._store(job.store), job.tokenizer, job.tokenizer_files
            )
            self._files[files_key] = TokenizerFiles(name=job.tokenizer, files=contents)
        return self._files[files_key]


def _encoder_key(
    files: TokenizerFiles, backend: str, mode: str, settings: ResolvedTokenizer
) -> tuple[Any, ...]:
    """Return the key of an encoder: everything that it depends on."""
    return files.json_bytes, backend, mode, settings.add_special_tokens


def _first_documents(job: BackendJob, recipe: Recipe) -> Iterator[str]:
    """Yield the beginnings of a source's first documents.

    Bad records are left to the build.
    """
    total_size = 0
    documents = 0
    for file_range in job.ranges[:1]:
        for prepared in recipe.read(file_range, _PROBE_BLOCK_BYTES):
            for document in prepared.documents.text:
                # Only the beginning becomes a string: the document may have 200 MB.
                beginning = memoryview(document.as_buffer())[:_PROBE_BYTES_OF_DOCUMENT]
                beginning_text = str(beginning, "utf-8", "ignore")
                total_size += len(beginning_text)
                documents += 1
                yield beginning_text
                if documents >= _PROBE_DOCUMENTS or total_size >= _PROBE_BYTES:
                    return
