"""Loading of a tokenizer.json.

A harmless one is loaded into this process, any other into a process of its own.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from tokenlake.errors import MissingExtraError, TokenizerError
from tokenlake.runtime.tokenizer_guard.caution import reason_for_caution
from tokenlake.runtime.tokenizer_guard.compatibility import why_not_fast
from tokenlake.runtime.tokenizer_guard.generation import (
    OLDER,
    exports_parts,
    failure_to_load,
    load_raw,
    tokenizers_version,
)
from tokenlake.runtime.tokenizer_guard.process import BoundedTokenizer
from tokenlake.runtime.tokenizer_guard.shape import (
    TOKENIZER_JSON,
    parse_json_object,
    require_tokenizer_shape,
)


@contextmanager
def deliberate(action: str) -> Generator[None]:
    """Turn every exception of a Rust tokenizer into a TokenizerError, panics included.

    A panic arrives as `pyo3_runtime.PanicException`, a BaseException that `except
    Exception` misses.

    Args:
        action: Name of the tokenizer and of the action, for messages.

    Raises:
        TokenizerError: The tokenizer raised an exception.
    """
    # Interrupts and our own errors pass unchanged. Running out of memory is no fault of
    # the tokenizer alone.
    try:
        yield
    except (
        KeyboardInterrupt,
        SystemExit,
        GeneratorExit,
        MemoryError,
        TokenizerError,
        MissingExtraError,
    ):
        raise
    except Exception as error:
        raise TokenizerError(f"{action}: {type(error).__name__}: {error}") from error
    except BaseException as error:
        # The class is not exported, so that it is known by its name.
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(
            f"{action}: the tokenizer's Rust code panicked: {error}"
        ) from None


def _require_supported(name: str, spec: Mapping[str, Any]) -> None:
    """Raise TokenizerError for a form that tokenizers 1.0 may encode differently."""
    if exports_parts():
        return
    reason = why_not_fast(spec)
    if reason is not None:
        raise TokenizerError(
            f"tokenizer {name!r}: tokenizers {tokenizers_version()} may return ids that differ from those of earlier "
            f"versions, because {reason}. Install the generation that runs it: {OLDER}",
            tokenizer=name,
            reason=reason,
        )


def open_tokenizer(
    name: str, tokenizer_json: bytes, spec: Mapping[str, Any] | None = None
) -> Any:
    """Return a tokenizer that neither cuts nor pads.

    Args:
        name: Name of the tokenizer, for messages.
        tokenizer_json: Content of the file.
        spec: Parsed and checked form of the same file; None: the file is parsed now.

    Returns:
        A `tokenizers.Tokenizer` if every part has a known harmless form, else a
        :class:`~tokenlake.runtime.tokenizer_guard.process.BoundedTokenizer`.

    Raises:
        MissingExtraError: `tokenizers` is not installed.
        TokenizerError: The file is not a tokenizer's, cannot be loaded, takes too much
            time or memory to load, or is of a form that the installed `tokenizers` does
            not reproduce.
    """
    # Shape, support, caution: each check relies on the one before it.
    if spec is None:
        spec = parse_json_object(name, TOKENIZER_JSON, tokenizer_json)
        require_tokenizer_shape(name, spec)
    _require_supported(name, spec)
    reason = reason_for_caution(spec)
    if reason is not None:
        return BoundedTokenizer(name, tokenizer_json, reason)
    with deliberate(f"tokenizer {name!r}: {failure_to_load()}"):
        return load_raw(tokenizer_json, spec)
