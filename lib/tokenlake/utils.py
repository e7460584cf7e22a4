"""Paths of files, under the names that the seed documents know."""

from __future__ import annotations

from tokenlake.base.lazy_names import naming_extra

with naming_extra("tokenlake.utils", "etl"):
    from tokenlake.rowwise.files import DatasetType, expand_data_files


def glob_files(pattern: str, recursive: bool = True) -> list[str]:
    """Return the files of a pattern, sorted.

    Errors are those of :func:`tokenlake.expand_data_files`.

    Args:
        pattern: Glob, path or URL.
        recursive: True if ``**`` stands for any number of folders; otherwise it is
            ``*``.
    """
    searched_pattern = pattern
    if not recursive:
        searched_pattern = pattern.replace("**", "*")
    return expand_data_files(searched_pattern)


def infer_builder_from_ext(path: str) -> str | None:
    """Return the type of a file by its extension, such as ``json``, or None."""
    dataset_type = DatasetType.infer_from_path(path)
    if dataset_type is None:
        return None
    return str(dataset_type)
