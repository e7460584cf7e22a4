"""Every error Tokenlake raises on purpose.

::

    TokenlakeError                     exit code 1
    ├── ConfigError                    exit code 2: a configuration, an option or an argument
    │   └── NotAvailableError          a valid option that this release does not implement yet
    ├── MissingExtraError              an optional dependency is not installed
    ├── SourceError                    the raw input
    │   ├── SourceNotFoundError        nothing matches a path, glob or id
    │   ├── DamagedFileError           a file as a whole cannot be trusted; never quarantined
    │   ├── BadRecordError             one record cannot be used and the policy is `fail`
    │   ├── TooManyBadRecordsError     the policy is `quarantine` and `max_bad_fraction` is exceeded
    │   └── InputChangedError          an input is not what it was when the build was planned
    ├── TokenizerError                 loading or running a tokenizer
    │   ├── EngineMismatchError        a fast backend's ids differ from the reference's
    │   └── TemplateMismatchError      a chat template's skeleton says something else than the template
    ├── StoreError                     reading or writing the store
    │   ├── NotFoundError              no such dataset, version or object
    │   └── VersionConflictError       another writer's object is where ours should go
    ├── IntegrityError                 exit code 3: bytes are not what the manifest says
    │   └── AccountError               an audit does not balance
    ├── WorkerError                    running the build
    │   ├── WorkerDiedError            a worker process ended without an answer; worth a retry
    │   └── CancelledError             the build was asked to stop; the state is resumable
    └── DivergedError                  training: the loss is no finite number any more

Every message states the problem, the value found, the value expected and the fix, with
the location (``file:line``) where there is one. Errors cross process boundaries as JSON
(:func:`to_json`, :func:`from_json`): a class is rebuilt by its name, and a message does
not change.

No error repeats the credentials of a URL. A message outlives the terminal: logs and the
database of an orchestrator keep it.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final, cast
from urllib.parse import unquote

SIGNED: Final = re.compile(
    r"^x-(amz|goog)-|^sig(nature)?$|signature|token|secret|passw|credential|policy"
    r"|(^|[_-])key($|[_-])|apikey|key-?id$|^auth|^se$|^sv$|^hdnea$|^hmac$",
    re.IGNORECASE,
)
"""Names in a query that stand for a signature or a key: of S3, GCS, Azure,
CloudFront, and the usual others.
"""

# One slash is enough: a path library may have eaten the other.
_PASSWORD: Final = re.compile(
    r"(\b[a-z][a-z0-9+.-]*:/{1,2})[^\s/'\"<>@]*:[^\s/'\"<>@]*@|(\bhttps?:/{1,2})[^\s/'\"<>@]+@",
    re.IGNORECASE,
)
# Not only behind a scheme: servers repeat the path and the query of a request.
_QUERY: Final = re.compile(
    r"\?[^\s?=\"<>]+=[^\s\"<>]*|(?<=[^\s?\"<>])\?[^\s?=\"<>]{8,}"
)
# Names of the parameters of a query.
_NAME: Final = re.compile(r"([^?&;=]+)=")
# Characters that end the sentence around a URL; within a query they are a part of it.
_AROUND: Final = "'),.;:!]}`"


def without_credentials(text: str, *, every_query: bool = False) -> str:
    """Return `text` without passwords and signed queries in URLs.

    They are found however the URL is quoted.

    Args:
        every_query: True to remove every query. In the message of another library it
            may be a secret under any name.
    """
    # A text without these characters has no URL with a secret.
    clean_text = text
    if "@" in clean_text:
        clean_text = _PASSWORD.sub(
            lambda match: f"{match[1] or match[2]}...@", clean_text
        )
    if "?" in clean_text:
        clean_text = _QUERY.sub(
            lambda match: _shortened(match[0], every_query), clean_text
        )
    return clean_text


def _shortened(query: str, always: bool) -> str:
    """Return a query, or three dots for one that holds a signature.

    Args:
        query: Query with its question mark, and the end of the sentence around it.
        always: True for three dots in any case.
    """
    parameters = query.rstrip(_AROUND)
    end_of_sentence = query[len(parameters) :]
    is_hidden = always
    for name in _NAME.findall(parameters):
        # Names may be percent-encoded.
        if SIGNED.search(unquote(name)):
            is_hidden = True
    if is_hidden:
        return f"?...{end_of_sentence}"
    return query


def _cleaned(value: Any) -> Any:
    """Return a value of an error's details without credentials, lists included."""
    if isinstance(value, list):
        return [_cleaned(item) for item in cast("list[Any]", value)]
    if isinstance(value, str):
        return without_credentials(value)
    return value


class TokenlakeError(Exception):
    """Root of all deliberate errors.

    Args:
        message: Message for people: problem, value found, value expected, fix and
            place. Credentials of URLs are removed.
        details: JSON-able facts for programs, such as ``file``, ``line``, ``expected``
            and ``got``.

    Attributes:
        details: The details, by name.
        exit_code: Exit code of the command line.

    Example:
        >>> import tokenlake as tl
        >>> try:
        ...     tl.open("artifacts/boks")
        ... except tl.TokenlakeError as error:
        ...     type(error).__name__, error.exit_code
        ('NotFoundError', 2)
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(_cleaned(message))
        # Details reach logs and other processes like the message.
        self.details: dict[str, Any] = {}
        for name, value in details.items():
            self.details[name] = _cleaned(value)

    @property
    def field_path(self) -> str | None:
        """Place in a configuration or a row, such as ``prompt.template``, or None."""
        return self.details.get("field_path")

    @property
    def expected(self) -> Any:
        """Value that was expected; None if the error does not state it."""
        return self.details.get("expected")

    @property
    def got(self) -> Any:
        """Value that was found; None if the error does not state it."""
        return self.details.get("got")

    # Exceptions are pickled by their arguments alone, which would lose the details.
    def __reduce__(self) -> tuple[Any, ...]:
        return from_json, (to_json(self),)


class ConfigError(TokenlakeError):
    """A configuration, an option or an argument is wrong.

    Example:
        >>> import tokenlake as tl
        >>> from tokenlake.errors import ConfigError
        >>> try:
        ...     tl.load_config({"datasets": []}, ["pack.seq_lenght=512"])
        ... except ConfigError as error:
        ...     error.exit_code, str(error)[:67]
        (2, "pack.seq_lenght (override): unknown key; did you mean 'seq_length'?")
    """

    exit_code = 2


class NotAvailableError(ConfigError):
    """A valid option that this release does not implement yet."""


class MissingExtraError(TokenlakeError):
    """An optional dependency is missing; the message holds the exact install line."""


class SourceError(TokenlakeError):
    """The raw input cannot be used.

    Example:
        >>> import tokenlake as tl
        >>> from tokenlake.errors import SourceError
        >>> try:
        ...     tl.create_source({"data_files": "missing/*.jsonl"})
        ... except SourceError as error:
        ...     error.exit_code
        2
    """


class SourceNotFoundError(SourceError):
    """Nothing matches a path, glob or id; the message names similar ones."""

    exit_code = 2


class DamagedFileError(SourceError):
    """A file as a whole cannot be trusted (cut, corrupted, wrong format).

    It is never quarantined.
    """


class UnsuitableFileError(DamagedFileError):
    """A file is whole, but of another format, encoding, column or type than expected.

    It is never quarantined, and is handled wherever damaged files are.
    """


class BadRecordError(SourceError):
    """A record cannot be used, and ``on_bad_record`` is ``fail``."""


class TooManyBadRecordsError(SourceError):
    """More records are bad than ``max_bad_fraction`` allows."""


class InputChangedError(SourceError):
    """An input differs from its state when the build was planned."""


class TokenizerError(TokenlakeError):
    """A tokenizer cannot be loaded or used.

    Example:
        >>> from tokenlake.data_pipeline import TokenizerWrapper
        >>> from tokenlake.errors import TokenizerError
        >>> isinstance(TokenizerWrapper.from_pretrained("data").unwrap_err(), TokenizerError)
        True
    """


class EngineMismatchError(TokenizerError):
    """A faster tokenizer gives other ids than the reference for a text."""


class TemplateMismatchError(TokenizerError):
    """A conversation rendered with others differs from its chat template's result."""


class StoreError(TokenlakeError):
    """The store cannot be read or written."""


class NotFoundError(StoreError):
    """A dataset, version or object of a store does not exist."""

    exit_code = 2


class VersionConflictError(StoreError):
    """Another writer created or changed the object first."""


class IntegrityError(TokenlakeError):
    """Bytes differ from their hash in the manifest."""

    exit_code = 3


class AccountError(IntegrityError):
    """An audit of rows or tokens does not balance: something was lost or added."""


class WorkerError(TokenlakeError):
    """A build cannot be completed."""


class WorkerDiedError(WorkerError):
    """A worker process ended without an answer (killed, out of memory).

    A retry may succeed.
    """


class CancelledError(WorkerError):
    """The build was asked to stop. Finished units are kept, and a rerun resumes."""

    exit_code = 130


class DivergedError(TokenlakeError):
    """A loss, a gradient or a parameter of a training run is not finite."""


def _tree(cls: type[TokenlakeError]) -> dict[str, type[TokenlakeError]]:
    """Return a class and all classes below it, by name."""
    classes = {cls.__name__: cls}
    for child in cls.__subclasses__():
        classes |= _tree(child)
    return classes


_BY_NAME: Final = _tree(TokenlakeError)


def to_json(error: TokenlakeError) -> dict[str, Any]:
    """Return ``{"type", "message", "details"}`` of an error.

    It is enough for :func:`from_json` to rebuild the error.
    """
    return {
        "type": type(error).__name__,
        "message": str(error),
        "details": error.details,
    }


def from_json(data: dict[str, Any]) -> TokenlakeError:
    """Rebuild an error written by :func:`to_json`; an unknown type becomes the root."""
    cls = _BY_NAME.get(data["type"], TokenlakeError)
    return cls(data["message"], **data["details"])
