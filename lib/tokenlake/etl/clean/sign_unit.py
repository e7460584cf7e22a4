"""The job of a worker that makes the signatures of one unit's documents."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.etl.clean.signatures import EvaluationNgrams, SignatureWriter, Signer, evaluation_key
from tokenlake.etl.job import Progress, SignJob, begin
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.etl.unit.documents import Recipe, TextDocuments
from tokenlake.etl.unit.tally import UnitTally
from tokenlake.runtime.store.base import Store, read_files
from tokenlake.runtime.store.ledger import Account


def run_sign_job(job: SignJob, store: Store, kept: dict[Any, Any], progress: Progress) -> dict[str, Any]:
    """Make the signatures of one unit and publish them; return their account.

    Args:
        job: Unit to sign.
        store: Open store of the job.
        kept: Signers of earlier jobs of this process. A signer holds the n-grams of evaluation sets.
        progress: Function that is told what more is done.
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
"""For recipes whose texts are fields: these ask nothing of a tokenizer."""

_MOST_DOCUMENTS: Final = 1 << 14  # that are signed at a time: their texts are Python strings meanwhile


def sign_unit(job: SignJob, store: Store, signer: Signer, progress: Progress) -> Account:
    """Make the signatures of one unit, whose records are read, prepared and accounted as for a build, and publish them.

    Returns:
        the account of its records, all documents being kept.

    Raises:
        AccountError: a record is missing, which would be a bug.
    """
    recipe, tally = Recipe(job.source, NO_TOKENIZER), UnitTally(packed=False)
    writer = SignatureWriter(store, signer.schema)
    try:
        for parts in recipe.groups(job.ranges):
            begin("reading", parts[0].file)
            for prepared in recipe.read_all(parts):
                tally.read(prepared)
                tally.by["quarantined"].update(record.reason for record in prepared.bad)
                for documents, begins in _row_by_row(prepared.documents):
                    texts = cast("list[str]", documents.text.to_pylist())
                    if len(begins) < len(texts):  # a row that became several is left out whole, or not at all
                        edges = pairwise([*begins.tolist(), len(texts)])
                        texts = ["\n".join(texts[begin:end]) for begin, end in edges]
                    writer.write(signer.sign(texts, documents.file[begins], documents.position[begins]))
                    count = len(begins)
                    tally.numbers.update(kept=count, documents=count, text_bytes=documents.text_bytes)
                progress({"bytes": prepared.bytes_read})
        account = tally.account(())
        account.check(where=f"signatures of {job.source.name}")
        writer.publish(job.fingerprint, account)
    except BaseException:
        writer.discard()
        raise
    return account


def _row_by_row(documents: TextDocuments) -> Iterator[tuple[TextDocuments, Int64]]:
    """Yield the documents of some rows, whole rows, and where each row's documents begin (int64[n])."""
    rows = np.arange(len(documents)) if documents.extra is None else np.flatnonzero(~documents.extra)
    for at in range(0, len(rows), _MOST_DOCUMENTS):
        begins = rows[at : at + _MOST_DOCUMENTS + 1]
        stop = len(documents) if len(begins) <= _MOST_DOCUMENTS else int(begins[-1])
        yield documents.slice(int(begins[0]), stop), begins[:_MOST_DOCUMENTS] - begins[0]
