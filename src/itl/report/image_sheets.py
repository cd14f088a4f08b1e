"""Images of a run, of its memory and its mistakes, as sheets small enough for a page."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from itl.experiments.config import Config
from itl.report.run_selection import ReportRun
from itl.results.image_selection import balanced_subset, select_mistakes
from itl.results.validation import check_pictures

MAX_LOSSLESS_SIDE = 16  # pixels; larger images are compressed with loss


@dataclass(frozen=True)
class RunImages:
    """Images, uint8 `[n, channels, height, width]`: of the memory with their slots, of mistakes with their rows."""

    memory: np.ndarray
    slot: np.ndarray
    wrong: np.ndarray
    row: np.ndarray


class ImageLoader:
    """Loads a run's images from its record, or from the dataset if its folder `data` is given."""

    def __init__(self, data: str | None) -> None:
        self.data = data
        self.streams: dict[str, Any] = {}

    def load(self, report_run: ReportRun) -> RunImages | None:
        """The images of a finished run; None if they are neither recorded nor available from a dataset."""
        arrays = report_run.run.storage.read_arrays("pictures.npz")
        if arrays is not None and report_run.result is not None and report_run.predictions is not None:
            slots, rows = (
                len(report_run.result.get("memory", {}).get("label", ())),
                len(report_run.predictions["label"]),
            )
            check_pictures(arrays, slots, rows, report_run.run.path / "pictures.npz")
            return RunImages(*(arrays[name] for name in ("memory", "slot", "wrong", "row")))
        if self.data is None or report_run.result is None or report_run.predictions is None:
            return None
        config = Config.from_dict(report_run.run.config)
        key = repr((config.stream, config.tasks, config.order, config.order_seed, config.split))
        if key not in self.streams:  # load each stream once
            self.streams[key] = config.load_stream(self.data)
        return _from_dataset(report_run, self.streams[key])


def _from_dataset(report_run: ReportRun, stream: Any) -> RunImages:
    """The images that the recorder would have kept, from the dataset."""
    import torch

    memory, predicted = (report_run.result or {})["memory"], report_run.predictions or {}
    slot = balanced_subset(np.array(memory["label"], int))
    shape = stream.shape
    memory_images = [
        stream.tasks[memory["task"][k]].train.gather(torch.tensor([memory["row"][k]]))[0].numpy() for k in slot
    ]
    row = select_mistakes(predicted["label"], predicted["class_il"], predicted["confidence"])
    pixels = type(stream.tasks[0].test).join([task.test for task in stream])
    wrong = pixels.gather(torch.from_numpy(row)).numpy()
    return RunImages(np.array(memory_images, np.uint8).reshape(-1, *shape), slot, wrong, row)


def sheet(images: np.ndarray) -> dict[str, Any]:
    """Images `[n, channels, height, width]` in one image: its data URI, columns and rows."""
    count, channels, height, width = images.shape
    columns = max(1, int(np.ceil(np.sqrt(count * height / max(1, width)))))
    rows = -(-count // columns)
    canvas = np.zeros((rows * height, columns * width, channels), np.uint8)
    for k, image in enumerate(images):
        top, left = k // columns * height, k % columns * width
        canvas[top : top + height, left : left + width] = image.transpose(1, 2, 0)
    kind = "PNG" if max(height, width) <= MAX_LOSSLESS_SIDE else "WEBP"
    image_file = Image.fromarray(canvas[:, :, 0] if channels == 1 else canvas[:, :, :3])
    out = io.BytesIO()
    image_file.save(out, kind, **({} if kind == "PNG" else {"quality": 82, "method": 1}))
    uri = f"data:image/{kind.lower()};base64,{base64.b64encode(out.getvalue()).decode()}"
    return {"uri": uri, "columns": columns, "rows": rows}


def memory_gallery(report_run: ReportRun, pictures: RunImages, limit: int) -> dict[str, Any] | None:
    """The memory's images by class, each with its task and the step at which it was added."""
    slots = (report_run.result or {}).get("memory") or {}
    chosen = balanced_subset(np.array(slots["label"], int)[pictures.slot], limit)
    if not len(chosen):
        return None
    groups: dict[int, list[dict[str, str | int]]] = {}
    for tile, k in enumerate(chosen):
        slot = int(pictures.slot[k])
        label, task, step = (int(slots[name][slot]) for name in ("label", "task", "written"))
        groups.setdefault(label, []).append(
            {
                "tile": tile,
                "note": f"task {task + 1}",
                "text": f"{_name(report_run, label)}, task {task + 1}, step {step}",
            }
        )
    held = np.bincount(np.array(slots["label"], int))
    titled = [
        {"title": _name(report_run, label), "more": _count_text(len(items), int(held[label])), "items": items}
        for label, items in sorted(groups.items())
    ]
    return {"sheet": sheet(pictures.memory[chosen]), "groups": titled}


def mistake_gallery(report_run: ReportRun, pictures: RunImages, limit: int) -> dict[str, Any] | None:
    """Informative wrong predictions: true class, predicted class and confidence."""
    predicted = report_run.predictions
    if predicted is None or not len(pictures.row):
        return None
    items: list[dict[str, str | int]] = []
    for tile, row in enumerate(pictures.row[:limit].tolist()):
        label, guess = (_name(report_run, int(predicted[name][row])) for name in ("label", "class_il"))
        confidence = f"{100 * float(predicted['confidence'][row]):.0f} %"
        items.append(
            {
                "tile": tile,
                "note": f"{label} → {guess}",
                "text": f"{label}, predicted as {guess} with {confidence} confidence",
            }
        )
    wrong = int((predicted["label"] != predicted["class_il"]).sum())
    more = f"{wrong} of {len(predicted['label'])} test images are misclassified; {len(items)} are shown"
    return {"sheet": sheet(pictures.wrong[:limit]), "groups": [{"title": "", "more": more, "items": items}]}


def _count_text(count: int, held: int) -> str:
    return f"{held} images" if count == held else f"{held} images, {count} shown"


def _name(report_run: ReportRun, label: int) -> str:
    names = report_run.class_names
    return names[label] if label < len(names) else str(label)
