"""Plots: well-formed, readable without seeing them, and true to their numbers."""

import math
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from engine.evaluation.charts import Axis, Mark, Series, histogram, line_chart

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = """</title><script>alert('"&</text>"""


def drawn(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def words(svg: str) -> list[str]:
    return [text.text or "" for text in drawn(svg).iter(f"{SVG}text")]


def growth(x: Axis, *points: tuple[float, float], **options: bool) -> str:
    return line_chart(
        "Growth", "Longer books take longer.", [Series("ours", points, **options)], x, Axis("ms")
    )


def test_says_what_it_shows_to_who_cannot_see_it() -> None:
    picture = drawn(growth(Axis("passages"), (0, 1), (10, 2)))
    assert picture.get("role") == "img"
    assert picture.findtext(f"{SVG}title") == picture.get("aria-label") == "Growth"
    assert picture.findtext(f"{SVG}desc") == "Longer books take longer."


def test_hostile_words_stay_words() -> None:
    axes, marks = (Axis(HOSTILE), Axis(HOSTILE)), [Mark(HOSTILE, 0.5)]
    lines = line_chart(HOSTILE, HOSTILE, [Series(HOSTILE, [(0, 0), (1, 1)])], *axes, marks)
    bars = histogram(HOSTILE, HOSTILE, {HOSTILE: [1.0]}, axes[0], marks)
    assert "<script" not in lines + bars
    assert words(lines).count(HOSTILE) == 5
    assert words(bars).count(HOSTILE) == 3
    assert drawn(bars).findtext(f"{SVG}title") == HOSTILE


def test_a_log_axis_has_powers_of_ten_at_equal_distances() -> None:
    svg = growth(Axis("passages", log=True), (1_000, 1), (10_000, 2), (100_000, 4), marked=True)
    assert {"1,000", "10,000", "100,000"} <= set(words(svg))
    at = [float(dot.get("cx", "")) for dot in drawn(svg).iter(f"{SVG}circle")]
    assert at[1] - at[0] == pytest.approx(at[2] - at[1], abs=0.2)


def test_up_is_more() -> None:
    dots = list(drawn(growth(Axis("n"), (0, 1), (1, 3), marked=True)).iter(f"{SVG}circle"))
    assert float(dots[1].get("cy", "")) < float(dots[0].get("cy", ""))


def test_a_share_is_shown_in_per_cent() -> None:
    assert {"0 %", "20 %", "100 %"} <= set(words(growth(Axis("kept", 0, 1, share=True), (0, 0), (1, 1))))


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (0, 1, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (0, 7, ["0", "2", "4", "6", "8"]),
        (-3, 12, ["-5", "0", "5", "10", "15"]),
        (5, 5, ["5", "5.2", "5.4", "5.6", "5.8", "6"]),
        (0, 26_000, ["0", "10,000", "20,000", "30,000"]),
    ],
)
def test_ticks_are_round_numbers_that_hold_the_data(low: float, high: float, shown: list[str]) -> None:
    said = words(growth(Axis("n"), (low, 1), (high, 2)))
    assert said[2 : 2 + len(shown)] == shown


def test_nothing_to_draw_says_so() -> None:
    assert "no data" in words(line_chart("Nothing", "", [], Axis("x"), Axis("y", log=True)))
    assert "no data" in words(histogram("Nothing", "", {"none": []}, Axis("x")))


def test_bars_are_shares_of_their_own_group_and_lose_nobody() -> None:
    svg = histogram(
        "Scores", "", {"many": [0.1] * 30 + [0.9] * 10, "few": [-3.0, 0.5, 0.5, 1.0, 7.0]},
        Axis("score", 0, 1), bars=10,
    )  # fmt: skip
    outlines = [path.get("d", "") for path in drawn(svg).iter(f"{SVG}path") if path.get("fill-opacity")]
    assert [sum(heights(outline)) for outline in outlines] == pytest.approx([1.0, 1.0], abs=0.01)
    assert heights(outlines[0])[1] == pytest.approx(0.75, abs=0.01)
    assert heights(outlines[1])[9] == pytest.approx(0.40, abs=0.01)


def heights(outline: str) -> list[float]:
    """Of the bars, as the axis of this test, 0 to 80 %, shows them."""
    bottom = float(outline[1:].split("V", maxsplit=1)[0].split()[1])
    tops = [float(step.split("h")[0]) for step in outline.split("V")[1:-1]]
    return [(bottom - top) / (bottom - 72) * 0.8 for top in tops]


def test_a_mark_is_labelled_inside_the_picture() -> None:
    for x in (0.0, 0.5, 1.0):
        svg = line_chart(
            "Gate", "", [Series("a", [(0, 0), (1, 1)])], Axis("x"), Axis("y"), [Mark("gate 0.60", x)]
        )
        label = next(text for text in drawn(svg).iter(f"{SVG}text") if text.text == "gate 0.60")
        assert label.get("text-anchor") == ("start" if x < 0.5 else "end")


def test_series_differ_without_colour() -> None:
    names = [f"peer {number}" for number in range(6)]
    svg = line_chart("Peers", "", [Series(name, [(0, 1), (1, 1)]) for name in names], Axis("x"), Axis("y"))
    dashes = [path.get("stroke-dasharray") for path in drawn(svg).iter(f"{SVG}path") if path.get("stroke")]
    assert len(set(dashes)) == len(dashes) == 6


def test_what_is_not_a_number_does_not_reach_the_axis() -> None:
    svg = growth(Axis("n"), (0, 1), (1, math.inf), (2, math.nan), marked=True)
    assert len(list(drawn(svg).iter(f"{SVG}circle"))) == 1
    assert "nan" not in svg


def test_legend_entries_follow_one_another() -> None:
    svg = histogram("Scores", "", {"a long name": [1.0], "b": [2.0]}, Axis("x"))
    starts = [float(line.get("x1", "")) for line in drawn(svg).iter(f"{SVG}line") if not line.get("class")]
    assert all(after - before > 60 for before, after in pairwise(starts))
