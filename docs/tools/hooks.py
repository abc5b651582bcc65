"""What the site needs beyond Markdown (mkdocs calls these functions): reference pages, mathematics, search."""

import html
import json
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File
from reference import api_page, commands_page, methods_page

GENERATED = {"api.md": api_page, "commands.md": commands_page, "methods.md": methods_page}
CODE_OR_FORMULA = re.compile(r"(```.*?```|`[^`\n]*`)|\$\$(.+?)\$\$|\$([^$\n]+)\$", re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)\s#]+)(?:#[^)\s]*)?\)")
HEADING = re.compile(r'<h[1-3] id="([^"]*)">(.*?)</h[1-3]>')


def on_config(config: Any) -> None:
    config.extra.update(formulas=[], sections=[])


def on_files(files: Any, config: Any) -> None:
    for name, make in GENERATED.items():
        files.append(File.generated(config, name, content=make()))


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    formulas = config.extra["formulas"]

    def formula(found: re.Match[str]) -> str:
        code, block, inline = found.groups()
        if code:
            return code
        formulas.append(convert((block or inline).strip(), display="block" if block else "inline"))
        return f"FORMULA{len(formulas) - 1}X"

    def link(found: re.Match[str]) -> str:
        """What lies outside the documentation is named, since the site does not hold it."""
        text, target = found.groups()
        path = (Path(page.file.abs_src_path).parent / target).resolve()
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
