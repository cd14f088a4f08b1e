"""A page in Debian's chromium, without a network, everything it complains about kept."""

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
PATIENCE = 120_000  # milliseconds: on a busy machine a page may take its time; one that never comes fails


def needs_browser() -> None:
    """Skip the test, and say why, where there is no browser to run it in."""
    pytest.importorskip("playwright.sync_api", reason="no playwright: the report is not tried in a browser")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: the report is not tried in a browser (apt-get install chromium)")


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        args = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        made = driver.chromium.launch(executable_path=CHROMIUM, args=args)
        yield made
        made.close()


class Sheet:
    """One page that was opened."""

    def __init__(self, browser: Any, file: Path, width: int = 1100, theme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, offline=True)
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.resolve().as_uri())
        self.page.wait_for_selector("html[data-ready]")

    @property
    def fetched(self) -> list[str]:
        """Requests that left the machine, or tried to."""
        return [url for url in self.asked if not url.startswith(("file:", "data:", "blob:"))]

    def tabs(self) -> list[str]:
        return [str(name) for name in self.page.locator("[role=tab]").all_inner_texts()]

    def open(self, tab: str) -> None:
        self.page.get_by_role("tab", name=tab, exact=True).click()
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Until every chart of the open tab is drawn. (The page's policy forbids what the driver's waiting does.)"""
        drawn = """() => [...document.querySelectorAll('[role=tabpanel]:not([hidden]) .plot')]
            .every((p) => p.querySelector('.main-svg') || p.textContent.trim())"""
        for _ in range(200):
            if self.page.evaluate(drawn):
                break
            self.page.wait_for_timeout(50)
        self.page.wait_for_timeout(50)

    def plot(self, key: str) -> Any:
        """The chart of a view by the beginning of its key, in the open tab."""
        return self.page.locator(f"[role=tabpanel]:not([hidden]) figure[data-key^='{key}'] .plot").first

    def marks(self, key: str) -> list[int]:
        """How many marks each series of a chart has in the page."""
        script = """(plot) => [...plot.querySelectorAll('.scatterlayer > .trace, .barlayer > .trace')].map(
            (trace) => trace.querySelectorAll('.points > path.point, .points > .point > path, .textpoint').length)"""
        return list(self.plot(key).evaluate(script))

    def hover(self, key: str, trace: int, place: int) -> str:
        """What the page says when the mouse is on a mark (trace and place, or row and column of a matrix)."""
        self.plot(key).scroll_into_view_if_needed()
        x, y = self.plot(key).evaluate(
            """(plot, [trace, place]) => {
              const full = plot._fullLayout, data = plot._fullData[trace], box = plot.getBoundingClientRect();
              const own = (axis) => axis.type === 'category' || axis.type === 'log';
              const at = (axis, value) => axis._offset + axis.c2p(own(axis) ? axis.d2c(value) : value);
              if (data.type === 'bar') {
                const bars = plot.querySelectorAll('.barlayer > .trace')[trace].querySelectorAll('.point');
                const bar = bars[place].getBoundingClientRect();
                return [bar.x + bar.width / 2, bar.y + bar.height / 2];
              }
              const [x, y] = data.type === 'heatmap' ? [place[1], place[0]] : [data.x[place], data.y[place]];
              return [box.x + at(full.xaxis, x), box.y + at(full.yaxis, y)];
            }""",
            [trace, place],
        )
        self.page.mouse.move(2, 2)
        self.page.mouse.move(x, y, steps=3)
        self.plot(key).locator(".hoverlayer .hovertext").first.wait_for(state="attached", timeout=5000)
        self.page.wait_for_timeout(80)
        texts = self.plot(key).locator(".hoverlayer .hovertext").all_text_contents()
        return " ".join(texts)

    def overflow(self) -> list[str]:
        """What sticks out of the page's width, scrolled boxes aside; text cut off by its own chart too."""
        script = """() => {
          const wide = document.documentElement.clientWidth, whole = document.documentElement.scrollWidth, out = [];
          if (whole > wide) out.push(`the page: ${whole}`);
          const open = '[role=tabpanel]:not([hidden]) ';
          for (const one of document.querySelectorAll(`header *, nav *, ${open} *`)) {
            if (one.closest('.scroll') || one.closest('defs') || one.closest('thead') || one.closest('svg')) continue;
            const box = one.getBoundingClientRect();
            if (!box.width || (box.right <= wide + 0.5 && box.left >= -0.5)) continue;
            out.push(`${one.tagName}.${one.className}: ${box.left} to ${box.right}`);
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

    def pale(self) -> list[str]:
        """Texts whose contrast is below WCAG's AA: their colour against what is seen where they stand without them."""
        texts = self.page.evaluate(
            """() => {
              const out = [], open = document.querySelectorAll('header, nav, footer, [role=tabpanel]:not([hidden])');
              const put = (node, colour, size, weight) => {
                const box = node.getBoundingClientRect(), words = node.textContent.trim();
                if (box.width < 2 || box.height < 2 || !words) return;
                out.push({ words, colour, large: size >= 24 || (size >= 18.66 && weight >= 700),
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
        unseen = ("* { color: transparent", "svg text { fill: transparent", "nav { position: static")
        hidden = self.page.add_style_tag(content="".join(f"{rule} !important }}" for rule in unseen))
        picture = np.asarray(Image.open(io.BytesIO(self.page.screenshot(full_page=True))).convert("RGB"), float)
        hidden.evaluate("(tag) => tag.remove()")
        assert len(texts) > 5
        ratios = [(one, _contrast(one, picture)) for one in texts]
        return [f"{one['words']!r} {ratio:.2f}" for one, ratio in ratios if ratio < (3 if one["large"] else 4.5)]

    def close(self) -> None:
        self.context.close()


def _contrast(one: dict[str, Any], picture: np.ndarray) -> float:
    left, top, width, height = (round(value) for value in one["box"])
    part = picture[max(0, top) : top + max(1, height), max(0, left) : left + max(1, width)].reshape(-1, 3)
    colour = [float(value) for value in one["colour"].removeprefix("rgba(").removeprefix("rgb(").rstrip(")").split(",")]
    if not len(part) or (len(colour) == 4 and colour[3] == 0):
        return 21.0
    back = np.median(part, axis=0)
    lights = sorted((_luminance(np.array(colour[:3])), _luminance(back)))
    return float((lights[1] + 0.05) / (lights[0] + 0.05))


def _luminance(colour: np.ndarray) -> float:
    share = colour / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return float(linear @ np.array([0.2126, 0.7152, 0.0722]))
