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

Every message says what is wrong, what was found, what was expected and how to put it
right, with the location (``file:line``) where there is one. Errors cross process
boundaries as JSON (:func:`to_json`, :func:`from_json`): a class is rebuilt by its name,
a message stays as it was.

No error repeats the credentials of a URL, wherever somebody wrote one: a message
outlives the terminal, in the logs and in the database of whoever orchestrates.
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
_NAME: Final = re.compile(r"([^?&;=]+)=")
# What ends the sentence around a URL; within a query it is a part of the query.
_AROUND: Final = "'),.;:!]}`"


def without_credentials(text: str, *, every_query: bool = False) -> str:
    """Return `text` without passwords and signed queries in URLs.

    They are found however the URL is quoted.

    Args:
        every_query: True to remove every query. In the message of another library it
            may be a secret under any name.
    """
    if "@" in text:
        text = _PASSWORD.sub(lambda found: f"{found[1] or found[2]}...@", text)
    return (
        _QUERY.sub(lambda found: _shortened(found[0], every_query), text)
        if "?" in text
        else text
    )


def _shortened(query: str, always: bool) -> str:
    inner = query.rstrip(_AROUND)
    if always or any(SIGNED.search(unquote(name)) for name in _NAME.findall(inner)):
        return f"?...{query[len(inner) :]}"
    return query


def _cleaned(value: Any) -> Any:
    if isinstance(value, list):
        return [_cleaned(each) for each in cast("list[Any]", value)]
    return without_credentials(value) if isinstance(value, str) else value


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
        self.details: dict[str, Any] = {
            name: _cleaned(value) for name, value in details.items()
        }

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
    found = {cls.__name__: cls}
    for child in cls.__subclasses__():
        found |= _tree(child)
    return found


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
