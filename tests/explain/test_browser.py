"""The page in a real browser: it shows what the trace says, with mouse, keys and address."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.explain.engine import Engine
from harness.explain.page import write_page, write_recorded
from harness.explain.stories import STORIES
from harness.explain.trace import Step, record

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the dev tool playwright")
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("needs Chromium: apt-get install chromium", allow_module_level=True)

OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1440, "height": 900}
LANES = [
    pytest.param(story, lane, id=f"{story.id}-{lane.id}")
    for story in STORIES
    for lane in story.lanes
]
LAST = len(record(Engine(), STORIES[0].lanes[-1].scenes)) - 1
"""The last step of the first story's keep lane."""
STORY_IDS = [pytest.param(story, id=story.id) for story in STORIES]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    write_page(folder / "stories.html")
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"),
            executable_path=CHROMIUM,
            headless=True,
            args=OPTIONS,
        )
        yield context
        context.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """A new tab; it fails the test if the page logs anything or asks for anything but itself."""
    tab = browser.new_page()
    tab.set_viewport_size(DESK)
    faults: list[str] = []
    tab.on("console", lambda message: faults.append(f"console: {message.text}"))
    tab.on("pageerror", lambda error: faults.append(f"error: {error}"))
    tab.on("request", lambda request: faults.append(request.url) if wanders(request.url) else None)
    yield tab
    tab.close()
    assert faults == []


def wanders(url: str) -> bool:
    return not url.startswith("file:")


def open_at(tab: Any, pages: Path, address: str = "", page: str = "stories.html") -> None:
    tab.goto((pages / page).as_uri() + (f"#{address}" if address else ""))


def shown(tab: Any, lane: str) -> dict[str, Any]:
    """What one lane of the page shows, read from its elements."""
    return tab.evaluate(
        """(lane) => {
          const root = document.querySelector(`[data-lane="${lane}"]`);
          const all = (query) => [...root.querySelectorAll(query)];
          return {
            words: root.querySelector(".scene").textContent,
            why: root.querySelector(".why").textContent,
            blocks: all('[data-block]:not([data-block^="cpu-"])').map((b) => [
              Number(b.dataset.refs), b.dataset.hash, b.dataset.counted === "used"]),
            free: all("[data-queue]").map((b) => Number(b.dataset.queue)),
            map: all("[data-map]").map((m) => m.textContent.trim()),
            requests: all("[data-request]").map((r) => [r.dataset.request, r.dataset.state,
              Number(r.dataset.computed), Number(r.dataset.tokens)]),
            changes: all(".changes li").map((c) => c.textContent),
            lit: all("[data-function]").map((f) => [f.dataset.function,
              [...f.querySelectorAll(".lit")].map((l) => Number(l.dataset.line))]),
            log: all(".log .fresh").map((l) => l.textContent),
            dead: root.classList.contains("dead"),
          };
        }""",
        lane,
    )


def check(tab: Any, lane: str, step: Step) -> None:
    """The page shows this step."""
    state = step.state
    seen = shown(tab, lane)
    assert seen["words"] == step.words
    assert seen["why"] == step.why
    assert seen["blocks"] == [
        [refs, name, index not in state["free"]]
        for index, (refs, name, _) in enumerate(state["blocks"])
    ]
    assert seen["free"] == state["free"]
    maps = [state["map"], *([state["cpu"]["map"]] if "cpu" in state else [])]
    assert seen["map"] == [
        f"{name} → {', '.join(map(str, ids))}" for found in maps for name, ids in found.items()
    ]
    assert seen["requests"] == [
        [r["name"], r["state"], r["computed"], r["tokens"]] for r in state["requests"]
    ]
    assert [change.words for change in step.changes] in (seen["changes"], [])
    assert seen["lit"] == [[name, list(lines)] for name, lines in step.lines]
    assert seen["log"] == [text for _, text in step.log]
    assert seen["dead"] is not state["alive"]


@pytest.mark.parametrize(("story", "lane"), LANES)
def test_clicks_through_every_lane(tab, pages, story, lane):
    steps = record(lane.make(), lane.scenes)
    open_at(tab, pages)
    tab.get_by_role("button", name=story.title).click()
    tab.get_by_role("button", name=lane.label, exact=True).click()
    for index, step in enumerate(steps):
        assert tab.locator("#position").text_content() == f"Step {index} of {len(steps) - 1}"
        check(tab, lane.id, step)
        if index < len(steps) - 1:
            tab.get_by_role("button", name="Step", exact=True).click()
    assert tab.get_by_role("button", name="Step", exact=True).is_disabled()
    for step in reversed(steps[:-1]):
        tab.get_by_role("button", name="Step back").click()
        check(tab, lane.id, step)


@pytest.mark.parametrize("story", STORY_IDS)
def test_presses_through_every_story_side_by_side(tab, pages, story):
    traces = {lane.id: record(lane.make(), lane.scenes) for lane in story.lanes}
    open_at(tab, pages, f"story={story.id}&mode=all&step=0")
    seen: dict[str, list[int]] = {lane: [] for lane in traces}
    moments = int(tab.locator("#step").get_attribute("max")) + 1
    for _ in range(moments):
        for lane, steps in traces.items():
            index = int(tab.locator(f'[data-lane="{lane}"]').get_attribute("data-step"))
            assert shown(tab, lane)["why"] == steps[index].why
            seen[lane].append(index)
        tab.keyboard.press("ArrowRight")
    for lane, steps in traces.items():
        assert sorted(set(seen[lane])) == list(range(len(steps)))
        assert seen[lane] == sorted(seen[lane])


def test_lanes_begin_each_scene_together(tab, pages):
    story = STORIES[0]
    traces = {lane.id: record(lane.make(), lane.scenes) for lane in story.lanes}
    open_at(tab, pages, f"story={story.id}&mode=all&step=0")
    for _ in range(int(tab.locator("#step").get_attribute("max"))):
        scenes = {
            steps[int(tab.locator(f'[data-lane="{lane}"]').get_attribute("data-step"))].scene
            for lane, steps in traces.items()
        }
        assert len(scenes) == 1
        tab.keyboard.press("ArrowRight")


def test_the_keyboard_does_everything(tab, pages):
    open_at(tab, pages)
    tab.keyboard.press("End")
    assert tab.locator("#position").text_content() == f"Step {LAST} of {LAST}"
    tab.keyboard.press("ArrowLeft")
    assert tab.evaluate("location.hash") == f"#story=reset&mode=keep&step={LAST - 1}"
    tab.keyboard.press("Home")
    assert tab.locator("#position").text_content() == f"Step 0 of {LAST}"
    tab.keyboard.press("m")
    assert "mode=all" in tab.evaluate("location.hash")
    assert tab.locator("[data-lane]").count() == 3
    tab.keyboard.press("m")
    assert "mode=default" in tab.evaluate("location.hash")
    tab.keyboard.press("s")
    assert "story=hits" in tab.evaluate("location.hash")
    tab.keyboard.press("+")
    assert tab.locator("#speed").input_value() == "2"
    tab.keyboard.press("-")
    tab.keyboard.press("-")
    assert tab.locator("#speed").input_value() == "0.5"


def test_tab_reaches_every_control_and_shows_where_it_is(tab, pages):
    open_at(tab, pages, "story=reset&mode=keep&step=2")
    reached = []
    for _ in range(40):
        tab.keyboard.press("Tab")
        reached.append(
            tab.evaluate(
                """() => {
                  const e = document.activeElement;
                  const seen = getComputedStyle(e).outlineStyle !== "none";
                  return [e.id || e.value || e.textContent.slice(0, 20), seen];
                }"""
            )
        )
        if reached[-1][0] == "speed":
            break
    names = [name for name, _ in reached]
    for name in [
        "reset",
        "hits",
        "default",
        "all",
        "first",
        "back",
        "play",
        "next",
        "last",
        "step",
    ]:
        assert name in names
    assert all(seen for _, seen in reached)


def test_space_plays_and_pauses(tab, pages):
    open_at(tab, pages, "story=reset&mode=keep&step=0")
    tab.locator("#speed").select_option("4")
    tab.locator("#speed").evaluate("(select) => select.blur()")
    tab.keyboard.press(" ")
    assert tab.locator("#play").get_attribute("aria-label") == "Pause"
    sync_api.expect(tab.locator("#position")).to_have_text(f"Step 1 of {LAST}", timeout=10_000)
    tab.keyboard.press(" ")
    assert tab.locator("#play").get_attribute("aria-label") == "Play"
    before = tab.locator("#position").text_content()
    tab.wait_for_timeout(2500)
    assert tab.locator("#position").text_content() == before


def test_playing_stops_at_the_end(tab, pages):
    open_at(tab, pages, f"story=reset&mode=keep&step={LAST - 1}")
    tab.locator("#speed").select_option("4")
    tab.locator("#play").click()
    sync_api.expect(tab.locator("#position")).to_have_text(f"Step {LAST} of {LAST}", timeout=10_000)
    assert tab.locator("#play").get_attribute("aria-label") == "Play"


def test_the_slider_jumps(tab, pages):
    open_at(tab, pages, "story=prefill&mode=preempt&step=0")
    tab.locator("#step").fill("9")
    assert tab.evaluate("location.hash") == "#story=prefill&mode=preempt&step=9"
    tab.locator("#step").press("ArrowRight")
    assert tab.evaluate("location.hash") == "#story=prefill&mode=preempt&step=10"


def test_an_address_opens_its_moment_and_follows_edits(tab, pages):
    open_at(tab, pages, "story=offload&mode=mended&step=3")
    assert tab.locator('[data-lane="mended"]').get_attribute("data-step") == "3"
    assert tab.locator("#notice").is_hidden()
    tab.evaluate("location.hash = '#story=reset&mode=preempt&step=2'")
    sync_api.expect(tab.locator('[data-lane="preempt"]')).to_have_attribute("data-step", "2")


@pytest.mark.parametrize(
    ("address", "goes_to", "says"),
    [
        ("story=reset&mode=kepp&step=2", "story=reset&mode=keep&step=2", "no mode “kepp”"),
        ("story=reset&mode=keep&step=99", f"story=reset&mode=keep&step={LAST}", "no step “99”"),
        ("story=reset&mode=keep&step=-4", "story=reset&mode=keep&step=0", "no step “-4”"),
        ("story=reset&mode=keep&step=x", "story=reset&mode=keep&step=0", "no step “x”"),
        ("story=reset&mode=keep&step=", "story=reset&mode=keep&step=0", "no step “”"),
        ("story=reset&mode=keep&step=2.4", "story=reset&mode=keep&step=2", "no step “2.4”"),
        ("story=offlode&mode=mended&step=1", "story=offload&mode=mended&step=1", "“offlode”"),
        (
            "story=reset&mode=<img src=x>&step=0",
            "story=reset&mode=preempt&step=0",
            "<img src=x>",
        ),
    ],
)
def test_an_unknown_address_opens_the_nearest_and_says_so(tab, pages, address, goes_to, says):
    open_at(tab, pages, address)
    assert says in tab.locator("#notice").text_content()
    hash_ = tab.evaluate("location.hash")
    if "<" not in address:
        assert hash_ == f"#{goes_to}"
    tab.keyboard.press("ArrowRight")
    assert tab.locator("#notice").is_hidden()


def test_every_change_is_spoken(tab, pages):
    story = STORIES[0]
    lane = story.lanes[-1]
    steps = record(lane.make(), lane.scenes)
    open_at(tab, pages, f"story={story.id}&mode={lane.id}&step=0")
    region = tab.locator("[aria-live]")
    assert region.get_attribute("aria-live") == "polite"
    for step in steps[1:]:
        tab.keyboard.press("ArrowRight")
        said = region.text_content()
        assert step.why in said
        assert all(change.words in said for change in step.changes)


def test_what_changed_is_marked(tab, pages):
    open_at(tab, pages, "story=reset&mode=keep&step=3")
    marked = tab.locator(".block.changed").evaluate_all("(all) => all.map((b) => b.dataset.block)")
    assert marked == ["1", "2", "3"]
    assert tab.locator(".tag.gone").count() == 3


def test_motion_follows_the_readers_wish(tab, pages):
    def animations(wish: str) -> int:
        tab.emulate_media(reduced_motion=wish)
        open_at(tab, pages, "story=reset&mode=preempt&step=1")
        tab.keyboard.press("ArrowRight")
        return tab.evaluate("document.getAnimations().length")

    assert animations("no-preference") > 0
    assert animations("reduce") == 0


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("story", STORY_IDS)
def test_nothing_is_wider_than_the_window(tab, pages, size, story):
    tab.set_viewport_size(size)
    for mode in [*(lane.id for lane in story.lanes), "all"]:
        open_at(tab, pages, f"story={story.id}&mode={mode}&step=0")
        tab.keyboard.press("End")
        assert tab.evaluate("document.documentElement.scrollWidth") <= size["width"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_axe_finds_nothing(tab, pages, size, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe").Axe()
    tab.set_viewport_size(size)
    tab.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    for address in [
        "story=reset&mode=keep&step=0",
        "story=reset&mode=keep&step=3",
        "story=reset&mode=all&step=11",
        "story=reset&mode=wrong&step=1",
        "story=offload&mode=unmended&step=7",
        "story=auxiliary&mode=mended&step=7",
        "story=prefill&mode=all&step=5",
    ]:
        open_at(tab, pages, address)
        assert violations(axe, tab) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_a_recorded_reset(tab, pages, journals, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe").Axe()
    write_recorded(pages / "life.html", journals(), 7)
    tab.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    for step in (0, 4):
        open_at(tab, pages, f"step={step}", "life.html")
        assert violations(axe, tab) == []


def violations(axe: Any, tab: Any) -> list[str]:
    return [
        f"{found['impact']} {found['id']}: {found['nodes'][0]['html'][:200]} "
        f"{found['nodes'][0]['failureSummary']}"
        for found in axe.run(tab).response["violations"]
    ]


def test_replays_a_recorded_reset(tab, pages, journals):
    from harness.explain.life import recorded_story

    story = recorded_story(journals(), 7)
    write_recorded(pages / "life.html", journals(), 7)
    open_at(tab, pages, page="life.html")
    assert tab.locator("#story-title").text_content() == story["title"]
    steps = story["lanes"][0]["steps"]
    for index, step in enumerate(steps):
        assert tab.locator("#position").text_content() == f"Step {index} of {len(steps) - 1}"
        assert tab.locator(".scene").text_content() == step["w"]
        assert tab.locator(".why").text_content() == step["y"]
        told = tab.locator(".told").evaluate_all("(all) => all.map((r) => r.dataset.request)")
        assert told == [key.removeprefix("request-") for _, keys in step["c"] for key in keys]
        tab.keyboard.press("ArrowRight")
    assert json.loads(tab.locator(".reply").text_content())["note"] == "</script><b>not markup</b>"


def test_is_small_and_quick(tab, pages):
    assert (pages / "stories.html").stat().st_size < 300_000
    open_at(tab, pages)
    painted = tab.wait_for_function(
        """() => {
          const [first] = performance.getEntriesByName("first-contentful-paint");
          return first && document.querySelector("[data-block]") && first.startTime;
        }"""
    ).json_value()
    assert painted < 1000
