"""Files that are whole, but hold something else than their names say: what they hold, and how to get at it.

A download that failed leaves an HTML page under the name of the data. A repository that was cloned without its large
files leaves pointers. Spreadsheets write UTF-16. None of these is damage, and each has its own remedy.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tokenlake.errors import UnsuitableFileError
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import unsuitable
from tokenlake.etl.sources.inputs import InputFile

HEAD_BYTES: Final = 512
"""Bytes at the beginning of a file that are looked at."""

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
_LEAST: Final = 2  # characters of ASCII from which an encoding is told
_FIRST: Final = 4  # characters that are looked at; JSON and most headers begin with ASCII


class Content(NamedTuple):
    """What a file holds, and what to do about it."""

    what: str
    how: str


def encoding_of(head: bytes) -> str | None:
    """Return the name of the encoding of 16 or 32 bits in which a file is written, None for another one.

    Without a byte order mark it is told by the zero bytes beside characters of ASCII.
    """
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    for name, width, place in (
        ("UTF-32LE", 4, 0),
        ("UTF-32BE", 4, 3),
        ("UTF-16LE", 2, 0),
        ("UTF-16BE", 2, 1),
    ):
        if _is_encoded(head, width, place):
            return name
    return None


def _is_encoded(head: bytes, width: int, place: int) -> bool:
    """Return whether the first characters, of `width` bytes each, are ASCII with zeros beside the byte at `place`."""
    count = min(len(head) // width, _FIRST)
    if count < _LEAST:
        return False
    for start in range(0, count * width, width):
        character = head[start : start + width]
        others = character[:place] + character[place + 1 :]
        if not 0 < character[place] < 128 or any(others):
            return False
    return True


def content_of(head: bytes) -> Content | None:
    """Return what a file holds that begins with `head`, if it is one of the mistakes that are known."""
    if encoding := encoding_of(head):
        how = f"convert it, for example with `iconv -f {encoding} -t UTF-8 OLD > NEW`"
        return Content(f"it is encoded in {encoding}, expected UTF-8", how)
    text = head.removeprefix(_UTF8_MARK).lstrip(_SPACE)
    if text.startswith(_LFS):
        how = "fetch the file itself with `git lfs pull`, or download it from the repository's website"
        return Content("it is a pointer of Git LFS, which stands for the file", how)
    if _ANNEX.match(text):
        return Content(
            "it is a pointer of git-annex, which stands for the file", "fetch it with `git annex get`"
        )
    if _HTML.match(text):
        how = "open it to see what the server said, and download the file again"
        return Content("it is an HTML page, such as a website sends in place of a file", how)
    if _XML.match(text):
        how = "open it to see what it says; a storage answers in XML where a download failed"
        return Content("it is an XML document", how)
    return None


def check_records(file: InputFile, head: bytes) -> None:
    """Raise UnsuitableFileError where a file of records in text begins like something else that is known.

    Args:
        head: the first bytes of it, decompressed.
    """
    if file.format == "text":  # where pages and pointers may be documents
        return
    content = content_of(head[:HEAD_BYTES])
    if content is not None:
        raise unsuitable(file, content.what, content.how)


def wrong_magic(data: InputBytes, magic: bytes, name: str) -> UnsuitableFileError | None:
    """Return the error of a file that does not begin with the magic bytes of its format, None where it does.

    Args:
        name: of the format.
    """
    file, head = data.file, data.pread(HEAD_BYTES, 0)
    if magic.startswith(head) or head.startswith(magic):
        return None
    content = content_of(head)
    if content is not None:
        return unsuitable(file, content.what, content.how)
    if _is_text(head):
        begin = head[:40].decode("utf-8", "replace")
        told = f"it is text and no {name}: it begins with {begin!r}"
        return unsuitable(file, told, "give it the extension of what it holds, such as .jsonl or .csv")
    return None


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # not a character that is cut at the end
            return False
        text = head[: error.start].decode()
    return all(character.isprintable() or character in "\t\r\n" for character in text)
