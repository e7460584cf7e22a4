"""Accounts of the sources of a unit of stored rows, and the check of written rows.

All that was read must be written.
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
        """Return the account of each source by its name.

        Rows and padding of packing belong to no single source, and are not in them.
        """
        accounts: dict[str, Account] = {}
        for source, name in enumerate(self._names):
            row_count = int(self._rows[source])
            bos_count = int(self._bos[source])
            eos_count = int(self._eos[source])
            # All rows that were read are written: a unit of stored rows leaves none out.
            content = int(self._ids[source]) - bos_count - eos_count
            accounts[name] = Account(
                rows_read=row_count,
                kept=row_count,
                documents=row_count,
                tokens=content,
                content_packed=content,
                bos=bos_count,
                eos=eos_count,
                eos_existing=int(self._existing_eos[source]),
            )
        return accounts


def check_written(
    account: Account, parts: Sequence[ShardEntry], width: int | None, *, where: str
) -> None:
    """Check that the account of a unit balances, and that as many ids were written.

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
