"""Hooks of MkDocs that add the reference to the site and rewrite links.

The pages of the reference are generated from the code: keys of configurations, commands
and public names. Their contents are the text under a field, the help of a command and
the docstring of a name.

MkDocs calls :func:`on_files` and :func:`on_page_markdown` (``hooks`` in mkdocs.yml).
"""

from __future__ import annotations

import posixpath
import re
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from reference_commands import command_page
from reference_keys import key_page
from reference_python import python_pages

_BOOSTS: Final = {
    "training.md": 2.0,
    "howto/validation.md": 2.0,
    "reference/loading.md": 2.0,
    "reference/keys.md": 2.0,
    "reference/data_pipeline.md": 0.3,
    "reference/rows.md": 0.3,
    "reference/transforms.md": 0.5,
    "reference/packing.md": 0.3,
    "reference/caches.md": 0.3,
    "architecture.md": 0.5,
    "seeds.md": 0.3,
}
"""Page -> factor of its rank in the search.

Pages that few readers need are ranked below the others.
"""

_OUTSIDE_LINK: Final = re.compile(r"\[([^\]]+)\]\((\.\./[^)]*)\)")
"""Link whose target begins with ``../``."""

_FILE_LINK: Final = re.compile(r"\[([\w./]+\.md)\]\(([\w./]+\.md)\)")
"""Link whose text is the name of a page's file."""

_TITLE: Final = re.compile("^# (.+)$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the reference to the files of the site."""
    pages = python_pages()
    pages["keys"] = key_page()
    pages["commands"] = command_page()
    for name, content in pages.items():
        path = f"reference/{name}.md"
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Set the rank of a page in the search, and return its text with other links.

    A link whose text is the name of a file gets the title of the page as its text. A
    link to a file outside docs/, which the site does not have, becomes its text.

    Args:
        markdown: Text of the page.
        page: Page; its metadata are changed.
        config: Configuration of the site.
        files: Files of the site.
    """
    if page.file.src_uri in _BOOSTS:
        page.meta["search"] = {"boost": _BOOSTS[page.file.src_uri]}
    folder = posixpath.dirname(page.file.src_uri)

    def path_of(link: re.Match[str]) -> str:
        """Return the path of a link's target, relative to docs/."""
        return posixpath.normpath(posixpath.join(folder, link[2]))

    def with_title(link: re.Match[str]) -> str:
        """Return a link with the title of its target as text."""
        target = files.get_file_from_path(path_of(link))
        if target is None:
            return link[0]
        title = _TITLE.search(target.content_string)
        if title is None:
            return link[0]
        return f"[{title[1]}]({link[2]})"

    def without_outside(link: re.Match[str]) -> str:
        """Return a link, or its text as code if the target is outside docs/."""
        if path_of(link).startswith(".."):
            text = link[1].strip("`")
            return f"`{text}`"
        return link[0]

    markdown = _FILE_LINK.sub(with_title, markdown)
    return _OUTSIDE_LINK.sub(without_outside, markdown)
