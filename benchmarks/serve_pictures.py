"""A scripted new user in the browser: screenshots for docs/serve.md, an animation for the README, and the time taken.

python benchmarks/serve_pictures.py [--out docs/img] [--json FILE]
python benchmarks/serve_pictures.py --animate docs/img

Starts `itl serve` with an empty folder, opens the page in Chromium (playwright), teaches two classes of photographs,
tries pictures, corrects one, and teaches a third class. The pictures are crops of scikit-learn's two sample photographs
and its handwritten digits. The time from the empty page to a correct prediction is measured in a first pass without
screenshots.
"""

import argparse
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from playwright.sync_api import TimeoutError, sync_playwright
from sklearn.datasets import load_digits, load_sample_images

from itl.results.environment import environment

WIDTH, HEIGHT, ANIMATION_WIDTH = 1000, 700, 760
EACH, SIDE = 12, 128
CLASSES = ("flower", "temple")
PAINT_MS, SHORT_MS = 350, 5000
FRAMES = {"teach": 1800, "progress": 1500, "try": 2300, "correct": 2200, "results": 2600}  # milliseconds


def make_pictures(folder: Path) -> dict[str, list[str]]:
    """Write crops of two photographs, and digits, as files; the last three of each class are for predictions."""
    rng = np.random.default_rng(0)
    photographs = dict(zip(("temple", "flower"), load_sample_images().images, strict=True))
    digits = load_digits()
    files: dict[str, list[str]] = {}
    for k in range(EACH + 3):
        for name, pixels in photographs.items():
            image, side = Image.fromarray(pixels), int(rng.integers(190, 300))
            x, y = (int(rng.integers(0, length - side)) for length in image.size)
            files.setdefault(name, []).append(save(image.crop((x, y, x + side, y + side)), folder / f"{name}-{k}.jpg"))
        digit = Image.fromarray(((16 - digits.images[k]) * 15.9).astype(np.uint8)).resize((SIDE, SIDE))
        files.setdefault("digit", []).append(save(digit.convert("RGB"), folder / f"digit-{k}.jpg"))
    return files


def save(image: Image.Image, path: Path) -> str:
    image.resize((SIDE, SIDE), Image.Resampling.BILINEAR).save(path, quality=92)
    return str(path)


class Screenshots:
    """Screenshots of a page; without a folder, nothing is recorded."""

    def __init__(self, page, out: Path | None) -> None:
        self.page, self.out = page, out

    def take(self, name: str, shown: str | None = None) -> None:
        """Take a screenshot, if possible when the element `shown` is there."""
        if self.out is None:
            return
        if shown is not None:
            with suppress(TimeoutError):
                self.page.locator(shown).wait_for(timeout=SHORT_MS)
        self.page.wait_for_timeout(PAINT_MS)
        self.page.evaluate("() => document.querySelectorAll('.message').forEach((message) => message.remove())")
        image = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        image.quantize(200, dither=Image.Dither.NONE).save(self.out / f"serve-{name}.png", optimize=True)


def animate(folder: Path) -> None:
    """Make the animation `serve.webp` from the screenshots in a folder."""
    height = round(HEIGHT * ANIMATION_WIDTH / WIDTH)
    images = [Image.open(folder / f"serve-{name}.png").convert("RGB").crop((0, 0, WIDTH, HEIGHT)) for name in FRAMES]
    images = [image.resize((ANIMATION_WIDTH, height), Image.Resampling.LANCZOS) for image in images]
    times = list(FRAMES.values())
    images[0].save(
        folder / "serve.webp", save_all=True, append_images=images[1:], duration=times, loop=0, quality=70, method=6
    )


def teach_two_classes(page, screenshots: Screenshots, files: dict[str, list[str]]) -> float:
    """From the empty page to a correct prediction; return the seconds from the first click to the answers."""
    start = time.perf_counter()
    for index, kind in enumerate(CLASSES):
        name = page.locator(".card .name").nth(index)
        name.fill(kind)
        name.press("Enter")
        card = page.locator(f".card[aria-label='Class {kind}']")
        card.locator("input[type=file]").set_input_files(files[kind][:EACH])
        card.locator(".thumb").nth(EACH - 1).wait_for()
    screenshots.take("teach")
    page.locator("#start").click()
    page.locator("#lesson .stages").wait_for()
    screenshots.take("progress", "#lesson .stages li.now")
    page.locator("#lesson").wait_for(state="hidden")
    page.get_by_role("tab", name="Try").click()
    page.locator("#try input").set_input_files([files[kind][EACH] for kind in CLASSES])
    page.locator("#tried .answer").nth(1).wait_for()
    seconds = time.perf_counter() - start
    answers = [text.split()[0] for text in page.locator("#tried .answer").all_inner_texts()]
    assert answers == list(reversed(CLASSES)), answers
    return seconds


def correct_and_teach_again(page, screenshots: Screenshots, files: dict[str, list[str]]) -> None:
    page.locator("#try input").set_input_files(files["digit"][EACH])
    page.locator("#tried .answer").nth(2).wait_for()
    screenshots.take("try")
    page.get_by_role("tab", name="Correct").click()
    page.locator(".uncertain-row", has_text="Tried").first.wait_for()
    screenshots.take("correct")
    row = page.locator(".uncertain-row", has_text="Tried").first
    row.get_by_role("button", name="New class…").click()
    page.locator("dialog input").fill("digit")
    page.locator("dialog").get_by_role("button", name="Use it").click()
    page.get_by_role("tab", name="Teach").click()
    card = page.locator(".card[aria-label='Class digit']")
    card.locator("input[type=file]").set_input_files(files["digit"][:EACH])
    card.locator(".thumb").nth(EACH - 1).wait_for()
    page.locator("#start").click()
    page.locator("#lesson .stages").wait_for()
    page.locator("#lesson").wait_for(state="hidden")
    page.get_by_role("tab", name="Results").click()
    page.locator(".matrix button.count").first.click()
    page.locator(".cell-pictures img").first.wait_for()
    page.evaluate("() => scrollTo(0, 0)")
    screenshots.take("results")


def run(folder: Path, out: Path | None, options: list[str]) -> tuple[float, str]:
    """Return the seconds to the first correct predictions, and the name of the network."""
    folder.mkdir()
    files = make_pictures(folder)
    command = [sys.executable, "-m", "itl", "serve", str(folder / "photos"), "--no-open", "--port", "0", *options]
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "ITL_CACHE": "off"}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    try:
        url = re.findall(r"http://\S+", server.stdout.readline())[0]
        with sync_playwright() as driver:
            args = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=args)
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.set_default_timeout(300_000)
            page.goto(url)
            page.wait_for_selector("html[data-ready]")
            screenshots = Screenshots(page, out)
            seconds = teach_two_classes(page, screenshots, files)
            network = page.evaluate("async () => (await (await fetch('/api/model')).json()).network")
            if out is not None:
                correct_and_teach_again(page, screenshots, files)
                phone = browser.new_page(viewport={"width": 390, "height": 760}, color_scheme="dark")
                phone.goto(url)
                phone.wait_for_selector("html[data-ready]")
                phone.get_by_role("tab", name="Correct").click()
                phone.locator(".uncertain-row").first.wait_for()
                Screenshots(phone, out).take("phone")
            browser.close()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
    return seconds, network


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="folder for the screenshots; without it, only the time is measured")
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("options", nargs="*", help="further options of itl serve, after --")
    parser.add_argument("--animate", type=Path, help="only make the animation from the screenshots in this folder")
    args = parser.parse_args()
    if args.animate is not None:
        animate(args.animate)
        return
    with tempfile.TemporaryDirectory() as folder:
        seconds, network = run(Path(folder) / "timed", None, args.options)
        print(f"{seconds:.1f} s from the empty page to correct predictions", flush=True)
        if args.out is not None:
            run(Path(folder) / "recorded", args.out, args.options)
            animate(args.out)
    command = " ".join(["python", "benchmarks/serve_pictures.py", *sys.argv[1:]])
    about = "seconds from the empty page to correct predictions of two classes, by a script without pauses"
    record = {
        "about": about,
        "command": command,
        "seconds": round(seconds, 1),
        "pictures": 2 * EACH,
        "network": network,
    }
    text = json.dumps({**record, **environment(torch.device("cpu"))}, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
