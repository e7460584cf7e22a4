"""A chat template as its callers have it, where a tokenizer has its own, and the process that renders for them.

A template is somebody's program, and nothing inside Python stops a program that is in C code. So it runs in a process
of its own (:mod:`tokenlake.etl.text.chat_server`), whose time and memory the kernel bounds (:class:`Limits`). That
process has no environment, sees the end of its input when this process ends, and is replaced when a template ended it.
"""

from __future__ import annotations

import atexit
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast, final

from tokenlake.errors import BadRecordError, ConfigError, TokenlakeError, WorkerDiedError, from_json, to_json

if TYPE_CHECKING:
    from tokenlake.etl.tokenizers.files import TokenizerFiles

Message = Mapping[str, Any]
Slot = tuple[int, int]
"""A message's number, and the sides on which its content is stripped."""
CharSpan = tuple[int, int]
"""Characters of a text: first, and last exclusive."""

LEFT, RIGHT = 1, 2
"""Sides on which a content is stripped; added up."""
LIMIT: Final = "template_limit"
UNFOUND: Final = "turns_not_found"
FORGED: Final = "special_token_in_text"
"""Reasons of bad rows: the template does too much; the assistant's turns cannot be told; a special token is spelled."""
MAX_TEMPLATE: Final = 1 << 20
"""Characters of a template; the longest known have 30,000."""
JINJA_FILE: Final = "chat_template.jinja"
DEFAULT: Final = "default"
_NAMED_TOKENS: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
NO_DATA: Final = "\ue000no data"
"""In a request, the key of an object that stands for a value that is no JSON."""
OUT_OF_MEMORY: Final = 77
"""The exit code of the process where it was refused memory."""

_MOST_REQUESTS, _MOST_BYTES = 64, 1 << 18  # sent at a time
_MOST_TEMPLATES: Final = 64  # that one process knows
_MOST_DEATHS: Final = 3  # conversations in a row that ended the process
_NEEDED: Final = ("tokenlake", "jinja2", "markupsafe")
_BEGIN: Final = (
    "import sys; sys.path += sys.argv[1:]; from tokenlake.etl.text.chat_server import main; main()"
)

_Answer = dict[str, Any]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one rendering may take at most.

    Attributes:
        seconds: of a processor, not of the clock.
        memory: bytes of the process that renders, all of them (where the system bounds them: Linux does).
        text: characters of the result.
    """

    seconds: int = 5
    memory: int = 1 << 30
    text: int = 64 << 20


@final
@dataclass(frozen=True, slots=True)
class RenderedChat:
    """The text of a conversation.

    Attributes:
        loss: where it bears loss, ascending and disjoint; where none is asked for what the template itself marks as the
            assistant's, () where it has no such marks.
    """

    text: str
    loss: tuple[CharSpan, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Skeleton:
    """The words around the contents of conversations of the same roles.

    Attributes:
        parts: words and slots, in order.
        loss: whether each part bears loss.
    """

    parts: tuple[str | Slot, ...]
    loss: tuple[bool, ...]


_Error = TypeVar("_Error", BadRecordError, ConfigError)


def template_error(kind: type[_Error], problem: str, **details: Any) -> _Error:
    """Return the error of a template, which is called the chat template.

    Args:
        kind: Class of the error.
        problem: Rest of the message, which begins with a space or a comma. It is the detail ``template_problem``, so
            that templates that are no chat templates can be called otherwise.
        details: Further details of the error.
    """
    return kind(f"the chat template{problem}", template_problem=problem, **details)


@final
class ChatTemplate:
    """Renders conversations as `apply_chat_template(tokenize=False)` of transformers does, or not at all.

    It differs where that would let a mistake become text: what is missing or null is never output, there is no today's
    date, and a rendering is bounded (:class:`Limits`). A message's fields that are null count as missing.

    Args:
        text: the Jinja template.
        variables: of the template: named tokens, ``add_generation_prompt``; ``strftime_now`` among them is the date
            that the function of this name gives.
        loss: which part of a conversation bears loss: what the assistant says, or all; None: that is not asked for.
        special_tokens: texts of the tokenizer's special tokens.
        guarded: whether one that the template puts together of a conversation's own texts is an error.
        learned: a variable that is marked wherever it is output, in a template without marks of its own.
        learn_empty_reasoning: whether an empty block of reasoning that a prompt may supply bears loss, too.
        mask_reasoning: whether reasoning bears no loss.

    Raises:
        ConfigError: the template cannot be compiled, asks for other files, or has ``{% generation %}`` where its
            place in the text is not known.
    """

    def __init__(
        self,
        text: str,
        variables: Mapping[str, Any] | None = None,
        *,
        loss: Literal["assistant", "all"] | None = None,
        special_tokens: Sequence[str] = (),
        guarded: bool = False,
        limits: Limits | None = None,
        learned: str | None = None,
        learn_empty_reasoning: bool = False,
        mask_reasoning: bool = False,
    ) -> None:
        self.limits: Final = limits or Limits()
        given = {
            "text": text,
            "variables": variables or {},
            "limits": asdict(self.limits),
            "loss": loss,
            "special_tokens": special_tokens,
            "guarded": guarded,
            "learned": learned,
            "learn_empty_reasoning": learn_empty_reasoning,
            "mask_reasoning": mask_reasoning,
        }
        self.opening: Final = _request("open", given)
        """What a process must know of the template before it renders."""
        self.name: Final = hashlib.sha256(self.opening).hexdigest()[:16]
        self.deaths = 0
        """How many of its conversations in a row ended a process."""
        (answer,) = PROCESS.ask(self, [self.opening])
        if "error" in answer:
            error = from_json(answer["error"])
            if isinstance(error, ConfigError):
                raise error
            raise template_error(ConfigError, f" cannot be compiled: {error}") from error
        self.marked: Final[bool] = answer["marked"]
        """Whether it is marked in the template what the assistant says."""
        self.names: Final[tuple[str, ...]] = tuple(answer["names"])
        """Variables that the template does not set itself."""

    def render(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, **variables: Any
    ) -> RenderedChat:
        """Render one conversation, without a look at what bears loss.

        Args:
            messages: dicts of plain data (JSON), as ``role`` and ``content``.
            tools: JSON schemas of what may be called.
            variables: of this conversation.

        Raises:
            BadRecordError: the template fails on this conversation (``template_error``), refuses it
                (``template_refused``), or does more than it may (``template_limit``).
            ConfigError: the template asks for today's date, and none was given, or it ends every process that runs it.
        """
        (made,) = self._ask([_request("render", messages, tools, variables)])
        if isinstance(made, TokenlakeError):
            raise made
        return made

    def render_whole(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, **variables: Any
    ) -> RenderedChat:
        """Render one conversation, of which the template must leave nothing out, as :meth:`render`.

        A conversation is given to the template in another form where it takes that alone
        (:mod:`tokenlake.etl.text.chat_forms`).

        Raises:
            BadRecordError: as :meth:`render`; the template leaves out what a turn says (``not_rendered``).
            ConfigError: as :meth:`render`.
        """
        (made,) = self._ask([_request("render_whole", messages, tools, variables)])
        if isinstance(made, TokenlakeError):
            raise made
        return made

    def render_all(
        self, conversations: Iterable[tuple[Sequence[Message], Sequence[Any] | None]]
    ) -> list[RenderedChat | TokenlakeError]:
        """Render conversations (messages and tools), with what bears loss, or say why one cannot be used.

        Raises:
            ConfigError: as :meth:`render`.
        """
        return self._ask([_request("render_with_loss", messages, tools) for messages, tools in conversations])

    def render_rows(
        self, rows: Iterable[Mapping[str, Any]], *, guarded: bool
    ) -> list[RenderedChat | TokenlakeError]:
        """Render rows, whose fields are variables, with what is marked, or say why one cannot be used.

        Args:
            guarded: whether a special token that is put together of a row's own texts is an error.

        Raises:
            ConfigError: as :meth:`render`.
        """
        return self._ask([_request("render_row", row, guarded) for row in rows])

    def skeleton(self, roles: Sequence[str]) -> Skeleton | None:
        """Return the skeleton of conversations of these roles, None where each must be rendered by itself."""
        (answer,) = PROCESS.ask(self, [_request("skeleton", roles)])
        if "parts" not in answer:
            return None
        parts = tuple(part if isinstance(part, str) else (part[0], part[1]) for part in answer["parts"])
        return Skeleton(parts, tuple(answer["loss"]))

    def _ask(self, requests: Sequence[bytes]) -> list[RenderedChat | TokenlakeError]:
        made: list[RenderedChat | TokenlakeError] = []
        for answer in PROCESS.ask(self, requests):
            if "error" in answer:
                made.append(from_json(answer["error"]))
            else:
                spans = tuple((start, stop) for start, stop in answer["loss"])
                made.append(RenderedChat(answer["text"], spans))
        return made


@final
class RenderProcess:
    """The process that renders for this one; threads may ask it, one after the other."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._opened: set[str] = set()
        self._lock = threading.Lock()

    def ask(self, template: ChatTemplate, requests: Sequence[bytes]) -> list[_Answer]:
        """Return the answer to each request; ``{"error"}`` where there is none.

        Raises:
            ConfigError: the template ends every process.
        """
        done: list[_Answer] = []
        with self._lock:
            while len(done) < len(requests):
                sizes = itertools.accumulate(map(len, requests[len(done) : len(done) + _MOST_REQUESTS]))
                some = max(1, sum(size <= _MOST_BYTES for size in sizes))
                answers, ended = self._exchange(template, requests[len(done) : len(done) + some])
                done += answers
                template.deaths = bool(ended) + (0 if answers else template.deaths)
                if ended:
                    done.append({"error": to_json(template_error(BadRecordError, ended, reason=LIMIT))})
                if template.deaths >= _MOST_DEATHS:
                    raise template_error(
                        ConfigError, f"{ended}, and so it did on the {_MOST_DEATHS - 1} conversations before"
                    )
        return done

    def close(self) -> None:
        """End the process; another begins where one is needed."""
        process, self._process = self._process, None
        self._opened.clear()
        if process is not None:
            process.kill()
            process.communicate()

    def forget(self) -> None:
        """Leave the process to the one that this one is a fork of."""
        if self._process is not None:
            self._process.returncode = 0  # not a child of this one, to be waited for
        self._process, self._opened, self._lock = None, set(), threading.Lock()

    def _exchange(self, template: ChatTemplate, requests: Sequence[bytes]) -> tuple[list[_Answer], str]:
        """Return the answers that came, and how the process ended where some are missing."""
        answers: list[_Answer] = []
        process = self._started()
        new = template.name not in self._opened and requests[0] is not template.opening
        lines = [template.opening, *requests] if new else requests
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            named = (b'["%s", ' % template.name.encode() + line[1:] for line in lines)
            process.stdin.write(b"[" + b", ".join(named) + b"]\n")
            process.stdin.flush()
            self._opened.add(template.name)
            for line in itertools.islice(process.stdout, len(lines)):
                answers.append(json.loads(line))  # noqa: PERF401 (what came before an end counts)
        except (BrokenPipeError, json.JSONDecodeError):
            pass
        except BaseException:
            self.close()  # Ctrl-C: what it would still say is an answer to nothing
            raise
        ended = "" if len(answers) == len(lines) else self._ending(process, template.limits)
        return answers[len(lines) - len(requests) :], ended

    def _started(self) -> subprocess.Popen[bytes]:
        if len(self._opened) >= _MOST_TEMPLATES or (
            self._process is not None and self._process.poll() is not None
        ):
            self.close()
        if self._process is None:
            # Behind Python's own folders; neither the working directory nor the caller's are among them.
            found = (str(find_spec(name).origin) for name in _NEEDED)  # pyright: ignore[reportOptionalMemberAccess]
            folders = dict.fromkeys(str(Path(file).parents[1]) for file in found)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BEGIN, *folders],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={},
                start_new_session=True,  # Ctrl-C reaches this process alone
            )
        return self._process

    def _ending(self, process: subprocess.Popen[bytes], limits: Limits) -> str:
        """Return the problem of a template that ended its process; WorkerDiedError where it did nothing."""
        code = process.wait()
        self.close()
        if code == -signal.SIGXCPU:
            return f" took more than {limits.seconds} seconds of a processor"
        if code == OUT_OF_MEMORY:
            return f" took more than {limits.memory >> 20:,} MiB of memory"
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        raise WorkerDiedError(f"the process that runs the chat template was ended {how}")


def _request(op: str, *given: Any) -> bytes:
    """Return a request in JSON; what is no JSON in it is named by its type.

    Raises:
        BadRecordError: what is given is nested too deep.
    """
    try:
        return json.dumps([op, *given], default=_no_data).encode()
    except (RecursionError, ValueError) as error:
        raise BadRecordError(
            f"the conversation is no plain data: {error}", reason="template_error"
        ) from error


def _no_data(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    return {NO_DATA: type(value).__name__}


def shared_length(left: str, right: str) -> int:
    """Return how many characters two texts begin with alike: by halving, for texts may be long."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[low:middle] == right[low:middle] else (low, middle - 1)
    return low


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text in plain data, however deep, names of fields among them."""
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            fields = cast("Mapping[Any, Any]", item)
            rest += [*fields, *fields.values()]
        elif isinstance(item, list | tuple):
            rest += cast("Sequence[Any]", item)


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return plain data with every text in it changed, but for names of fields."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        return {name: with_texts(item, change) for name, item in fields.items()}
    return (
        [with_texts(item, change) for item in cast("list[Any]", value)] if isinstance(value, list) else value
    )


def templates_of(files: TokenizerFiles) -> dict[str, str]:
    """Return the chat templates of a tokenizer by name; most have one, named ``default``.

    Its own file counts before what is written in tokenizer_config.json.
    """
    if JINJA_FILE in files.files:
        return {DEFAULT: files.files[JINJA_FILE].decode("utf-8", "strict")}
    written: Any = files.config.get("chat_template")
    if isinstance(written, str):
        return {DEFAULT: written}
    found: dict[str, str] = {}
    for entry in cast("list[Any]", written) if isinstance(written, list) else []:
        if isinstance(entry, dict):
            named = cast("dict[str, Any]", entry)
            found[str(named.get("name"))] = str(named.get("template"))
    return found


def chosen_template(asked: str | None, files: TokenizerFiles) -> str:
    """Return the text of the template that a configuration asks for.

    Args:
        asked: Jinja text, the name of one of the tokenizer's templates, or the path of a file; None for the
            tokenizer's own.

    Raises:
        ConfigError: there is none.
    """
    own = templates_of(files)
    if asked is None:
        if DEFAULT not in own:
            raise ConfigError(no_template(files.name, list(own)))
        return own[DEFAULT]
    if "{" in asked or asked in own:
        return own.get(asked, asked)
    expected = (
        "expected a Jinja template (it has {{ or {%), the path of one, or a name of the tokenizer's templates"
    )
    path = Path(asked).expanduser()
    try:
        if path.stat().st_size > 4 * MAX_TEMPLATE:
            raise ConfigError(f"chat.template: {asked!r} has {path.stat().st_size:,} bytes, {expected}")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        known = f": {', '.join(own)}" if own else ""
        raise ConfigError(f"chat.template: {asked!r} cannot be read ({error}); {expected}{known}") from error


def named_tokens(files: TokenizerFiles) -> dict[str, str]:
    """Return the tokens that a template knows by name: bos_token, eos_token, and whatever the tokenizer has."""
    found: dict[str, str] = {}
    for kind in _NAMED_TOKENS:
        value: Any = files.config.get(f"{kind}_token")
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[f"{kind}_token"] = text
    extra: Any = files.config.get("extra_special_tokens")
    if isinstance(extra, dict):
        found |= {str(name): token for name, token in extra.items() if isinstance(token, str)}
    return found


def no_template(tokenizer: str, names: list[str]) -> str:
    """Return what to say of a tokenizer without a chat template."""
    named = (
        f"; its templates are named {', '.join(names)}, of which chat.template can name one" if names else ""
    )
    return (
        f"tokenizer {tokenizer!r} has no chat template (chat_template in tokenizer_config.json, or {JINJA_FILE}), and "
        "rows that hold conversations need one: set chat.template to a Jinja template or to the path of one, or use "
        f"the tokenizer of a chat model{named}"
    )


def check_mode(special_tokens_in_text: str) -> None:
    """Require a way to treat special tokens of rows that chat has.

    Raises:
        ConfigError: ``literal``.
    """
    if special_tokens_in_text == "literal":
        raise ConfigError(
            "special_tokens_in_text: 'literal' is not possible for conversations: their texts are encoded together "
            "with the control tokens of the chat template. Set it to 'fail' (a row that spells one out is a bad "
            "record; the default here) or to 'encode' (it becomes a control token, as the row says)"
        )


PROCESS: Final = RenderProcess()
"""That of this process."""
atexit.register(PROCESS.close)
os.register_at_fork(after_in_child=PROCESS.forget)
