"""The server process of a tokenizer; :mod:`tokenlake.runtime.tokenizer_guard.process`
has the client.

A request is a line of JSON, followed by raw parts. The line has the operation ``op``,
its arguments, the bounds ``seconds``, ``memory`` and ``output``, and ``sizes``, the
bytes of each part. An answer has the same form. A failure is ``{"error": text}``, an
answer that would be too large ``{"limit": text}``. Too much time or memory ends the
process.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from array import array
from collections.abc import Sequence
from typing import IO, Any, Final

from tokenlake.runtime.tokenizer_guard.generation import OLDER, exports_parts, load_raw
from tokenlake.runtime.tokenizer_guard.process import OUT_OF_MEMORY
from tokenlake.runtime.tokenizer_guard.vocabulary import ids_by_token

_ERROR_CHARACTERS: Final = 300

Parts = Sequence[bytes]
Answer = tuple[dict[str, Any], list[bytes]]


class OutputLimitError(Exception):
    """An answer is larger than the request allows."""


def main() -> None:
    """Answer requests until the input ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    # Text that a library prints must not be taken for an answer.
    os.dup2(2, 1)
    server = Server()
    try:
        while True:
            line = requests.readline()
            if not line:
                return
            header: dict[str, Any] = json.loads(line)
            parts = [requests.read(size) for size in header["sizes"]]
            answer, answer_parts = _answered(server, header, parts)
            _write(answers, answer, answer_parts)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


def _answered(server: Server, header: dict[str, Any], parts: Parts) -> Answer:
    """Return the answer to a request within its bounds, or the failure of the
    tokenizer.
    """
    bound_process(header["seconds"], header["memory"])
    try:
        answer, answer_parts = server.answer(header, parts)
    except MemoryError:
        raise
    except OutputLimitError:
        return _too_much(header), []
    except BaseException as error:
        # A panic of Rust is a BaseException. All other exceptions are failures of the
        # tokenizer as well.
        kind = type(error).__name__
        if kind == "PanicException":
            kind = "the tokenizer's Rust code panicked"
        return {"error": f"{kind}: {error}"[:_ERROR_CHARACTERS]}, []
    if sum(map(len, answer_parts)) > header["output"]:
        return _too_much(header), []
    return answer, answer_parts


def _too_much(header: dict[str, Any]) -> dict[str, Any]:
    return {"limit": f"gave more than {header['output'] >> 20:,} MiB"}


def _write(answers: IO[bytes], answer: dict[str, Any], parts: Parts) -> None:
    sizes = [len(part) for part in parts]
    answers.write(json.dumps({**answer, "sizes": sizes}).encode() + b"\n")
    for part in parts:
        answers.write(part)
    answers.flush()


def bound_process(seconds: int, memory: int) -> None:
    """Let the kernel end this process after some time, and refuse it more memory.

    Args:
        seconds: Processor seconds from now.
        memory: Bytes of memory.
    """
    last_second = int(time.process_time()) + 1 + seconds
    for kind, limit in (
        (resource.RLIMIT_CPU, last_second),
        (resource.RLIMIT_AS, memory),
    ):
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        # Not every system bounds memory.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (limit, hard))


class Server:
    """A tokenizer that answers requests."""

    def __init__(self) -> None:
        self._tokenizer: Any = None
        self._has_parts = True
        self._ids: dict[str, int] = {}

    def answer(self, header: dict[str, Any], parts: Parts) -> Answer:
        """Return the answer to a request.

        Raises:
            OutputLimitError: The answer is larger than the request allows.
            NotImplementedError: The installed `tokenizers` does not have the operation.
            BaseException: Any exception of the tokenizer.
        """
        op = header["op"]
        tokenizer = self._tokenizer
        if op == "open":
            self._open(parts[0])
            return {}, []
        if op == "encode":
            return self._encode(header, parts[0])
        if op == "decode":
            ids = array("q", parts[0]).tolist()
            text: str = tokenizer.decode(
                ids, skip_special_tokens=header["skip_special_tokens"]
            )
            return {}, [text.encode("utf-8", "replace")]
        if op in ("normalize", "to_str") and not self._has_parts:
            raise NotImplementedError(
                f"the installed tokenizers does not export the stages of a tokenizer; {OLDER}"
            )
        if op == "normalize":
            return {}, [tokenizer.normalizer.normalize_str(parts[0].decode()).encode()]
        if op == "to_str":
            return {}, [tokenizer.to_str().encode()]
        return {"value": self._value(op, header, parts)}, []

    def _value(self, op: str, header: dict[str, Any], parts: Parts) -> Any:
        tokenizer = self._tokenizer
        if not self._has_parts:
            return self._value_of_vocabulary(op, header)
        if op == "token_to_id":
            return tokenizer.token_to_id(header["token"])
        if op == "id_to_token":
            return tokenizer.id_to_token(header["id"])
        if op == "get_vocab_size":
            return tokenizer.get_vocab_size(header["with_added"])
        if op == "has_normalizer":
            return tokenizer.normalizer is not None
        if op == "has_pre_tokenizer":
            return tokenizer.pre_tokenizer is not None
        assert op == "pre_tokenize", op
        words = tokenizer.pre_tokenizer.pre_tokenize_str(parts[0].decode())
        return [(word, start, stop) for word, (start, stop) in words]

    def _value_of_vocabulary(self, op: str, header: dict[str, Any]) -> Any:
        """Answer from the file and by decoding, where `tokenizers` does not export
        the vocabulary and the stages.
        """
        if op == "token_to_id":
            return self._ids.get(header["token"])
        if op == "id_to_token":
            if header["id"] not in self._ids.values():
                return None
            return self._tokenizer.decode_tokens([header["id"]])[0]
        if op == "get_vocab_size":
            return len(self._ids)
        raise NotImplementedError(
            f"the installed tokenizers does not export the stages of a tokenizer; {OLDER}"
        )

    def _open(self, tokenizer_json: bytes) -> None:
        # The import counts toward the bounds of this request.
        self._has_parts = exports_parts()
        spec: dict[str, Any] = json.loads(tokenizer_json)
        self._tokenizer = load_raw(tokenizer_json, spec)
        if not self._has_parts:
            self._ids = ids_by_token(spec)

    def _encode(self, header: dict[str, Any], data: bytes) -> Answer:
        with_offsets = header["with_offsets"] and self._has_parts
        ids = array("I")
        starts = array("I")
        stops = array("I")
        special = bytearray()
        lengths: list[int] = []
        first = 0
        for size in header["lengths"]:
            # One text at a time: a batch of hostile encodings would be in memory
            # together.
            text = data[first : first + size].decode()
            first += size
            encoding = self._encode_text(header, text)
            lengths.append(len(encoding.ids))
            ids.extend(encoding.ids)
            if with_offsets:
                for start, stop in encoding.offsets:
                    starts.append(start)
                    stops.append(stop)
            if self._has_parts:
                special.extend(encoding.special_tokens_mask)
            if ids.itemsize * len(ids) > header["output"]:
                raise OutputLimitError
        return {"lengths": lengths}, [
            ids.tobytes(),
            starts.tobytes(),
            stops.tobytes(),
            bytes(special),
        ]

    def _encode_text(self, header: dict[str, Any], text: str) -> Any:
        tokenizer = self._tokenizer
        add_special_tokens = header["add_special_tokens"]
        if not self._has_parts:
            literal = header["encode_special_tokens"]
            return tokenizer.encode(
                text,
                add_special_tokens=add_special_tokens,
                encode_special_tokens=literal,
            )
        tokenizer.encode_special_tokens = header["encode_special_tokens"]
        encode = (
            tokenizer.encode_batch
            if header["with_offsets"]
            else tokenizer.encode_batch_fast
        )
        (encoding,) = encode([text], add_special_tokens=add_special_tokens)
        return encoding
