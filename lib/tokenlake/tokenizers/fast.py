"""The fast engine: gigatoken on Arrow buffers.

gigatoken takes many documents at once only as an awkward array, and returns one; both are views of plain
buffers, so nothing is copied on the way in, and out comes one flat uint32 array with row offsets.

Invalid UTF-8 crashes the process inside its SentencePiece backend: the caller validates.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, final

import numpy as np
import pyarrow as pa

from tokenlake.errors import MissingExtraError
from tokenlake.tokenizers.arrays import string_buffers
from tokenlake.tokenizers.files import TokenizerFiles
from tokenlake.tokenizers.reference import deliberate

if TYPE_CHECKING:
    import numpy.typing as npt


@final
class GigatokenEngine:
    """gigatoken on one tokenizer.json.

    Args:
        files: the tokenizer; must have passed the gate.
        literal: leave the special=true added tokens out, so that their strings are plain text.
        threads: use all cores for one call (never in a forked child: it hangs there).

    Raises:
        TokenizerError: gigatoken refuses the json.
    """

    def __init__(self, files: TokenizerFiles, *, literal: bool = True, threads: bool = False) -> None:
        self.files = files
        self._threads = threads
        try:
            import awkward  # pyright: ignore[reportMissingTypeStubs]
            from gigatoken.gigatoken_rs import load_hf_json
        except ImportError as error:
            raise MissingExtraError(
                "engine 'gigatoken' needs its packages: pip install 'tokenlake[etl]'"
            ) from error
        self._awkward: Any = awkward
        with deliberate(f"tokenizer {files.name!r}: gigatoken cannot load tokenizer.json"):
            self._backend: Any = load_hf_json(_without_specials(files) if literal else files.json_bytes)

    def encode(self, text: pa.LargeStringArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Encode valid UTF-8 without nulls: offsets int64[n + 1] from 0, and the ids of all rows."""
        if len(text) == 0:
            return np.zeros(1, np.int64), np.empty(0, np.int32)
        with deliberate(f"tokenizer {self.files.name!r}: encoding with gigatoken"):
            layout = self._backend.encode_batch(self._array(text), parallel=self._threads).layout
        offsets = np.asarray(layout.offsets.data, np.int64)
        ids = np.asarray(layout.content.data).view(np.int32)
        return offsets - offsets[0] if offsets[0] else offsets, ids[offsets[0] : offsets[-1]]

    def _array(self, text: pa.LargeStringArray) -> Any:
        ak = self._awkward
        offsets, data = string_buffers(text)
        chars = ak.contents.NumpyArray(data, parameters={"__array__": "char"})
        layout = ak.contents.ListOffsetArray(
            ak.index.Index64(offsets), chars, parameters={"__array__": "string"}
        )
        return ak.Array(layout)


def _without_specials(files: TokenizerFiles) -> bytes:
    """Return tokenizer.json without its special=true added tokens."""
    kept = [token for token in files.added_tokens if not token.get("special")]
    return json.dumps({**files.spec, "added_tokens": kept}, ensure_ascii=False).encode()
