"""Making the signatures of one unit: records are read, prepared and accounted as for a build, and not tokenized.

The file is a pure function of its job and the bytes of its inputs, as a unit's parts are.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, cast, final

import numpy as np

from tokenlake.arrays import Int64
from tokenlake.clean.signatures import SignatureWriter, Signer, evaluation_key
from tokenlake.clean.words import EvaluationNgrams
from tokenlake.config.resolved import Signing
from tokenlake.etl.job import SignJob, begin
from tokenlake.etl.unit.documents import Prepared, Recipe, TextDocuments
from tokenlake.etl.unit.text import Progress
from tokenlake.store.account import Account
from tokenlake.store.base import Store, read_files
from tokenlake.tokenizers.files import TokenizerFiles

NO_TOKENIZER: Final = TokenizerFiles(name="none", files={"tokenizer.json": b"{}"})
"""For recipes whose texts are fields: these ask nothing of a tokenizer."""

_MOST_DOCUMENTS: Final = 1 << 14  # that are signed at a time: their texts are Python strings meanwhile


def opened_signer(store: Store, signing: Signing) -> Signer:
    """Return what makes signatures, with the evaluation sets that `signing` names."""
    if signing.contamination is None:
        return Signer(signing)
    folder, _, name = evaluation_key(signing.evaluation).rpartition("/")
    data = read_files(store, folder, {name: signing.evaluation})[name]
    return Signer(signing, EvaluationNgrams.from_bytes(data))


@final
class SignatureBuild:
    """The signatures of one unit while they are made."""

    def __init__(self, job: SignJob, store: Store, signer: Signer, progress: Progress) -> None:
        self._job, self._signer, self._progress = job, signer, progress
        self._recipe = Recipe(job.source, NO_TOKENIZER)
        self._writer = SignatureWriter(store, signer.schema)
        self._numbers: Counter[str] = Counter()
        self._by = {
            name: Counter[str]() for name in ("rows_skipped", "filtered", "quarantined", "normalized")
        }

    def build(self) -> Account:
        """Publish the file and return the account of its records, all documents being kept.

        Raises:
            AccountError: a record is missing, which would be a bug.
        """
        try:
            for parts in self._recipe.groups(self._job.ranges):
                begin("reading", parts[0].file)
                for prepared in self._recipe.read_all(parts):
                    self._take(prepared)
            fields: dict[str, Any] = {
                **self._numbers,
                **{name: dict(each) for name, each in self._by.items()},
            }
            account = Account(**fields)
            account.check(where=f"signatures of {self._job.source.name}")
            self._writer.publish(self._job.fingerprint, account)
        except BaseException:
            self._writer.discard()
            raise
        return account

    def _take(self, prepared: Prepared) -> None:
        found = {
            "normalized": prepared.normalized,
            "filtered": prepared.filtered,
            "rows_skipped": prepared.skipped,
        }
        for name, counts in found.items():
            self._by[name].update(counts)
        self._by["quarantined"].update(record.reason for record in prepared.bad)
        self._numbers["rows_read"] += prepared.rows_read
        documents = prepared.documents
        rows = np.arange(len(documents)) if documents.extra is None else np.flatnonzero(~documents.extra)
        for at in range(0, len(rows), _MOST_DOCUMENTS):
            begins = rows[at : at + _MOST_DOCUMENTS + 1]
            stop = len(documents) if len(begins) <= _MOST_DOCUMENTS else int(begins[-1])
            self._sign(documents.slice(int(begins[0]), stop), begins[:_MOST_DOCUMENTS] - begins[0])
        self._progress({"bytes": prepared.bytes_read})

    def _sign(self, documents: TextDocuments, begins: Int64) -> None:
        """Sign the documents of n rows, of which each begins at one of `begins` (int64[n])."""
        texts = cast("list[str]", documents.text.to_pylist())
        if len(begins) < len(texts):  # a row that became several documents is left out whole, or not at all
            ends = [*begins[1:].tolist(), len(texts)]
            texts = ["\n".join(texts[begin:end]) for begin, end in zip(begins.tolist(), ends, strict=True)]
        self._writer.write(self._signer.sign(texts, documents.file[begins], documents.position[begins]))
        self._numbers.update(kept=len(begins), documents=len(begins), text_bytes=documents.text_bytes)
