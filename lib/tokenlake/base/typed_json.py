"""JSON decoded into types. Each type is taken apart by one thread at a time.

msgspec stores an analysis of the fields on a dataclass when it first meets it. Another
thread that meets the class meanwhile uses the incomplete analysis, and the process ends
with SIGSEGV (seen with msgspec 0.22; two units that finish at once are two threads that
decode their first record).
"""

from __future__ import annotations

from threading import Lock
from typing import Any, Final

import msgspec

_LOCK: Final = Lock()
_DECODERS: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a type, which all threads share."""
    known_decoder = _DECODERS.get(kind)
    if known_decoder is None:
        with _LOCK:
            known_decoder = _DECODERS.setdefault(kind, msgspec.json.Decoder(kind))
    return known_decoder


def converted(value: Any, kind: Any, *, str_keys: bool = False) -> Any:
    """Return plain JSON as a value of a type.

    Errors are those of :func:`msgspec.convert`.

    Args:
        value: Plain JSON.
        kind: Type of the result.
        str_keys: True if all keys of mappings are texts, as in JSON.
    """
    decoder(kind)  # which analyses the type under the lock
    return msgspec.convert(value, kind, str_keys=str_keys)
