"""Hook of mkdocs (`make docs`): put files from outside docs/ on the site, and adapt the links to their places there.

Pages are written for GitHub, where a link is relative to its file in the repository. On the site README.md is the first
page, docs/ is the root, and any other file that a page links is below repository/. Needs no address of a repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
OUTSIDE = "repository/"
"""Apart from docs/: SECURITY.md and docs/security.md would be one file where case does not count."""
LINK = re.compile(r"(?<=\]\()[\w./-]+(?=[#)])")


def place(source: str) -> str:
    """Return where a file of the repository is on the site."""
    if source == "README.md":
        return source
    return source.removeprefix("docs/") if source.startswith("docs/") else OUTSIDE + source


def source(place: str) -> str:
    """Return the file of the repository that is at this place of the site."""
    if place == "README.md":
        return place
    return place.removeprefix(OUTSIDE) if place.startswith(OUTSIDE) else f"docs/{place}"


def targets(page: str, text: str) -> dict[str, str]:
    """Return the links of a page to files of the repository, each with the path of its file."""
    paths = {link: normpath(f"{dirname(page)}/{link}".lstrip("/")) for link in LINK.findall(text)}
    return {link: path for link, path in paths.items() if (ROOT / path).is_file()}


def moved(page: str, text: str) -> str:
    """Make links relative to the page's place on the site. A link to what is no file stays: mkdocs then reports it."""
    found = targets(page, text)
    start = dirname(place(page)) or "."
    return LINK.sub(lambda match: relpath(place(found[match[0]]), start) if match[0] in found else match[0], text)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add README.md and each file outside docs/ that a page links, also a page added here."""
    from mkdocs.structure.files import File

    seen: set[str] = set()
    waiting = {"README.md", *(source(file.src_uri) for file in files.documentation_pages())}
    while waiting:
        path = waiting.pop()
        seen.add(path)
        if files.get_file_from_path(place(path)) is None:
            files.append(File.generated(config, place(path), abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            waiting |= set(targets(path, (ROOT / path).read_text(encoding="utf-8")).values()) - seen
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Adapt the links of a page."""
    return moved(source(page.file.src_uri), markdown)
