"""Errors of one input file: changed, damaged, or not as expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tokenlake.errors import DamagedFileError, InputChangedError, UnsuitableFileError
from tokenlake.etl.sources.inputs import InputFile

_SHOWN_NAMES: Final = 20  # columns of a file in a message


def changed(file: InputFile, problem: str) -> InputChangedError:
    """Return the error for a file that differs from its state at planning.

    Args:
        file: The file.
        problem: Clause about the difference.
    """
    return InputChangedError(
        f"{file.url}: the input changed since the build was planned: {problem}. Inputs must not change during a "
        "build; run again to plan with the present file.",
        file=file.path,
    )


def damaged(file: InputFile, problem: str, **details: object) -> DamagedFileError:
    """Return the error for a file that cannot be trusted as a whole.

    Args:
        file: The file.
        problem: Clause about the damage.
        details: Fields of the error.
    """
    return DamagedFileError(
        f"{file.url}: the file is damaged: {problem}. Damaged files are never read partially: replace it, or remove "
        "it from data_files.",
        file=file.path,
        problem=problem,
        **details,
    )


def unsuitable(
    file: InputFile, problem: str, remedy: str, **details: object
) -> UnsuitableFileError:
    """Return the error for a file that is whole, but not as it is expected.

    Args:
        file: The file.
        problem: Clause about the content, and the expected one.
        remedy: Imperative, such as "convert it".
        details: Fields of the error.
    """
    return UnsuitableFileError(
        f"{file.url}: {problem}. {remedy[:1].upper()}{remedy[1:]}, or remove the file from data_files.",
        file=file.path,
        problem=f"{problem}; {remedy}",
        **details,
    )


def no_column(
    file: InputFile, name: str, names: Sequence[str], option: str = ""
) -> UnsuitableFileError:
    """Return the error for a file that has no column `name`.

    Args:
        file: The file.
        name: Name of the missing column.
        names: Names of the columns that it has.
        option: Option that names the column, as it is shown.
    """
    shown_names = ", ".join(names[:_SHOWN_NAMES])
    if len(names) > _SHOWN_NAMES:
        shown_names += " ..."
    problem = (
        f"it has no column {name!r}{option}; its columns are {shown_names or 'none'}"
    )
    return unsuitable(file, problem, "name one of them", column=name)
