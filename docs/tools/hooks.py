"""What the site needs beyond Markdown (mkdocs calls these functions): reference pages, results, mathematics, search."""

import html
import json
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File
from pathspec import GitIgnoreSpec
from reference import api_page, commands_page, methods_page

GENERATED = {"api.md": api_page, "commands.md": commands_page, "methods.md": methods_page}
CODE_OR_FORMULA = re.compile(r"(```.*?```|`[^`\n]*`)|\$\$(.+?)\$\$|\$([^$\n]+)\$", re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)\s#]+)((?:#[^)\s]*)?)\)")
HEADING = re.compile(r'<h[1-3] id="([^"]*)">(.*?)</h[1-3]>')


def on_config(config: Any) -> None:
    """Every page of measured results has its place in the menu. A report is shown as its page, not as its twin."""
    folder = Path(config.docs_dir) / "results"
    twins = [str(path.relative_to(config.docs_dir)) for path in folder.rglob("*.md") if _is_twin(path)]
    config.exclude_docs += GitIgnoreSpec.from_lines(twins)
    pages = sorted(path.name for path in folder.glob("*.md") if path.name != "README.md")
    config.nav.append({"Results": [f"results/{name}" for name in ("README.md", *pages)]})
    config.extra.update(formulas=[], sections=[])


def on_files(files: Any, config: Any) -> None:
    for name, make in GENERATED.items():
        files.append(File.generated(config, name, content=make()))
    for folder in sorted(path for path in (Path(config.docs_dir) / "results").iterdir() if path.is_dir()):
        if _index(folder) == "index.md":
            files.append(File.generated(config, f"results/{folder.name}/index.md", content=_listing(folder)))


def _is_twin(path: Path) -> bool:
    """Markdown beside an HTML page of the same name: both would have the same place on the site."""
    return path.suffix == ".md" and path.with_suffix(".html").exists()


def _index(folder: Path) -> str:
    """The page of a folder: its own, or a list of its files."""
    return "README.md" if (folder / "README.md").exists() else "index.md"


def _listing(folder: Path) -> str:
    """The files of a run as they were written, one link each."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and not _is_twin(path))
    lines = "\n".join(f"- [{name}]({name})" for name in names)
    return f"# {folder.name}\n\nThe files as Citrus wrote them. [All results](../README.md)\n\n{lines}\n"


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    formulas = config.extra["formulas"]

    def formula(found: re.Match[str]) -> str:
        code, block, inline = found.groups()
        if code:
            return code
        formulas.append(convert((block or inline).strip(), display="block" if block else "inline"))
        return f"FORMULA{len(formulas) - 1}X"

    def link(found: re.Match[str]) -> str:
        """A folder has an index; what lies outside the documentation is named, since the site does not hold it."""
        text, target, anchor = found.groups()
        path = (Path(page.file.abs_src_path).parent / target).resolve()
        if path.is_dir() and path.is_relative_to(Path(config.docs_dir)):
            return f"[{text}]({target.rstrip('/')}/{_index(path)}{anchor})"
        outside = path.exists() and not path.is_relative_to(Path(config.docs_dir))
        return text if outside else found[0]

    if page.file.abs_src_path:
        markdown = LINK.sub(link, markdown)
    return CODE_OR_FORMULA.sub(formula, markdown)


def on_page_content(content: str, page: Any, config: Any, **_: Any) -> str:
    content = re.sub(r"FORMULA(\d+)X", lambda found: config.extra["formulas"][int(found[1])], content)
    start = None
    for found in [*HEADING.finditer(content), None]:
        if start:
            inside = content[start.end() : found.start() if found else None]
            place = {"page": page.title, "title": _text(start[2]).rstrip(" #"), "text": _text(inside)}
            config.extra["sections"].append({**place, "url": f"{page.url}#{start[1]}"})
        start = found
    scroll = '<div class="scroll" role="region" aria-label="Table" tabindex="0">'
    return content.replace("<table>", f"{scroll}<table>").replace("</table>", "</table></div>")


def _text(content: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", content)).split())


def on_post_build(config: Any) -> None:
    """What search.js looks through, as a script, because pages opened from a disk may not fetch anything."""
    sections = json.dumps(config.extra["sections"], ensure_ascii=False)
    (Path(config.site_dir) / "sections.js").write_text(f"window.SECTIONS = {sections};\n", encoding="utf-8")
