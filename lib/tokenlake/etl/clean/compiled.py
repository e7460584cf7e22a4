"""The compiled loops of cleaning, or the error that says how to install them."""

from __future__ import annotations

from typing import Any

from tokenlake.errors import MissingExtraError


def compiled_loops() -> Any:
    """Return the compiled loops, see :mod:`tokenlake.etl.clean.kernels`.

    Raises:
        MissingExtraError: numba is not installed, or has no folder for its compiled
            code.
    """
    # numba is imported with the loops: only a run that cleans needs it.
    try:
        from tokenlake.etl.clean import kernels
    except ImportError as error:
        raise MissingExtraError(
            "cleaning needs its packages: pip install 'tokenlake[etl]'"
        ) from error
    except RuntimeError as error:  # numba's own where it finds no folder to write to
        raise MissingExtraError(
            f"cleaning cannot store its compiled code: {error}; set NUMBA_CACHE_DIR to a folder that can be written"
        ) from error
    return kernels
