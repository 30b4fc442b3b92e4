"""A hook of mkdocs: pages link to files beside docs/ (results, configs, examples), which GitHub finds, a site does not.
Each file that is linked becomes a file of the site, below project/, and the links lead there."""

import posixpath
import re
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parents[1]
PAGES, BESIDE = "docs/", "project/"
LINK = re.compile(r"(\]\()((?:\.\./)*[\w.][^)\s:#]*)")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the files beside docs/ that a page, or such a file, links to."""
    from mkdocs.structure.files import File

    known = {file_of(file.src_uri) for file in files}
    waiting = sorted(known)
    while waiting:
        page = waiting.pop()
        for _, target in LINK.findall(FENCE.sub("", (HOME / page).read_text())) if page.endswith(".md") else ():
            file = linked(page, target)
            if file not in known and (HOME / file).is_file():
                known.add(file)
                waiting.append(file)
                files.append(File.generated(config, uri_of(file), abs_src_path=str(HOME / file)))
    return files


def on_page_markdown(text: str, *, page: Any, **_: Any) -> str:
    """Let links that leave docs/ lead to the files of the site."""
    own = page.file.src_uri

    def changed(link: re.Match[str]) -> str:
        uri = uri_of(linked(file_of(own), link[2]))
        return link[1] + posixpath.relpath(uri, posixpath.dirname(own) or ".")

    return "".join(part if part.startswith("```") else LINK.sub(changed, part) for part in FENCE.split(text))


def linked(page: str, target: str) -> str:
    """The file, below the project's folder, that a link of a page leads to; of a folder its README."""
    file = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    return f"{file}/README.md" if (HOME / file / "README.md").is_file() else file


def file_of(uri: str) -> str:
    return uri.removeprefix(BESIDE) if uri.startswith(BESIDE) else PAGES + uri


def uri_of(file: str) -> str:
    return file.removeprefix(PAGES) if file.startswith(PAGES) else BESIDE + file
