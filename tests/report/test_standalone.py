"""A chart as an SVG file: well-formed, harmless, complete, and drawn where it should be."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from support.browser import Browser, find_chromium

from citrus.report.charts import HEIGHT, LEGEND_LINE, WIDTH, Line, line_chart, linear_axis, series, svg_file, value_axis

NASTY = "<script>alert('x')</script> & \"one\" ]]>"


def chart(title: str = "Accuracy", more: tuple[str, ...] = ()) -> str:
    lines = [
        Line("clean", ((0.3, 98.0), (0.6, 97.5), (0.9, 96.0)), series(0, "clean")),
        Line(title, ((0.3, 91.0), (0.6, 93.0), (0.9, 94.0)), series(1, title), dashed=True),
    ]
    axes = value_axis("tau / eps", [(x, f"{x:g}") for x in (0.3, 0.6, 0.9)]), linear_axis("percent", [91.0, 98.0])
    shown = line_chart("place", title, "what it shows", axes, lines)
    longer = tuple(series(k, text) for k, text in enumerate(more, start=2))
    return svg_file(replace(shown, keys=(*shown.keys, *longer)))


@pytest.mark.parametrize("title", ["Accuracy", NASTY, "\N{GREEK SMALL LETTER TAU}\u202e\x00"])
def test_a_file_of_its_own(title: str) -> None:
    root = ElementTree.fromstring(chart(title))
    names = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert (names.count("polyline"), names.count("script")) == (2, 0)
    texts = ["".join(element.itertext()) for element in root.iter() if element.tag.endswith("}text")]
    shown = title.replace("\u202e", "\N{REPLACEMENT CHARACTER}").replace("\x00", "\N{REPLACEMENT CHARACTER}")
    assert texts[0] == shown
    assert {"clean", shown, "tau / eps", "percent", "0.3", "0.9", "98"} <= set(texts)
    assert "what it shows" in {element.text for element in root.iter() if element.tag.endswith("}desc")}


@pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed")
@pytest.mark.parametrize(("keys", "lines"), [(0, 1), (4, 2), (9, 4)])
def test_everything_is_inside_the_picture(keys: int, lines: int, tmp_path: Path) -> None:
    """A legend that is too long for one line goes on in the next, and the picture is higher by that."""
    more = tuple(f"citrus, own 0.{k}, N = 20" for k in range(keys))
    (tmp_path / "chart.svg").write_text(chart(more=more), encoding="utf-8")
    height = HEIGHT + (lines - 1) * LEGEND_LINE
    assert f'height="{height}" viewBox' in (tmp_path / "chart.svg").read_text(encoding="utf-8")
    with Browser() as browser:
        browser.open(tmp_path / "chart.svg", width=WIDTH, height=height)
        boxes = browser.evaluate(
            "[...document.querySelectorAll('text, polyline, .mark path')].map(e => {"
            "const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]})"
        )
        colours = browser.evaluate("[...document.querySelectorAll('polyline')].map(e => getComputedStyle(e).stroke)")
        assert not browser.problems
    assert len(boxes) >= 16
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= WIDTH
        assert 0 <= top < bottom <= height
    assert len(set(colours)) == 2
    assert "none" not in colours
