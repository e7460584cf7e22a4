"""Errors of one input file: it changed, it is damaged, or it does not hold what was expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tokenlake.errors import DamagedFileError, InputChangedError, UnsuitableFileError
from tokenlake.etl.sources.inputs import InputFile

_SHOWN_NAMES: Final = 20  # columns of a file in a message


def changed(file: InputFile, what: str) -> InputChangedError:
    """Return the error for a file that is not what it was when the build was planned."""
    return InputChangedError(
        f"{file.url}: the input changed since the build was planned: {what}. Inputs must stay as they are "
        "during a build; run again to plan with the file as it is now.",
        file=file.path,
    )


def damaged(file: InputFile, what: str, **details: object) -> DamagedFileError:
    """Return the error for a file that cannot be trusted as a whole."""
    return DamagedFileError(
        f"{file.url}: the file is damaged: {what}. Damaged files are never read in part: replace it, "
        "or leave it out of data_files.",
        file=file.path,
        problem=what,
        **details,
    )


def unsuitable(file: InputFile, what: str, how: str, **details: object) -> UnsuitableFileError:
    """Return the error for a file that is whole, but not what is expected.

    Args:
        what: what it is, and what was expected.
        how: what to do about it, as an imperative.
    """
    return UnsuitableFileError(
        f"{file.url}: {what}. {how[:1].upper()}{how[1:]}, or leave the file out of data_files.",
        file=file.path,
        problem=f"{what}; {how}",
        **details,
    )


def no_column(file: InputFile, name: str, names: Sequence[str], option: str = "") -> UnsuitableFileError:
    """Return the error of a file that has no column `name`.

    Args:
        names: the columns that it has.
        option: the option that names it, as it is shown.
    """
    shown = ", ".join(names[:_SHOWN_NAMES]) + (" ..." if len(names) > _SHOWN_NAMES else "")
    told = f"it has no column {name!r}{option}; its columns are {shown or 'none'}"
    return unsuitable(file, told, "name one of them", column=name)
