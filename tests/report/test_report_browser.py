"""Reports in a real browser: they load without an error or a request, fit a phone, and show the files' numbers."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Browser, find_chromium
from support.run_files import SUMMARY, write_run

from citrus.cli import main

pytestmark = pytest.mark.skipif(
    find_chromium() is None,
    reason="no Chromium here: install Debian's package chromium, or name a browser in CITRUS_CHROMIUM",
)
HOSTILE = "<img src=x onerror=alert(1)>" + "w" * 150
TABLE = """[...document.querySelectorAll('#headline table tr')].map(row => [...row.cells].map(cell => {
  const copy = cell.cloneNode(true); copy.querySelectorAll('small').forEach(note => note.remove());
  return copy.textContent.trim(); }))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report of one run, and a comparison of three, one of which has a hostile name."""
    folder = tmp_path_factory.mktemp("reports")
    names = ("quickstart", "ibp", HOSTILE)
    runs = [write_run(folder / name, {"method": {"name": name}}, seed=k) for k, name in enumerate(names)]
    assert main(["report", str(runs[0])]) == 0
    assert main(["report", *map(str, runs), "--out", str(folder / "compared")]) == 0
    return {"one": runs[0] / "report.html", "three": folder / "compared" / "report.html"}


@pytest.mark.parametrize("name", ["one", "three"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_loads_clean_and_fits(name: str, dark: bool, width: int, browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages[name], width=width, dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    assert browser.problems == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    outside = browser.evaluate(
        "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, svg') && "
        "e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 80))"
    )
    assert outside == []
    images = browser.evaluate("[...document.images].map(image => image.complete && image.naturalWidth)")
    assert images
    assert all(images)
    assert browser.evaluate("[...document.images].every(image => image.alt)")
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(json.loads(ground.replace("rgb(", "[").replace(")", "]"))) < 300) == dark


def test_a_problem_would_be_noticed(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<img src='http://127.0.0.1:9/x.png'><script>console.error('oh'); throw new Error('no')</script>")
    browser.open(page)
    kinds = {problem.split(":")[0] for problem in browser.problems}
    browser.problems.clear()
    assert {"request", "console", "exception"} <= kinds


def test_says_what_the_files_say(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"])
    proved = json.loads((pages["one"].parent / "certify" / "citrus-0.1-n40-dataset.json").read_text())
    found = dict(browser.evaluate(TABLE))
    assert found["Clean"] == f"{SUMMARY['clean']:.2f}"
    assert found["Certified, one by one (IBP)"] == f"{SUMMARY['ibp_certified']:.2f}"
    assert found["Attacked, one by one (PGD)"] == f"{SUMMARY['pgd']:.2f}"
    assert found["Attacked, universal"] == f"{SUMMARY['universal']:.2f}"
    assert found["Certified, universal"] == f"{proved['certified']:.2f}"
    assert found["Attacked, universal, while certifying"] == f"{proved['attacked']:.2f}"
    assert browser.evaluate("document.querySelector('h1').textContent") == "quickstart"
    headings = browser.evaluate("[...document.querySelectorAll('h2')].map(h => h.textContent)")
    assert headings == [
        "How robust it is",
        "Against group size and eps",
        "Which proof did the work",
        "One perturbation for many images",
        "Which classes fall",
        "Training",
        "Configuration and environment",
    ]


def test_a_comparison_shows_every_run(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["three"])
    header, method, *_ = browser.evaluate(TABLE)
    assert header == ["Measure", "quickstart", "ibp", HOSTILE]
    assert method[1:] == ["quickstart", "ibp", HOSTILE]
    assert browser.evaluate("document.querySelectorAll('[onerror], script').length") == 0


def test_curves_have_a_size_and_stay_in_their_frame(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["three"], width=390)
    lines = browser.evaluate(
        "[...document.querySelectorAll('.plot')].map(plot => { const frame = plot.getBoundingClientRect(); "
        "return [...plot.querySelectorAll('polyline')].map(line => { const box = line.getBoundingClientRect(); "
        "return [box.width, frame.top - box.top, box.bottom - frame.bottom, box.right - frame.right]; }); })"
    )
    assert len(lines) == 6
    for width, *beyond in (line for plot in lines for line in plot):
        assert width > 100
        assert max(beyond) <= 2


def test_the_keyboard_reaches_what_scrolls(browser: Browser, pages: dict[str, Path]) -> None:
    """The first stop skips to the content; links, wide tables and folded parts follow."""
    browser.open(pages["three"], width=390)
    stops = []
    for _ in range(80):
        browser.press("Tab", 9)
        stops.append(browser.evaluate("document.activeElement.className || document.activeElement.tagName"))
    assert stops[0] == "skip"
    assert {"A", "scroll", "SUMMARY"} <= set(stops)
    tables = browser.evaluate("[...document.querySelectorAll('.scroll')].filter(e => e.checkVisibility()).length")
    assert stops[: stops.index("BODY") if "BODY" in stops else None].count("scroll") >= tables
