"""Files that are whole, but hold something else than their names say, and remedies.

A download that failed leaves an HTML page under the name of the data. A repository that
was cloned without its large files leaves pointers. Spreadsheets write UTF-16. None of
these is damage, and each has its own remedy.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tokenlake.errors import UnsuitableFileError
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import unsuitable
from tokenlake.etl.sources.inputs import InputFile

HEAD_BYTES: Final = 512
"""Number of bytes at the beginning of a file that are checked."""

_UTF8_MARK: Final = b"\xef\xbb\xbf"
_SPACE: Final = b" \t\r\n"
_HTML: Final = re.compile(rb"<(!doctype\s+html|html|head|body)[\s>]", re.IGNORECASE)
_XML: Final = re.compile(rb"<\?xml\s|<Error>")
_LFS: Final = b"version https://git-lfs.github.com/spec/"
_ANNEX: Final = re.compile(rb"(\.\./)*\.git/annex/objects/|/annex/objects/")
_MARKS: Final = (
    # UTF-32 first: its little-endian mark begins with that of UTF-16.
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
# Encodings without a mark: name, bytes of a character, and the place of the byte of
# ASCII in it.
_UNMARKED_ENCODINGS: Final = (
    ("UTF-32LE", 4, 0),
    ("UTF-32BE", 4, 3),
    ("UTF-16LE", 2, 0),
    ("UTF-16BE", 2, 1),
)
_MIN_CHARACTERS: Final = 2  # of ASCII by which an encoding is recognized
_CHECKED_CHARACTERS: Final = 4  # JSON and most headers begin with ASCII
_SHOWN_BYTES: Final = 40


class Content(NamedTuple):
    """Content of a file that is none of records.

    Attributes:
        problem: Clause about the content, and the expected one.
        remedy: Imperative, such as "convert it".
    """

    problem: str
    remedy: str


def encoding_of(head: bytes) -> str | None:
    """Return the encoding of a file in 16 or 32 bits; None for another one.

    Without a byte order mark it is recognized by the zero bytes beside characters of
    ASCII.

    Args:
        head: First bytes of the file.
    """
    # A byte order mark decides. Without one, the zero bytes of ASCII characters do.
    for byte_order_mark, encoding in _MARKS:
        if head.startswith(byte_order_mark):
            return encoding
    for encoding, width, byte_index in _UNMARKED_ENCODINGS:
        if _is_encoded(head, width, byte_index):
            return encoding
    return None


def _is_encoded(head: bytes, width: int, place: int) -> bool:
    """Say whether the first characters are ASCII, each in `width` bytes.

    All bytes of a character are zeros except the one at `place`.
    """
    character_count = min(len(head) // width, _CHECKED_CHARACTERS)
    if character_count < _MIN_CHARACTERS:
        return False
    for character_start in range(0, character_count * width, width):
        character = head[character_start : character_start + width]
        other_bytes = character[:place] + character[place + 1 :]
        if not 0 < character[place] < 128 or any(other_bytes):
            return False
    return True


def content_of(head: bytes) -> Content | None:
    """Return the content of a file that begins with a known mistake; None otherwise.

    Args:
        head: First bytes of the file.
    """
    encoding = encoding_of(head)
    if encoding is not None:
        remedy = (
            f"convert it, for example with `iconv -f {encoding} -t UTF-8 OLD > NEW`"
        )
        return Content(f"it is encoded in {encoding}, expected UTF-8", remedy)
    # Pages and messages may begin with blank lines.
    visible_bytes = head.removeprefix(_UTF8_MARK).lstrip(_SPACE)
    if visible_bytes.startswith(_LFS):
        remedy = "fetch the file itself with `git lfs pull`, or download it from the repository's website"
        return Content("it is a pointer file of Git LFS, not the file itself", remedy)
    if _ANNEX.match(visible_bytes):
        return Content(
            "it is a pointer file of git-annex, not the file itself",
            "fetch it with `git annex get`",
        )
    if _HTML.match(visible_bytes):
        remedy = "open it to read the server's message, and download the file again"
        return Content(
            "it is an HTML page, which a website sends instead of a file", remedy
        )
    if _XML.match(visible_bytes):
        remedy = "open it to read the message: a failed download from a storage service is XML"
        return Content("it is an XML document", remedy)
    return None


def check_records(file: InputFile, head: bytes) -> None:
    """Check that a file of records in text does not begin with a known mistake.

    Raises:
        UnsuitableFileError: It does.

    Args:
        file: The file.
        head: Its first bytes, decompressed.
    """
    if file.format == "text":  # whose documents may be pages and pointers
        return
    content = content_of(head[:HEAD_BYTES])
    if content is not None:
        raise unsuitable(file, content.problem, content.remedy)


def wrong_magic(
    data: InputBytes, magic: bytes, name: str
) -> UnsuitableFileError | None:
    """Return the error for a file without the magic bytes of its format, or None.

    Args:
        data: The open file.
        magic: Magic bytes.
        name: Name of the format.
    """
    file = data.file
    first_bytes = data.pread(HEAD_BYTES, 0)
    # A file that is shorter than its magic is cut, which its reader reports as damage.
    if magic.startswith(first_bytes) or first_bytes.startswith(magic):
        return None
    content = content_of(first_bytes)
    if content is not None:
        return unsuitable(file, content.problem, content.remedy)
    if _is_text(first_bytes):
        shown_text = first_bytes[:_SHOWN_BYTES].decode("utf-8", "replace")
        problem = f"it is text and no {name}: it begins with {shown_text!r}"
        return unsuitable(
            file, problem, "give it the extension of its format, such as .jsonl or .csv"
        )
    return None


def _is_text(head: bytes) -> bool:
    """Say whether the first bytes of a file are printable UTF-8."""
    try:
        decoded_text = head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # not a character that is cut at the end
            return False
        decoded_text = head[: error.start].decode()
    return all(
        character.isprintable() or character in "\t\r\n" for character in decoded_text
    )
