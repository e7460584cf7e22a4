"""Server process of a tokenizer.

:mod:`tokenlake.runtime.tokenizer_guard.process` has the client.

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

_ERROR_CHARACTERS: Final = 300  # of a message; a tokenizer may quote all of a text

Parts = Sequence[bytes]
Answer = tuple[dict[str, Any], list[bytes]]


class OutputLimitError(Exception):
    """An answer is larger than the request allows."""


def main() -> None:
    """Answer requests until the input ends."""
    # A crash leaves no core file, which could fill the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Text that a library prints must not be taken for an answer: it goes to the
    # standard error.
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    server = Server()
    try:
        while True:
            line = requests.readline()
            if not line:
                return
            header: dict[str, Any] = json.loads(line)
            request_parts = [
                requests.read(part_bytes) for part_bytes in header["sizes"]
            ]
            answer, answer_parts = _answered(server, header, request_parts)
            _write(answers, answer, answer_parts)
    except MemoryError:
        # The exit code tells the client.
        os._exit(OUT_OF_MEMORY)


def _answered(server: Server, header: dict[str, Any], parts: Parts) -> Answer:
    """Return the answer to a request within its bounds, or the tokenizer's failure."""
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
        class_name = type(error).__name__
        if class_name == "PanicException":
            class_name = "the tokenizer's Rust code panicked"
        return {"error": f"{class_name}: {error}"[:_ERROR_CHARACTERS]}, []
    # The size is checked before anything is sent.
    if sum(map(len, answer_parts)) > header["output"]:
        return _too_much(header), []
    return answer, answer_parts


def _too_much(header: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request whose result is too large."""
    return {"limit": f"gave more than {header['output'] >> 20:,} MiB"}


def _write(answers: IO[bytes], answer: dict[str, Any], parts: Parts) -> None:
    """Write an answer: its line of JSON, then its parts."""
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
    # The kernel counts all processor time of the process, that of earlier requests
    # included. One second more, because its limits are whole seconds.
    last_second = int(time.process_time()) + 1 + seconds
    for limit_kind, limit in (
        (resource.RLIMIT_CPU, last_second),
        (resource.RLIMIT_AS, memory),
    ):
        _, hard_limit = resource.getrlimit(limit_kind)
        if hard_limit != resource.RLIM_INFINITY:
            limit = min(limit, hard_limit)
        # Not every system bounds memory.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(limit_kind, (limit, hard_limit))


class Server:
    """A tokenizer that answers requests."""

    def __init__(self) -> None:
        # Before the first request no tokenizer is open.
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
        # Operations on a whole tokenizer, then those of its stages, then single values.
        operation = header["op"]
        tokenizer = self._tokenizer
        if operation == "open":
            self._open(parts[0])
            return {}, []
        if operation == "encode":
            return self._encode(header, parts[0])
        if operation == "decode":
            ids = array("q", parts[0]).tolist()
            text: str = tokenizer.decode(
                ids, skip_special_tokens=header["skip_special_tokens"]
            )
            return {}, [text.encode("utf-8", "replace")]
        if operation in ("normalize", "to_str") and not self._has_parts:
            raise NotImplementedError(
                f"the installed tokenizers does not export the stages of a tokenizer; {OLDER}"
            )
        if operation == "normalize":
            return {}, [tokenizer.normalizer.normalize_str(parts[0].decode()).encode()]
        if operation == "to_str":
            return {}, [tokenizer.to_str().encode()]
        return {"value": self._value(operation, header, parts)}, []

    def _value(self, operation: str, header: dict[str, Any], parts: Parts) -> Any:
        """Return the JSON value that answers an operation."""
        # Without parts, the vocabulary comes from the file.
        tokenizer = self._tokenizer
        if not self._has_parts:
            return self._value_of_vocabulary(operation, header)
        if operation == "token_to_id":
            return tokenizer.token_to_id(header["token"])
        if operation == "id_to_token":
            return tokenizer.id_to_token(header["id"])
        if operation == "get_vocab_size":
            return tokenizer.get_vocab_size(header["with_added"])
        if operation == "has_normalizer":
            return tokenizer.normalizer is not None
        if operation == "has_pre_tokenizer":
            return tokenizer.pre_tokenizer is not None
        assert operation == "pre_tokenize", operation
        words = tokenizer.pre_tokenizer.pre_tokenize_str(parts[0].decode())
        return [(word, start, stop) for word, (start, stop) in words]

    def _value_of_vocabulary(self, operation: str, header: dict[str, Any]) -> Any:
        """Return the value of an operation from the file alone, and by decoding.

        It serves a `tokenizers` that does not export the vocabulary and the stages.
        """
        if operation == "token_to_id":
            return self._ids.get(header["token"])
        if operation == "id_to_token":
            if header["id"] not in self._ids.values():
                return None
            return self._tokenizer.decode_tokens([header["id"]])[0]
        if operation == "get_vocab_size":
            return len(self._ids)
        raise NotImplementedError(
            f"the installed tokenizers does not export the stages of a tokenizer; {OLDER}"
        )

    def _open(self, tokenizer_json: bytes) -> None:
        """Load the tokenizer."""
        # The import counts toward the bounds of this request.
        self._has_parts = exports_parts()
        spec: dict[str, Any] = json.loads(tokenizer_json)
        self._tokenizer = load_raw(tokenizer_json, spec)
        if not self._has_parts:
            self._ids = ids_by_token(spec)

    def _encode(self, header: dict[str, Any], data: bytes) -> Answer:
        """Encode the texts of a request.

        Args:
            header: Request, with the bytes of each text in `lengths`.
            data: Texts, laid end to end in UTF-8.

        Returns:
            Number of ids of each text, and the parts ids, first characters, last
            characters and marks of special tokens, for all texts together.
        """
        with_offsets = header["with_offsets"] and self._has_parts
        ids = array("I")
        first_characters = array("I")
        end_characters = array("I")
        special_marks = bytearray()
        lengths: list[int] = []
        text_start = 0
        for text_bytes in header["lengths"]:
            # One text at a time: a batch of hostile encodings would be in memory
            # together.
            document_text = data[text_start : text_start + text_bytes].decode()
            text_start += text_bytes
            encoding = self._encode_text(header, document_text)
            lengths.append(len(encoding.ids))
            ids.extend(encoding.ids)
            if with_offsets:
                for first_character, end_character in encoding.offsets:
                    first_characters.append(first_character)
                    end_characters.append(end_character)
            if self._has_parts:
                special_marks.extend(encoding.special_tokens_mask)
            if ids.itemsize * len(ids) > header["output"]:
                raise OutputLimitError
        return {"lengths": lengths}, [
            ids.tobytes(),
            first_characters.tobytes(),
            end_characters.tobytes(),
            bytes(special_marks),
        ]

    def _encode_text(self, header: dict[str, Any], text: str) -> Any:
        """Return the encoding of one text, as the installed generation makes it."""
        tokenizer = self._tokenizer
        add_special_tokens = header["add_special_tokens"]
        if not self._has_parts:
            literal = header["encode_special_tokens"]
            return tokenizer.encode(
                text,
                add_special_tokens=add_special_tokens,
                encode_special_tokens=literal,
            )
        # Before 1.0 the treatment of special tokens is a state of the tokenizer, and
        # the fast batch leaves offsets out.
        tokenizer.encode_special_tokens = header["encode_special_tokens"]
        encode = tokenizer.encode_batch_fast
        if header["with_offsets"]:
            encode = tokenizer.encode_batch
        (encoding,) = encode([text], add_special_tokens=add_special_tokens)
        return encoding
