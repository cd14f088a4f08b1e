"""Puts recorded speeds into README.md, docs/performance.md and docs/serve.md: `python benchmarks/speed_pages.py`.

The texts come from `benchmarks/results/speed` and `benchmarks/results/h200-runs`. A test compares the pages with
the records.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
sys.path[:0] = [str(HOME), str(HOME / "src")]

from benchmarks.pages import put  # noqa: E402
from itl.results.runs import read_run  # noqa: E402

SPEED = HOME / "benchmarks" / "results" / "speed"
WHOLE_RUN = HOME / "benchmarks" / "results" / "h200-runs" / "whole-run-seq-cifar10-itl-200-seed0"
# Label, name in the record, note on the baseline loop, and targets in ms and as a ratio.
STEPS: tuple[tuple[str, str, str, float | None, float | None], ...] = (
    ("er", "er", "", 1.7, 8),
    ("derpp (three batches with separate statistics in one forward pass)", "derpp", "", 2.2, 10),
    (
        "itl, specialist (AutoAugment on both batches, separate forward passes)",
        "itl specialist",
        " (without AutoAugment)",
        None,
        None,
    ),
    ("itl, tangent learning, including its inputs", "itl tangent", "", None, None),
    ("itl, projection, including its inputs", "itl projection", "", None, None),
)


def record(name: str) -> dict[str, Any]:
    """A record of `benchmarks/results/speed`."""
    content: dict[str, Any] = json.loads((SPEED / name).read_text())
    return content


def ratio_text(ratio: float) -> str:
    """A ratio with two significant digits."""
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"


def readme_text(bench: dict[str, Any]) -> str:
    """The README's paragraph on speed."""
    ms, ratio = ({name: bench[key][name] for name in ("er", "derpp")} for key in ("ours", "ratio"))
    return (
        f"**Speed:** on one H200, a training step of `er` takes {ms['er']['ms']:.2f} ms, "
        f"{ratio_text(ratio['er'])} times as fast as a plain PyTorch loop on the same\n"
        f"machine; `derpp` takes {ms['derpp']['ms']:.2f} ms, {ratio_text(ratio['derpp'])} times as fast "
        "([record](benchmarks/results/speed/h200-bench.json),\n"
        "[details](docs/performance.md)). `itl bench` measures your machine."
    )


def step_rows(bench: dict[str, Any]) -> list[str]:
    """Rows of the steps: ours, the baseline loop, and whether the targets are reached."""
    rows = []
    for label, name, note, target_ms, target_ratio in STEPS:
        ours, usual, ratio = bench["ours"][name]["ms"], bench["usual"][name]["ms"], bench["ratio"][name]
        target, reached = "", ""
        if target_ms is not None and target_ratio is not None:
            target = f"≤ {target_ms} ms, ≥ {target_ratio:.0f}x"
            reached = "reached" if ours <= target_ms and ratio >= target_ratio else "not reached"
        rows.append(f"| {label} | {ours:.2f} | {usual:.1f}{note} | {ratio_text(ratio)}x | {target} | {reached} |")
    return rows


def performance_text(bench: dict[str, Any], whole_run: dict[str, Any]) -> str:
    """The table of docs/performance.md."""
    share = 100 * bench["generalist_share"]["share"]
    total = whole_run["seconds"]["total"]
    concurrent = min(bench["lanes"], key=lambda entry: entry["ms_per_run_step"])
    growth = bench["growth"]
    per_image = ", ".join(f"{entry['per_image_us']:.0f}" for entry in growth)
    sizes = ", ".join(str(entry["buffer"]) for entry in growth)
    is_linear = growth[-1]["per_image_us"] <= 1.25 * growth[0]["per_image_us"]

    def row(label: str, value: str, target: str, reached: bool) -> str:
        return f"| {label} | {value} | | | {target} | {'reached' if reached else 'not reached'} |"

    return "\n".join(
        [
            "| step | ours, ms | baseline loop, ms | ratio | target | |",
            "|---|---|---|---|---|---|",
            *step_rows(bench),
            row(
                "share of tangent learning + projection at 200 images, 60 + 60 epochs",
                f"{share:.2f} %",
                "≤ 3 %",
                share <= 3,
            ),
            row(
                "full `itl` run on Seq-CIFAR-10, \\|B\\| = 200, 50 epochs, 120 + 120 epochs of the generalist, "
                "with all records",
                f"{total:.0f} s",
                "≤ 180 s",
                total <= 180,
            ),
            row(
                "best concurrent `er` runs, ms per step of one run",
                f"{concurrent['ms_per_run_step']:.2f} with {concurrent['lanes']}",
                "≤ 1.1 ms",
                concurrent["ms_per_run_step"] <= 1.1,
            ),
            row(
                "tangent + projection, time per epoch and image",
                f"{per_image} µs at {sizes} images",
                "linear",
                is_linear,
            ),
        ]
    )


def cpu_text(bench: dict[str, Any], augment: dict[str, Any]) -> str:
    """The list of docs/performance.md on two CPU cores."""
    (recipe,) = [row for row in augment["rows"] if row["recipe"] == "crop + flip + AutoAugment cifar10"]
    ratio, whole = bench["ratio"], bench["whole"]
    specialists = [ratio[name] for name in ("er", "derpp", "itl specialist")]
    ours, usual = (statistics.fmean(run["seconds"] for run in whole[side]) for side in ("ours", "usual"))
    growth = bench["growth"]
    per_image = ", ".join(f"{entry['per_image_us'] / 1000:.2f}" for entry in growth)
    sizes = ", ".join(f"{entry['buffer']:,}" for entry in growth)
    return "\n".join(
        [
            f"- Drawing and applying crop, flip and AutoAugment takes {recipe['ours_us']:.0f} µs per image, against "
            f"{recipe['pillow_us']:.0f} µs with Pillow and one worker:",
            f"  {ratio_text(recipe['ratio'])}x (target: 5x).",
            "- Steps of a small network (ResNet-8 with 8 filters on 16x16 images) are "
            f"{ratio_text(min(specialists))}x to {ratio_text(max(specialists))}x (specialists),",
            f"  {ratio_text(ratio['itl tangent'])}x (tangent learning) and {ratio_text(ratio['itl projection'])}x "
            "(projection) as fast as the baseline loop. Most of their time is spent in convolutions.",
            f"- A full `seq-digits` run takes {ours:.0f} s, against {usual:.0f} s with the baseline loop: "
            f"{ratio_text(whole['ratio'])}x (target: 1.5x).",
            f"- Tangent learning and projection take {per_image} ms per image at {sizes} images in memory.",
        ]
    )


def mammoth_text(record: dict[str, Any]) -> str:
    """The table of docs/performance.md on mammoth."""
    rows = [
        f"| {method} | {row['ours_ms']:.2f} | {row['mammoth_ms']:.1f} | {ratio_text(row['ratio'])}x |"
        for method, row in record["methods"].items()
    ]
    where = f"{record['hardware']['gpu']}, torch {record['versions']['torch']}, mammoth {record['mammoth_commit'][:8]}"
    source = f"{where} ([`h200-mammoth.json`](../benchmarks/results/speed/h200-mammoth.json)):"
    return "\n".join([source, "", "| step | ours, ms | mammoth, ms | ratio |", "|---|---|---|---|", *rows])


def report_text(record: dict[str, Any]) -> str:
    """The sentence of docs/performance.md on the report."""
    many, large = record["cases"]["40 runs"], record["cases"]["200 classes x 10 tasks"]
    return (
        f"`itl report` takes {many['seconds']:.1f} s of one core for 40 runs with pictures (a page of "
        f"{many['megabytes']:.1f} MB; {many['before']:.1f} s\nbefore 18 November 2026) and "
        f"{large['seconds']:.1f} s for a run with 200 classes in 10 tasks "
        "([`report.json`](../benchmarks/results/speed/report.json))."
    )


def load_text(load: dict[str, Any]) -> str:
    """The paragraph of docs/serve.md on load."""
    memory = load["resident_megabytes_every_500_requests"]
    correct = "all" if set(load["correct"]) == {load["requests"]} else f"{load['correct']}"
    return "\n".join(
        [
            f"Pictures of requests that arrive together are computed in one batch. {load['requests']} single-picture",
            f"requests from {load['clients']} concurrent clients were {correct} answered correctly, in each of "
            f"{len(load['correct'])} rounds. The throughput was",
            f"{load['served_over_plain']:.2f} of that of the same model in a plain loop without a network, with the "
            "server and its clients on the same",
            f"two CPU cores; the 95th percentile of the latency was {load['latency_ms']['p95'] / 1000:.2f} s. Over "
            f"{500 * (len(memory) - 1):,} further requests the",
            f"server's memory stayed at {min(memory):.0f} to {max(memory):.0f} MB "
            "([record](../benchmarks/results/speed/serve.json)).",
        ]
    )


def novice_text(novice: dict[str, Any]) -> str:
    """The sentence of docs/serve.md on the time of a first lesson."""
    return (
        f"A script without pauses takes {novice['seconds']:.0f} s on two CPU cores from the empty page to correct "
        f"predictions of two classes with\n{novice['pictures']} pictures (network `{novice['network']}`, "
        "[record](../benchmarks/results/speed/serve-novice.json))."
    )


def texts() -> dict[tuple[str, str], str]:
    """The generated texts, by page and marker."""
    bench = record("h200-bench.json")
    whole_run = read_run(WHOLE_RUN).result
    assert whole_run is not None
    return {
        ("README.md", "speed"): readme_text(bench),
        ("docs/performance.md", "speed"): performance_text(bench, whole_run),
        ("docs/performance.md", "mammoth"): mammoth_text(record("h200-mammoth.json")),
        ("docs/performance.md", "cpu"): cpu_text(record("cpu-bench.json"), record("cpu-augment.json")),
        ("docs/performance.md", "report"): report_text(record("report.json")),
        ("docs/serve.md", "load"): load_text(record("serve.json")),
        ("docs/serve.md", "novice"): novice_text(record("serve-novice.json")),
    }


def main() -> None:
    """Write the texts into the pages."""
    for (page, name), text in texts().items():
        put(HOME / page, name, text)


if __name__ == "__main__":
    main()
