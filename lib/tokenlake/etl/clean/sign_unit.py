"""The job of a worker that makes the signatures of one unit's documents."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.etl.clean.signatures import (
    EvaluationNgrams,
    SignatureWriter,
    Signer,
    evaluation_key,
)
from tokenlake.etl.job import Progress, SignJob, begin
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.etl.unit.documents import Recipe, TextDocuments
from tokenlake.etl.unit.tally import UnitTally
from tokenlake.runtime.store.base import Store, read_files
from tokenlake.runtime.store.ledger import Account


def run_sign_job(
    job: SignJob, store: Store, kept: dict[Any, Any], progress: Progress
) -> dict[str, Any]:
    """Make the signatures of one unit and publish them; return their account.

    Args:
        job: Unit to sign.
        store: Open store of the job.
        kept: Signers of earlier jobs of this process. A signer holds the n-grams of
            evaluation sets.
        progress: Function that is told how many bytes are read.
    """
    signing = job.signing
    signer = kept.get(signing)
    if signer is None:
        ngrams = None
        if signing.contamination is not None:
            folder, _, name = evaluation_key(signing.evaluation).rpartition("/")
            data = read_files(store, folder, {name: signing.evaluation})[name]
            ngrams = EvaluationNgrams.from_bytes(data)
        signer = Signer(signing, ngrams)
        kept[signing] = signer
    return sign_unit(job, store, signer, progress).to_json()


NO_TOKENIZER: Final = TokenizerFiles(name="none", files={"tokenizer.json": b"{}"})
"""Tokenizer of recipes whose texts are fields, which need none."""

_BATCH_DOCUMENTS: Final = 1 << 14
"""Largest number of documents that are signed together; meanwhile their texts are
Python strings.
"""


def sign_unit(
    job: SignJob, store: Store, signer: Signer, progress: Progress
) -> Account:
    """Make the signatures of one unit, whose records are read, prepared and accounted
    as for a build, and publish them.

    Args:
        job: Unit to sign.
        store: Open store of the job.
        signer: Signer with the options of the job.
        progress: Function that is told how many bytes are read.

    Returns:
        Audit of the unit's records, in which all documents are kept.

    Raises:
        AccountError: The audit does not balance, which would be a bug.
    """
    recipe = Recipe(job.source, NO_TOKENIZER)
    tally = UnitTally(packed=False)
    writer = SignatureWriter(store, signer.schema)
    try:
        for parts in recipe.groups(job.ranges):
            begin("reading", parts[0].file)
            for prepared in recipe.read_all(parts):
                tally.read(prepared)
                tally.by["quarantined"].update(record.reason for record in prepared.bad)
                for documents, row_starts in _batches_of_rows(prepared.documents):
                    texts = _texts_of_rows(documents, row_starts)
                    files = documents.file[row_starts]
                    positions = documents.position[row_starts]
                    writer.write(signer.sign(texts, files, positions))
                    row_count = len(row_starts)
                    tally.numbers.update(
                        kept=row_count,
                        documents=row_count,
                        text_bytes=documents.text_bytes,
                    )
                progress({"bytes": prepared.bytes_read})
        account = tally.account(())
        account.check(where=f"signatures of {job.source.name}")
        writer.publish(job.fingerprint, account)
    except BaseException:
        writer.discard()
        raise
    return account


def _texts_of_rows(documents: TextDocuments, row_starts: Int64) -> list[str]:
    """Return one text for each row. A row that became several documents is left out
    whole, or not at all.

    Args:
        documents: Documents of whole rows.
        row_starts: Index of the first document of each row, int64[rows].
    """
    texts = cast("list[str]", documents.text.to_pylist())
    if len(row_starts) == len(texts):
        return texts
    row_texts: list[str] = []
    for start, stop in pairwise([*row_starts.tolist(), len(texts)]):
        row_texts.append("\n".join(texts[start:stop]))
    return row_texts


def _batches_of_rows(documents: TextDocuments) -> Iterator[tuple[TextDocuments, Int64]]:
    """Yield batches of whole rows: their documents, and the index of each row's
    first document (int64[n]).
    """
    if documents.extra is None:
        row_starts = np.arange(len(documents))
    else:
        row_starts = np.flatnonzero(~documents.extra)
    for index in range(0, len(row_starts), _BATCH_DOCUMENTS):
        batch_starts = row_starts[index : index + _BATCH_DOCUMENTS]
        first = int(batch_starts[0])
        stop = len(documents)
        if index + _BATCH_DOCUMENTS < len(row_starts):
            stop = int(row_starts[index + _BATCH_DOCUMENTS])
        yield documents.slice(first, stop), batch_starts - first
