"""The documentation as a site: it builds without a warning, links lead somewhere, and nothing is fetched."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from support.browser import Browser, find_chromium
from support.documents import PAGES, ROOT

import citrus
from citrus.cli import COMMANDS
from citrus.methods import METHODS

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("mkdocs", "latex2mathml")),
    reason="mkdocs or latex2mathml is not installed: pip install -e '.[docs]'",
)
needs_chromium = pytest.mark.skipif(
    find_chromium() is None,
    reason="no Chromium here: install Debian's package chromium, or name a browser in CITRUS_CHROMIUM",
)


def build(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT, out)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return out


class Page(HTMLParser):
    """What a page links to, what it loads, and the places in it that can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.loads += [values[name] for name in ("src", "srcset") if name in values]
        self.loads += [values["href"]] if tag == "link" else []
        self.places |= {values["id"]} if "id" in values else set()


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """All that were made from Markdown."""
    return {path: Page(path) for path in site.rglob("*.html")}


def test_every_page_is_there(site: Path, pages: dict[Path, Page]) -> None:
    names = {str(path.relative_to(site)) for path in pages}
    written = {Path(page).with_suffix(".html").name for page in PAGES if page.startswith("docs/")}
    assert names >= written | {"results.html", "api.html", "commands.html", "methods.html"}
    menu = {urlsplit(link).path for link in pages[site / "index.html"].links}
    assert menu >= written, "the menu names every page"


def test_every_link_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    checked = 0
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                assert parts.scheme == "https", f"{path.name}: {link}"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.is_file(), f"{path.relative_to(site)} links to {link}, which is not there"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].places, f"{path.relative_to(site)}: no place {link}"
            checked += 1
    assert checked > 400


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        for load in page.loads:
            assert load == "data:," or (path.parent / load).resolve().is_file(), f"{path.name} loads {load}"
    for path in (*site.rglob("*.css"), *site.rglob("*.js")):
        if path.name != "sections.js":
            assert not re.search(r"https?://|@import|url\(", path.read_text(encoding="utf-8")), path.name


def test_formulas_are_rendered(site: Path) -> None:
    text = (site / "mathematics.html").read_text(encoding="utf-8")
    assert text.count("<math") > 60
    assert not re.search(r"\$\$|FORMULA\d|\\(?:frac|sum|left|Big|mathrm|delta)", text)


def test_the_reference_names_everything(site: Path) -> None:
    api, methods, commands = (Page(site / f"{name}.html").places for name in ("api", "methods", "commands"))
    assert {f"citrus{name}".lower() for name in citrus.__all__ if name != "__version__"} <= api
    assert set(METHODS) <= methods
    assert {f"citrus-{name}" for name in COMMANDS} <= commands
    text = (site / "api.html").read_text(encoding="utf-8")
    for name in ("group_size:", "certify", "1 is ordinary certification"):
        assert name in text
    assert "--log" in (site / "commands.html").read_text(encoding="utf-8")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The documentation to change something in."""
    root = tmp_path / "copy"
    shutil.copytree(ROOT / "docs", root / "docs")
    shutil.copytree(ROOT / "dev", root / "dev")
    shutil.copy(ROOT / "mkdocs.yml", root)
    return root


def add(page: Path, *links: str) -> None:
    before = page.read_text(encoding="utf-8")
    page.write_text("\n\n".join([before, *(f"[to {link}]({link})" for link in links)]), encoding="utf-8")


def test_dead_links_stop_the_build(copy: Path, tmp_path: Path) -> None:
    dead = ("nowhere.md", "tutorial.md#no-such-place", "nofolder", "picture.png")
    add(copy / "docs" / "gpu.md", *dead)
    done = build(copy, tmp_path / "site")
    assert done.returncode != 0
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == len(dead)
    assert all(any(link in warning for warning in warnings) for link in dead)


def test_what_lies_outside_the_documentation_is_named_but_not_linked(copy: Path, tmp_path: Path) -> None:
    add(copy / "docs" / "gpu.md", "../mkdocs.yml", "tutorial.md")
    site = tmp_path / "site"
    done = build(copy, site)
    assert done.returncode == 0, done.stderr
    assert "to ../mkdocs.yml" in (site / "gpu.html").read_text(encoding="utf-8")
    links = Page(site / "gpu.html").links
    assert "tutorial.html" in links
    assert not any("mkdocs.yml" in link for link in links)


def test_links_of_the_readme_exist() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / name).read_text(encoding="utf-8")):
            left_out = link.startswith("results") and not (ROOT / "results").exists()  # of a source archive
            assert left_out or (ROOT / link).exists(), f"{name} links to {link}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)], ids=["phone", "desktop"])
def test_pages_load_clean_and_fit(
    width: int, dark: bool, site: Path, browser: Browser, pages: dict[Path, Page]
) -> None:
    for path in sorted(pages):
        browser.open(path, width=width, dark=dark)
        assert browser.problems == [], path.name
        assert browser.evaluate("document.documentElement.scrollWidth") <= width, path.name
        assert browser.evaluate("document.querySelectorAll('h1').length") == 1, path.name
        assert browser.evaluate("[...document.images].every(i => i.complete && i.naturalWidth && i.alt)"), path.name
        ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(json.loads(ground.replace("rgb(", "[").replace(")", "]"))) < 300) == dark


@needs_chromium
def test_search_finds_sections(site: Path, browser: Browser) -> None:
    browser.open(site / "results.html")
    type_in = "const q = document.getElementById('query'); q.value = {}; q.dispatchEvent(new Event('input'))"
    browser.evaluate(f"{{ {type_in.format(json.dumps('sampled partners'))} }}")
    first = "document.querySelector('#found a')"
    assert browser.evaluate(f"{first}.textContent") == "Sampled partners (The mathematics)"
    target = browser.evaluate(f"{first}.href")
    assert target == f"{(site / 'mathematics.html').as_uri()}#sampled-partners"
    browser.evaluate(f"{{ {type_in.format(json.dumps('xyzzy'))} }}")
    assert browser.evaluate("document.getElementById('found').textContent") == "Nothing found."
    assert browser.problems == []
