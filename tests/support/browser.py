"""Opens report pages in Chromium, offline, and records console messages and requests."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
TIMEOUT_MS = 120_000  # generous, because a page loads slowly on a busy machine


def needs_browser() -> None:
    """Skip the test if there is no browser."""
    pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
    if CHROMIUM is None:
        pytest.skip("the browser tests need chromium (apt-get install chromium)")


@contextmanager
def browser(*args: str) -> Iterator[Any]:
    """Start Chromium with further arguments; yields a playwright browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        args = ("--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else []), *args)
        instance = driver.chromium.launch(executable_path=CHROMIUM, args=list(args))
        yield instance
        instance.close()


class ReportPage:
    """An open page, with its console messages (`messages`) and requested URLs (`requests`)."""

    def __init__(self, browser: Any, file: Path, width: int = 1100, theme: str = "light") -> None:
        viewport = {"width": width, "height": 900}
        self.load(browser.new_context(viewport=viewport, color_scheme=theme, offline=True), file.resolve().as_uri())

    def load(self, context: Any, url: str) -> None:
        """Open the page in a context of the browser and wait until it is ready."""
        self.context = context
        self.context.set_default_timeout(TIMEOUT_MS)
        self.page = self.context.new_page()
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.messages.append(f"error: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready]")

    @property
    def external_requests(self) -> list[str]:
        """The requests for anything but local files and data URLs."""
        return [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))]

    def tabs(self) -> list[str]:
        """The names of the tabs."""
        return [str(name) for name in self.page.locator("[role=tab]").all_inner_texts()]

    def open(self, tab: str) -> None:
        """Open a tab and wait until its charts are drawn."""
        self.page.get_by_role("tab", name=tab, exact=True).click()
        self.wait_until_drawn()

    def wait_until_drawn(self) -> None:
        """Wait until every chart of the open tab is drawn.

        Polls, because the page's content security policy forbids playwright's `wait_for_function`.
        """
        drawn = """() => [...document.querySelectorAll('[role=tabpanel]:not([hidden]) .plot')]
            .every((p) => p.querySelector('.main-svg') || p.textContent.trim())"""
        for _ in range(200):
            if self.page.evaluate(drawn):
                break
            self.page.wait_for_timeout(50)
        self.page.wait_for_timeout(50)

    def plot(self, key: str) -> Any:
        """The chart in the open tab whose key begins with `key`."""
        return self.page.locator(f"[role=tabpanel]:not([hidden]) figure[data-key^='{key}'] .plot").first

    def marks(self, key: str) -> list[int]:
        """The number of drawn marks of each series of a chart."""
        script = """(plot) => [...plot.querySelectorAll('.scatterlayer > .trace, .barlayer > .trace')].map(
            (trace) => trace.querySelectorAll('.points > path.point, .points > .point > path, .textpoint').length)"""
        return list(self.plot(key).evaluate(script))

    def hover(self, key: str, trace: int, index: int | tuple[int, int]) -> str:
        """The hover text of a mark; `index` is its index in the trace, or (row, column) in a matrix."""
        self.plot(key).scroll_into_view_if_needed()
        x, y = self.plot(key).evaluate(
            """(plot, [trace, index]) => {
              const full = plot._fullLayout, data = plot._fullData[trace], box = plot.getBoundingClientRect();
              const needsConversion = (axis) => axis.type === 'category' || axis.type === 'log';
              const at = (axis, value) => axis._offset + axis.c2p(needsConversion(axis) ? axis.d2c(value) : value);
              if (data.type === 'bar') {
                const bars = plot.querySelectorAll('.barlayer > .trace')[trace].querySelectorAll('.point');
                const bar = bars[index].getBoundingClientRect();
                return [bar.x + bar.width / 2, bar.y + bar.height / 2];
              }
              const [x, y] = data.type === 'heatmap' ? [index[1], index[0]] : [data.x[index], data.y[index]];
              return [box.x + at(full.xaxis, x), box.y + at(full.yaxis, y)];
            }""",
            [trace, index],
        )
        shown = self.plot(key).locator(".hoverlayer .hovertext")
        for _ in range(100):  # a busy browser may miss a movement
            self.page.mouse.move(2, 2)
            self.page.mouse.move(x, y, steps=3)
            self.page.wait_for_timeout(150)
            if texts := shown.all_text_contents():
                return " ".join(texts)
        raise AssertionError(f"no hover text at mark {index} of {key}")

    def overflow(self) -> list[str]:
        """Elements wider than the page (except in scrolled boxes), and texts cut off by their chart."""
        script = """() => {
          const visible = document.documentElement.clientWidth, full = document.documentElement.scrollWidth, out = [];
          if (full > visible) out.push(`the page: ${full}`);
          const open = '[role=tabpanel]:not([hidden]) ';
          for (const node of document.querySelectorAll(`header *, nav *, ${open} *`)) {
            if (node.closest('.scroll, defs, thead, svg')) continue;
            const box = node.getBoundingClientRect();
            if (!box.width || (box.right <= visible + 0.5 && box.left >= -0.5)) continue;
            out.push(`${node.tagName}.${node.className}: ${box.left} to ${box.right}`);
          }
          for (const svg of document.querySelectorAll(`${open} .main-svg`)) {
            const frame = svg.getBoundingClientRect();
            for (const text of svg.querySelectorAll('text')) {
              const box = text.getBoundingClientRect();
              if (!box.width || (box.right <= frame.right + 1.5 && box.left >= frame.left - 1.5)) continue;
              out.push(`text ${text.textContent}: ${box.left} to ${box.right}`);
            }
          }
          return out;
        }"""
        return list(self.page.evaluate(script))

    def low_contrast(self) -> list[str]:
        """Texts whose contrast with their background, in a screenshot without text, is below level AA of WCAG."""
        texts = self.page.evaluate(
            """() => {
              const out = [], open = document.querySelectorAll('header, nav, footer, [role=tabpanel]:not([hidden])');
              const put = (node, color, size, weight) => {
                const box = node.getBoundingClientRect(), words = node.textContent.trim();
                if (box.width < 2 || box.height < 2 || !words) return;
                out.push({ words, color, large: size >= 24 || (size >= 18.66 && weight >= 700),
                  box: [box.x + scrollX, box.y + scrollY, box.width, box.height] });
              };
              for (const part of open) {
                for (const text of part.querySelectorAll('svg text')) {
                  const style = getComputedStyle(text);
                  if (style.visibility === 'hidden' || Number(style.opacity) === 0) continue;
                  put(text, style.fill, parseFloat(style.fontSize), 400);
                }
                const walker = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
                while (walker.nextNode()) {
                  const node = walker.currentNode, owner = node.parentElement;
                  if (owner.closest('svg, option, script, style, noscript, .scroll')) continue;
                  if (owner.closest('details:not([open])') && !owner.closest('summary')) continue;
                  const style = getComputedStyle(owner), range = document.createRange();
                  range.selectNodeContents(node);
                  const box = range.getBoundingClientRect();
                  const text = { getBoundingClientRect: () => box, textContent: node.textContent };
                  put(text, style.color, parseFloat(style.fontSize), Number(style.fontWeight));
                }
              }
              return out;
            }"""
        )
        hiding_rules = ("* { color: transparent", "svg text { fill: transparent", "nav { position: static")
        style_tag = self.page.add_style_tag(content="".join(f"{rule} !important }}" for rule in hiding_rules))
        screenshot = np.asarray(Image.open(io.BytesIO(self.page.screenshot(full_page=True))).convert("RGB"), float)
        style_tag.evaluate("(tag) => tag.remove()")
        assert len(texts) > 5
        ratios = [(text, _contrast(text, screenshot)) for text in texts]
        return [f"{text['words']!r} {ratio:.2f}" for text, ratio in ratios if ratio < (3 if text["large"] else 4.5)]

    def close(self) -> None:
        """Close the page."""
        self.context.close()


def _contrast(text: dict[str, Any], screenshot: np.ndarray) -> float:
    """Contrast ratio of a text with the screenshot `[height, width, 3]` behind it; 21 for invisible text."""
    left, top, width, height = (round(value) for value in text["box"])
    pixels = screenshot[max(0, top) : top + max(1, height), max(0, left) : left + max(1, width)].reshape(-1, 3)
    color = [float(value) for value in text["color"].removeprefix("rgba(").removeprefix("rgb(").rstrip(")").split(",")]
    if not len(pixels) or (len(color) == 4 and color[3] == 0):
        return 21.0
    background = np.median(pixels, axis=0)
    luminances = sorted((_luminance(np.array(color[:3])), _luminance(background)))
    return float((luminances[1] + 0.05) / (luminances[0] + 0.05))


def _luminance(color: np.ndarray) -> float:
    """Relative luminance of an sRGB color `[3]`, as defined by WCAG."""
    share = color / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return float(linear @ np.array([0.2126, 0.7152, 0.0722]))
