"""The lines of Python that ``tokenlake run`` prints: a loader of the version."""

from __future__ import annotations

from tokenlake.runtime.loader.columns import check_columns
from tokenlake.runtime.loader.ragged_batch import ragged_columns
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.manifest import Manifest

_BATCH_SIZE = 8  # small, so that the lines run on any machine


def training_lines(root: str, manifest: Manifest) -> list[str]:
    """Return lines that read batches of a version.

    Args:
        root: Address of the store.
        manifest: Manifest of the version.

    Returns:
        The lines; empty for a version without rows.
    """
    splits = list(manifest.splits)
    if not splits:
        return []
    split = splits[0]
    if "train" in splits:
        split = "train"
    # `tl.open` finds a split by itself if it is named train, or is the only one.
    needs_split = split != "train" and len(splits) > 1
    address = f"{root}/{manifest.dataset}@v{manifest.version}"
    arguments = repr(address)
    if needs_split:
        arguments += f", split={split!r}"

    # The comment names the other columns: nobody guesses `segment_ids`.
    first_column, *other_columns = _columns(root, manifest, split)
    comment = ""
    if other_columns:
        comment = f"also {', '.join(other_columns)}; "
    return [
        "import tokenlake as tl",
        f"for batch in tl.DataLoader(tl.open({arguments}), batch_size={_BATCH_SIZE}, seed=0):",
        f'    batch["{first_column}"]  # {comment}sharding= puts them on devices',
    ]


def _columns(root: str, manifest: Manifest, split: str) -> tuple[str, ...]:
    """Return the default columns of a loader."""
    # Packed rows always have the same columns; those of others depend on the version.
    if manifest.kind == "packed":
        return check_columns(None)
    return ragged_columns(StoredRows(open_read_store(root), manifest, split), None)
