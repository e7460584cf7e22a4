"""A tokenizer in a process of its own, whose time and memory the kernel bounds.

:class:`BoundedTokenizer` has the methods of `tokenizers.Tokenizer` that the library
uses. Each call is a request to :mod:`tokenlake.runtime.tokenizer_guard.server`: a line
of JSON, and raw bytes behind it. The process has no environment, ends with the input
that this process gives it, and is started again after a request that ended it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final, final

from tokenlake.errors import MissingExtraError, TokenizerError
from tokenlake.runtime.tokenizer_guard.generation import failure_to_load

OUT_OF_MEMORY: Final = 77
"""Exit code of the process where it was refused memory."""
# Packages that the process imports, and its program.
_NEEDED: Final = ("tokenlake", "tokenizers")
_BEGIN: Final = (
    "import sys; sys.path += sys.argv[1:]; "
    "from tokenlake.runtime.tokenizer_guard.server import main; main()"
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """Limits of a request.

    Each has a fixed part, and a part that grows with the size of the request.

    Attributes:
        seconds: Processor seconds of any request.
        bytes_per_second: Bytes of a text, or ids, for which a request gets another
            second. `tokenizers` encodes 2 to 4 MB/s.
        memory: Bytes of memory of the process.
        memory_per_file_byte: Bytes more for each byte of tokenizer.json.
        memory_per_byte: Bytes more for each byte of a text, or id. `tokenizers` takes
            120.
        output: Bytes of an answer, of any request.
        output_per_byte: Bytes more for each byte of a text, or id.
    """

    seconds: int = 10
    bytes_per_second: int = 50_000
    memory: int = 1 << 30
    memory_per_file_byte: int = 16
    memory_per_byte: int = 200
    output: int = 16 << 20
    output_per_byte: int = 1024


DEFAULT_LIMITS: Final = ProcessLimits()


@final
@dataclass(frozen=True, slots=True)
class BoundedEncoding:
    """The part of `tokenizers.Encoding` that the library uses.

    Attributes:
        ids: Ids of the tokens.
        offsets: First and last (exclusive) character of each token; empty if they were
            not requested.
        special_tokens_mask: 1 for each id that the post-processor added, 0 for others.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]
    special_tokens_mask: list[int]


@final
class BoundedTokenizer:
    """A tokenizer that runs in a process of its own.

    Safe to use from several threads; their requests wait for each other.

    Args:
        name: Name of the tokenizer, for messages.
        tokenizer_json: Content of the file.
        reason: Reason why it does not run in this process, for messages.
        limits: Limits of a request. Default: :data:`DEFAULT_LIMITS`.

    Raises:
        MissingExtraError: `tokenizers` is not installed.
        TokenizerError: The file cannot be loaded, or loading it exceeds the limits.
    """

    def __init__(
        self,
        name: str,
        tokenizer_json: bytes,
        reason: str,
        limits: ProcessLimits | None = None,
    ) -> None:
        self.encode_special_tokens = False
        self._name = name
        self._json = tokenizer_json
        self._reason = reason
        self._limits = limits or DEFAULT_LIMITS
        self._lock = threading.Lock()
        self._process: _Server | None = None
        _LIVING.add(self)
        with self._lock:
            self._start()

    def encode_batch_fast(
        self, texts: Sequence[str], add_special_tokens: bool = True
    ) -> list[BoundedEncoding]:
        """Return the ids of texts, without offsets."""
        return self._encode(texts, add_special_tokens, with_offsets=False)

    def encode_batch(
        self, texts: Sequence[str], add_special_tokens: bool = True
    ) -> list[BoundedEncoding]:
        """Return the ids of texts, and the characters that each token holds."""
        return self._encode(texts, add_special_tokens, with_offsets=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> BoundedEncoding:
        """Return the ids of one text, and the characters that each token holds."""
        return self._encode([text], add_special_tokens, with_offsets=True)[0]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids."""
        # 64 bits, so that any id reaches the tokenizer, which refuses wrong ones.
        id_array = array("q", map(int, ids))
        header = {"op": "decode", "skip_special_tokens": skip_special_tokens}
        _, (text,) = self._ask("decoding", header, [id_array.tobytes()], len(id_array))
        return text.decode("utf-8", "replace")

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token, None if it is not in the vocabulary."""
        answer, _ = self._ask(
            "looking up a token", {"op": "token_to_id", "token": token}
        )
        return answer["value"]

    def id_to_token(self, id: int) -> str | None:
        """Return the token of an id, None if there is none."""
        answer, _ = self._ask("looking up an id", {"op": "id_to_token", "id": int(id)})
        return answer["value"]

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        """Return the number of tokens."""
        answer, _ = self._ask(
            "counting tokens", {"op": "get_vocab_size", "with_added": with_added_tokens}
        )
        return answer["value"]

    def to_str(self) -> str:
        """Return the tokenizer as JSON, as `tokenizers` writes it."""
        _, (text,) = self._ask(
            "writing it as JSON", {"op": "to_str"}, size=len(self._json)
        )
        return text.decode()

    @property
    def normalizer(self) -> BoundedNormalizer | None:
        """Normalizer, None if there is none."""
        answer, _ = self._ask("reading its normalizer", {"op": "has_normalizer"})
        if not answer["value"]:
            return None
        return BoundedNormalizer(self)

    @property
    def pre_tokenizer(self) -> BoundedPreTokenizer | None:
        """Pre-tokenizer, None if there is none."""
        answer, _ = self._ask("reading its pre_tokenizer", {"op": "has_pre_tokenizer"})
        if not answer["value"]:
            return None
        return BoundedPreTokenizer(self)

    def normalized(self, text: str) -> str:
        """Return a text as the normalizer makes it."""
        data = text.encode()
        _, (normalized,) = self._ask(
            "normalizing", {"op": "normalize"}, [data], len(data)
        )
        return normalized.decode()

    def pre_tokenized(self, text: str) -> list[tuple[str, tuple[int, int]]]:
        """Return the words that the pre-tokenizer makes, and the characters of each."""
        data = text.encode()
        answer, _ = self._ask(
            "splitting a text", {"op": "pre_tokenize"}, [data], len(data)
        )
        return [(word, (start, stop)) for word, start, stop in answer["value"]]

    def close(self) -> None:
        """End the process; the next request starts another."""
        process = self._process
        self._process = None
        if process is not None:
            process.end()

    def forget(self) -> None:
        """Leave the process to the parent of this process, which is a fork."""
        if self._process is not None:
            self._process.forget()
        self._process = None
        self._lock = threading.Lock()

    def _encode(
        self, texts: Sequence[str], add_special_tokens: bool, *, with_offsets: bool
    ) -> list[BoundedEncoding]:
        """Return the encodings of texts, which are sent in one request."""
        # The texts are laid end to end; their lengths are in the header.
        encoded_texts = [text.encode() for text in texts]
        header = {
            "op": "encode",
            "add_special_tokens": add_special_tokens,
            "with_offsets": with_offsets,
            "encode_special_tokens": self.encode_special_tokens,
            "lengths": [len(encoded_text) for encoded_text in encoded_texts],
        }
        data = b"".join(encoded_texts)
        answer, (ids, starts, stops, special) = self._ask(
            "encoding", header, [data], len(data)
        )
        return _encodings(answer["lengths"], ids, starts, stops, special)

    def _ask(
        self,
        doing: str,
        header: Mapping[str, Any],
        payload: Sequence[bytes] = (),
        size: int = 0,
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Return the answer to a request.

        Args:
            doing: Name of the action, for messages.
            header: Operation and its arguments.
            payload: Raw parts of the request.
            size: Bytes of text, or number of ids, in the request.

        Raises:
            TokenizerError: The tokenizer failed, or exceeded the limits.
        """
        with self._lock:
            if self._process is None:
                self._start()
            return self._exchange(doing, header, payload, size)

    def _start(self) -> None:
        """Start the process, and load the tokenizer in it."""
        self._process = _Server()
        # The process ends with this object, also if nobody calls `close`.
        weakref.finalize(self, self._process.end)
        self._exchange("loading", {"op": "open"}, [self._json], 0)

    def _exchange(
        self, doing: str, header: Mapping[str, Any], payload: Sequence[bytes], size: int
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send a request with its limits, and return the answer.

        Arguments and errors are those of :meth:`_ask`.
        """
        assert self._process is not None
        limits = self._limits
        max_seconds = limits.seconds + size // limits.bytes_per_second
        # The limits grow with the request. The vocabulary is loaded within a time of
        # its own.
        max_seconds += len(self._json) // (1 << 20)
        max_memory = (
            limits.memory
            + limits.memory_per_file_byte * len(self._json)
            + limits.memory_per_byte * size
        )
        bounds = {
            "seconds": max_seconds,
            "memory": max_memory,
            "output": limits.output + limits.output_per_byte * size,
        }
        try:
            answer, answer_parts = self._process.ask({**header, **bounds}, payload)
        except (OSError, EOFError, ValueError):
            # The process is gone. Its exit code tells which limit it exceeded.
            ending = _ending(self._process.wait(), max_seconds, max_memory)
            self.close()
            raise self._limit_error(f"{doing} {ending}") from None
        except BaseException:
            # Ctrl-C: the answer that is still to come would be taken for that of the
            # next request.
            self.close()
            raise
        if "limit" in answer:
            raise self._limit_error(f"{doing} {answer['limit']}")
        if "error" in answer:
            failure = failure_to_load() if header["op"] == "open" else doing
            raise TokenizerError(
                f"tokenizer {self._name!r}: {failure}: {answer['error']}",
                tokenizer=self._name,
            )
        return answer, answer_parts

    def _limit_error(self, text: str) -> TokenizerError:
        """Return the error of a request that exceeded a limit."""
        return TokenizerError(
            f"tokenizer {self._name!r}: tokenizer.json: {text}. It runs in a bounded process, because "
            f"{self._reason}. Expected a tokenizer of the usual form; save it again from its model",
            tokenizer=self._name,
            reason=self._reason,
        )


@final
@dataclass(frozen=True, slots=True)
class BoundedNormalizer:
    """The normalizer of a :class:`BoundedTokenizer`.

    Attributes:
        tokenizer: Tokenizer that it belongs to.
    """

    tokenizer: BoundedTokenizer

    def normalize_str(self, text: str) -> str:
        """Return a text as the normalizer makes it."""
        return self.tokenizer.normalized(text)


@final
@dataclass(frozen=True, slots=True)
class BoundedPreTokenizer:
    """The pre-tokenizer of a :class:`BoundedTokenizer`.

    Attributes:
        tokenizer: Tokenizer that it belongs to.
    """

    tokenizer: BoundedTokenizer

    def pre_tokenize_str(self, text: str) -> list[tuple[str, tuple[int, int]]]:
        """Return the words that the pre-tokenizer makes, and the characters of each."""
        return self.tokenizer.pre_tokenized(text)


@final
class _Server:
    """Server process, and this process's ends of its pipes."""

    def __init__(self) -> None:
        # Folders that hold the packages. The process gets them as arguments, because it
        # has no environment.
        folders: dict[str, None] = {}
        for package in _NEEDED:
            module = find_spec(package)
            if module is None or module.origin is None:
                raise MissingExtraError(
                    f"a tokenizer needs {package}, which is missing: pip install {package}"
                )
            folders[str(Path(module.origin).parents[1])] = None
        # Only Python's own folders and these: the working directory is not among them.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BEGIN, *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Rust writes there that it panicked; the answer says so, too.
            stderr=subprocess.DEVNULL,
            env={"TOKENIZERS_PARALLELISM": "false"},
            start_new_session=True,  # Ctrl-C reaches the caller alone
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests: IO[bytes] = self._process.stdin
        self._answers: IO[bytes] = self._process.stdout
        self._pid = os.getpid()

    def ask(
        self, header: Mapping[str, Any], payload: Sequence[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send a request, and return its answer.

        Raises:
            OSError, EOFError, ValueError: The process ended.
        """
        # The answer must be whole: a process that was killed may have written a part of
        # it.
        sizes = [len(raw_part) for raw_part in payload]
        self._requests.write(json.dumps({**header, "sizes": sizes}).encode() + b"\n")
        for raw_part in payload:
            self._requests.write(raw_part)
        self._requests.flush()
        answer_line = self._answers.readline()
        if not answer_line.endswith(b"\n"):
            raise EOFError
        answer: dict[str, Any] = json.loads(answer_line)
        raw_parts: list[bytes] = []
        for part_bytes in answer.get("sizes", ()):
            raw_part = self._answers.read(part_bytes)
            if len(raw_part) < part_bytes:
                raise EOFError
            raw_parts.append(raw_part)
        return answer, raw_parts

    def wait(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        self._answers.close()  # it may be writing
        return self._process.wait()

    def end(self) -> None:
        """Kill the process."""
        if self._pid != os.getpid():
            return
        self._process.kill()
        self._process.wait()
        for stream in (self._requests, self._answers):
            with contextlib.suppress(OSError):  # a request that could not be sent
                stream.close()

    def forget(self) -> None:
        """Leave the process to the one that started it, of which this one is a fork."""
        self._process.returncode = 0


def _encodings(
    lengths: Sequence[int], ids: bytes, starts: bytes, stops: bytes, special: bytes
) -> list[BoundedEncoding]:
    """Cut the ids of all texts, laid end to end, into those of each text."""
    all_ids = memoryview(ids).cast("I").tolist()
    all_starts = memoryview(starts).cast("I").tolist()
    all_stops = memoryview(stops).cast("I").tolist()
    encodings: list[BoundedEncoding] = []
    text_start = 0
    for length in lengths:
        text_end = text_start + length
        # [] without offsets.
        offsets = list(
            zip(
                all_starts[text_start:text_end],
                all_stops[text_start:text_end],
                strict=True,
            )
        )
        encodings.append(
            BoundedEncoding(
                all_ids[text_start:text_end],
                offsets,
                list(special[text_start:text_end]),
            )
        )
        text_start = text_end
    return encodings


def _ending(code: int, seconds: int, memory: int) -> str:
    """Return how the process ended, as the end of a sentence."""
    if code == -signal.SIGXCPU:
        return f"took more than {seconds:,} seconds of a processor"
    if code in (OUT_OF_MEMORY, -signal.SIGABRT):  # Python's way, and Rust's
        return f"took more than {memory >> 20:,} MiB of memory"
    if code < 0:
        return f"ended its process by {signal.Signals(-code).name}"
    return f"ended its process with exit code {code}"


# Tokenizers of this process, whose forks must not use or end their processes.
_LIVING: Final[weakref.WeakSet[BoundedTokenizer]] = weakref.WeakSet()


def _forget_all() -> None:
    """Forget the processes of all tokenizers, in a fork."""
    for tokenizer in list(_LIVING):
        tokenizer.forget()


os.register_at_fork(after_in_child=_forget_all)
