"""The pages of the site that are written from the code: keys of configurations,
commands and public names.

MkDocs calls `on_files` and `on_page_markdown` (`hooks` of mkdocs.yml). The contents of
these pages are in the code alone: the text under a field, the help of a command, the
docstring of a name.
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

_LINK: Final = re.compile(r"\[([^\]]+)\]\((\.\./[^)]*)\)")
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
"""Page -> factor of its rank in the search. Names that most readers do not need come
after those that they do.
"""

_FILE: Final = re.compile(r"\[([\w./]+\.md)\]\(([\w./]+\.md)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are written from the code."""
    pages = {"keys": key_page(), "commands": command_page(), **python_pages()}
    for name, content in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Rank the page in the search, and rewrite its links.

    A page that is linked by the name of its file is called by its title. A link to a
    file beside docs/, which the site does not have, is shown as its name.
    """
    if page.file.src_uri in _BOOSTS:
        page.meta["search"] = {"boost": _BOOSTS[page.file.src_uri]}
    folder = posixpath.dirname(page.file.src_uri)

    def titled(link: re.Match[str]) -> str:
        target = files.get_file_from_path(
            posixpath.normpath(posixpath.join(folder, link[2]))
        )
        title = target and re.search("^# (.+)$", target.content_string, re.MULTILINE)
        return f"[{title[1]}]({link[2]})" if title else link[0]

    def named(link: re.Match[str]) -> str:
        is_outside = posixpath.normpath(posixpath.join(folder, link[2])).startswith(
            ".."
        )
        return f"`{link[1].strip('`')}`" if is_outside else link[0]

    return _LINK.sub(named, _FILE.sub(titled, markdown))
