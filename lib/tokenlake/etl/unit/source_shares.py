"""Accounts of the sources of a unit of stored rows, and the check that all that was
read was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.errors import AccountError
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.ledger import ShardEntry


@final
class Shares:
    """Accounts of the sources of a unit, while it is being built.

    Args:
        names: Names of the sources.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._rows = np.zeros(len(names), np.int64)
        self._ids = np.zeros(len(names), np.int64)
        self._bos = np.zeros(len(names), np.int64)
        self._eos = np.zeros(len(names), np.int64)
        self._existing_eos = np.zeros(len(names), np.int64)

    def add(
        self, source: Int64, length: Int64, bos: Int64, eos: Int64, existing: Int64
    ) -> None:
        """Count n rows.

        Args:
            source: Index of the source of each row, int64[n].
            length: Ids of each row, with all that is put around documents, int64[n].
            bos: Number of these ids that are BOS, int64[n].
            eos: Number of these ids that are EOS, int64[n].
            existing: 1 for a document that had its EOS before it was packed, int64[n].
        """
        self._rows += np.bincount(source, minlength=len(self._names))
        np.add.at(self._ids, source, length)
        np.add.at(self._bos, source, bos)
        np.add.at(self._eos, source, eos)
        np.add.at(self._existing_eos, source, existing)

    def accounts(self) -> dict[str, Account]:
        """Return source -> account, without the rows and padding that belong to no
        single source.
        """
        accounts: dict[str, Account] = {}
        for index, name in enumerate(self._names):
            rows = int(self._rows[index])
            bos = int(self._bos[index])
            eos = int(self._eos[index])
            content = int(self._ids[index]) - bos - eos
            accounts[name] = Account(
                rows_read=rows,
                kept=rows,
                documents=rows,
                tokens=content,
                content_packed=content,
                bos=bos,
                eos=eos,
                eos_existing=int(self._existing_eos[index]),
            )
        return accounts


def check_written(
    account: Account, parts: Sequence[ShardEntry], width: int | None, *, where: str
) -> None:
    """Check that the account of the rows that were read balances, and that as many ids
    were written.

    Args:
        account: Account of the unit.
        parts: Shards that were written.
        width: Ids of a packed row; None for other rows.
        where: Name of the unit, for messages.

    Raises:
        AccountError: It does not balance, or another number of ids was written, which
            is a bug.
    """
    account.check(width, where=where)
    ids_read = account.content_packed + account.bos + account.eos
    ids_written = sum(part.tokens for part in parts)
    if ids_read != ids_written:
        raise AccountError(
            f"{where}: {ids_read} ids were read or added to documents, EOS included, but {ids_written} were written. "
            "This is a bug; nothing was committed",
            left=ids_read,
            right=ids_written,
            where=where,
        )
