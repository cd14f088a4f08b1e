"""The page in a real browser: teaching, camera, corrections, undo, cancel, reload, tabs, keyboard, narrow screens."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.browser import ReportPage, browser, needs_browser
from support.serving import Served, shapes

pytestmark = pytest.mark.slow
# Each tab with something that it shows when it is complete.
TABS = {
    "Teach": "#add-class",
    "Try": "#try-camera",
    "Results": ".matrix button.count",
    "Correct": ".uncertain-row",
    "Manage": "#undo",
}
FAKE_CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
LOADED_WIDTH = "async (image) => { await image.decode(); return image.naturalWidth; }"
HOSTILE = '<img src=x onerror="document.title=1">'


class ServedPage(ReportPage):
    """The page of a server, with its console messages and requests."""

    def __init__(self, browser: Any, served: Served, width: int = 1100, theme: str = "light", **options: Any) -> None:
        self.served = served
        viewport = {"width": width, "height": 850}
        context = browser.new_context(viewport=viewport, color_scheme=theme, permissions=["camera"], **options)
        self.load(context, served.url)

    def tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name, exact=True).click()
        self.page.wait_for_timeout(150)

    def card(self, name: str) -> Any:
        return self.page.locator(f".card[aria-label='Class {name}']")

    def add(self, name: str, files: list[str]) -> None:
        """Add a class (or use the one that is there) and give it pictures."""
        if not self.card(name).count():
            self.page.locator("#add-class").click()
            self.page.keyboard.type(name)
            self.page.keyboard.press("Enter")
        self.card(name).locator("input[type=file]").set_input_files(files)
        self.card(name).locator(".thumb").nth(len(files) - 1).wait_for()

    def teach(self) -> None:
        """Start a lesson and wait until the page shows it; the lesson cannot end before that."""
        with self.served.lessons_paused():
            self.start_lesson()

    def start_lesson(self) -> None:
        self.page.locator("#start").click()
        self.page.locator("#lesson .stages").wait_for()

    def wait_until_taught(self) -> None:
        self.page.locator("#lesson").wait_for(state="hidden")

    def try_files(self, files: list[str]) -> list[str]:
        """The answers for picture files, in their order."""
        self.tab("Try")
        before = self.page.locator("#tried .answer").count()
        self.page.locator("#try input").set_input_files(files)
        self.page.locator("#tried .answer").nth(before + len(files) - 1).wait_for()
        answers = self.page.locator("#tried .answer").all_inner_texts()[: len(files)]
        return [str(answer).split()[0] for answer in reversed(answers)]


@dataclass
class Site:
    """A server with a model of circles and squares, taught in the browser, and pictures of all classes."""

    served: Served
    chromium: Any
    files: dict[str, list[str]]
    first: ServedPage
    answers: list[str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    needs_browser()
    folder = tmp_path_factory.mktemp("site")
    files: dict[str, list[str]] = {}
    for kind in ("circle", "square", "cross"):
        for name, data in shapes(kind, range(16)):
            (folder / name).write_bytes(data)
            files.setdefault(kind, []).append(str(folder / name))
    served = Served(folder / "models" / "shapes")
    try:
        with browser(*FAKE_CAMERA) as chromium:
            page = ServedPage(chromium, served)
            for index, kind in enumerate(("circle", "square")):
                name = page.page.locator(".card .name").nth(index)
                name.fill(kind)
                name.press("Enter")
                page.add(kind, files[kind][:12])
            page.teach()
            page.wait_until_taught()
            answers = page.try_files([files["circle"][14], files["square"][14], files["square"][15]])
            yield Site(served, chromium, files, page, answers)
    finally:
        served.close()


@pytest.fixture
def page(site: Site) -> ServedPage:
    """The first page, as a user leaves it: nothing is being taught and the next lesson is empty."""
    with site.served.client() as client:
        for one in client.get("/api/state").json()["draft"]:
            client.post("/api/classes/remove", json={"name": one["name"]})
    site.first.page.goto(site.served.base)
    site.first.page.wait_for_selector("html[data-ready]")
    site.first.tab("Teach")
    return site.first


def test_model_taught_in_the_browser_predicts_correctly(site: Site) -> None:
    assert site.answers == ["circle", "square", "square"]
    assert site.first.messages == []
    assert "token" not in site.first.page.url


def test_results_show_accuracy_confusion_and_memory(page: ServedPage) -> None:
    page.tab("Results")
    page.page.locator(".matrix button.count").first.click()
    page.page.locator(".cell-pictures img").first.wait_for()
    assert page.page.locator(".memory img").count() >= 15
    page.page.locator(".memory img").first.scroll_into_view_if_needed()
    assert page.page.locator(".memory img").first.evaluate(LOADED_WIDTH) == 16
    assert page.messages == []


def test_camera_records_a_burst_and_predicts_live(page: ServedPage) -> None:
    page.page.locator("#add-class").click()
    card = page.page.locator(".card").last
    card.locator(".use-camera").click()
    record = card.locator(".record:enabled")
    record.hover()
    page.page.mouse.down()
    card.get_by_role("button", name=re.compile(r"^\d+ pictures$")).wait_for()  # two or more
    page.page.mouse.up()
    card.locator(".thumb").first.wait_for()
    page.tab("Try")
    page.page.locator("#try-camera").click()
    page.page.locator("#live .answer").wait_for()
    assert page.page.locator("#live .bars li").count() == 2
    page.page.locator("#try-camera").click()
    page.page.locator("#live video").wait_for(state="detached")
    assert page.messages == []


def test_correction_can_be_taught_and_undone(page: ServedPage, site: Site) -> None:
    wrong = page.try_files([site.files["cross"][14]])
    assert wrong[0] != "cross"
    page.tab("Correct")
    row = page.page.locator(".uncertain-row", has_text="Tried").first
    row.get_by_role("button", name="New class…").click()
    page.page.locator("dialog input").fill("cross")
    page.page.locator("dialog").get_by_role("button", name="Use it").click()
    page.tab("Teach")
    page.card("cross").locator(".thumb").first.wait_for()
    page.card("cross").locator("input[type=file]").set_input_files(site.files["cross"][:12])
    page.card("cross").locator(".thumb").nth(12).wait_for()
    page.teach()
    page.wait_until_taught()
    kinds = ("circle", "square", "cross")
    assert page.try_files([site.files[kind][15] for kind in kinds]) == list(kinds)

    page.tab("Manage")
    page.page.locator("#undo").click()
    page.page.locator("dialog").get_by_role("button", name="Undo").click()
    page.page.locator("#summary", has_text="2 classes, 1 lesson").wait_for()
    page.tab("Teach")
    page.card("cross").locator(".thumb").nth(12).wait_for()
    assert page.card("cross").locator(".thumb").count() == 13
    assert page.messages == []


def test_cancel_returns_the_pictures(page: ServedPage, site: Site) -> None:
    page.add("cross", site.files["cross"][:10])
    with site.served.lessons_paused():
        page.start_lesson()
        page.page.get_by_role("button", name="Cancel").click()
        page.page.locator("#lesson .stage", has_text="Stopping…").wait_for()
    page.wait_until_taught()
    page.card("cross").locator(".thumb").nth(9).wait_for()
    assert page.page.locator("#summary").inner_text() == "2 classes, 1 lesson"


def test_lesson_is_shown_after_a_reload_and_in_a_second_tab(page: ServedPage, site: Site) -> None:
    other = ServedPage(site.chromium, site.served)
    page.add("cross", site.files["cross"][:10])
    other.card("cross").locator(".thumb").nth(9).wait_for()  # the other tab sees the pictures
    with site.served.lessons_paused():  # a lesson could end before a page asks for the state again
        page.start_lesson()
        page.page.reload()
        page.page.locator("#lesson .stages").wait_for()
        other.page.locator("#lesson .stages").wait_for()
    page.wait_until_taught()
    for one in (page, other):
        one.page.locator("#summary", has_text="3 classes, 2 lessons").wait_for()
    with site.served.client() as client:
        assert client.post("/api/undo", json={}).status_code == 200
    assert page.messages == other.messages == []
    other.close()


def test_unfinished_lesson_of_a_killed_server_can_be_continued(page: ServedPage, site: Site, tmp_path: Path) -> None:
    page.add("cross", site.files["cross"][:10])
    with site.served.lessons_paused():
        page.start_lesson()
        shutil.copytree(site.served.path, tmp_path / "shapes")  # what a server that is killed now leaves behind
        page.page.get_by_role("button", name="Cancel").click()
        page.page.locator("#lesson .stage", has_text="Stopping…").wait_for()
    page.wait_until_taught()
    served = Served(tmp_path / "shapes")
    try:
        other = ServedPage(site.chromium, served)
        assert "The model still answers" in other.page.locator("#lesson").inner_text()
        other.page.get_by_role("button", name="Continue the lesson").click()
        other.page.locator("#summary", has_text="3 classes, 2 lessons").wait_for()
        assert other.messages == []
        other.close()
    finally:
        served.close()


def test_pictures_are_moved_and_removed(page: ServedPage, site: Site) -> None:
    page.add("cross", site.files["cross"][:4])
    page.add("circle", site.files["circle"][:2])
    page.card("cross").locator(".thumb").first.click()
    page.card("cross").locator(".move").select_option("circle")
    page.card("circle").locator(".thumb").nth(2).wait_for()
    page.card("cross").locator(".thumb").first.click()
    page.card("cross").get_by_role("button", name="Remove", exact=True).click()
    page.card("cross").get_by_text("2 pictures").wait_for()


def test_lesson_can_be_prepared_with_the_keyboard(page: ServedPage, site: Site) -> None:
    """From the tabs to a lesson with two pictures, without a mouse; then one of them is removed."""
    keyboard = page.page.keyboard
    page.page.locator("#tab-teach").focus()
    for name in ("Try", "Results", "Correct", "Manage", "Teach"):
        keyboard.press("ArrowRight")
        assert page.page.evaluate("document.activeElement.textContent") == name
    press_tab_until(page, "#add-class")
    keyboard.press("Enter")
    keyboard.type("cross")
    keyboard.press("Enter")
    choose_files_by_keyboard(page, site.files["cross"][:2])
    page.card("cross").locator(".thumb").nth(1).wait_for()
    press_tab_until(page, ".thumb")
    keyboard.press("Space")
    assert page.card("cross").locator(".thumb[aria-pressed=true]").count() == 1
    keyboard.press("Delete")
    page.card("cross").get_by_text("1 picture", exact=True).wait_for()
    press_tab_until(page, "#start")
    assert page.page.locator("#start").is_enabled()
    outlined = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.page.evaluate(outlined) == "solid"


def choose_files_by_keyboard(page: ServedPage, files: list[str]) -> None:
    """Choose files for the class "cross" with the keyboard; try again if a busy browser ignored the key.

    File choosers are intercepted all the time: one that opened late, after a time limit, would block all later ones.
    """
    choosers: list[Any] = []

    def on_chooser(chooser: Any) -> None:
        choosers.append(chooser)

    page.page.on("filechooser", on_chooser)
    for _ in range(6):
        page.card("cross").locator(".name").focus()
        press_tab_until(page, ".add")
        page.page.keyboard.press("Enter")
        for _ in range(200):
            page.page.wait_for_timeout(50)
            if choosers:
                page.page.remove_listener("filechooser", on_chooser)
                choosers[0].set_files(files)
                return
    raise AssertionError("the Enter key does not open the file chooser")


def press_tab_until(page: ServedPage, selector: str) -> None:
    for _ in range(40):
        page.page.keyboard.press("Tab")
        if page.page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"the Tab key does not reach {selector}")


def test_class_names_are_shown_as_text(page: ServedPage, site: Site) -> None:
    page.add("cross", site.files["cross"][:2])
    name = page.card("cross").locator(".name")
    name.fill(HOSTILE)
    name.press("Enter")
    page.page.get_by_role("article", name=f"Class {HOSTILE}", exact=True).wait_for()
    with site.served.client() as client:
        assert [one["name"] for one in client.get("/api/state").json()["draft"]] == [HOSTILE]
    assert page.page.locator("img[src=x]").count() == 0
    assert page.page.title() != "1"
    assert page.messages == []
    blocked = page.page.evaluate(
        "() => { try { document.body.innerHTML = '<b>x</b>'; return 'set'; } catch (error) { return error.name; } }"
    )
    assert blocked == "TypeError"  # trusted types
    page.messages.clear()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_narrow_screens_fit_and_have_sufficient_contrast(site: Site, theme: str) -> None:
    narrow = ServedPage(site.chromium, site.served, width=390, theme=theme, bypass_csp=True)
    narrow.page.add_style_tag(content=".start { position: static !important }")  # it would cover other texts
    for tab, content in TABS.items():
        narrow.tab(tab)
        narrow.page.locator(content).first.wait_for()  # comes from the server
        narrow.page.wait_for_load_state("networkidle")
        assert narrow.overflow() == [], tab
        assert narrow.low_contrast() == [], tab
    narrow.close()


def test_no_request_leaves_the_server(site: Site) -> None:
    assert len(site.first.requests) > 50
    assert [url for url in site.first.requests if not url.startswith((site.served.base, "blob:"))] == []
    assert [url for url in site.first.requests if "token=" in url] == [site.served.url]
