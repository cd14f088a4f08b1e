"""Load on `itl serve`: throughput and latency of single-picture predictions, and the same model in a plain loop.

python benchmarks/serve.py [--clients 20] [--requests 200] [--more 2000] [--repeats 3] [--json FILE]

Teaches a small model of handwritten digits, starts `itl serve --read-only`, and sends one picture per request from
concurrent clients. Every answer is compared with the plain loop's. Both are timed alternately in the same run, on the
same machine as the clients; the ratio of their medians is the result. Then further requests are sent while the server's
resident memory is watched.
"""

import argparse
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits

from itl.apps.images.read import read_image
from itl.apps.model import Model
from itl.results.environment import environment

SIZE, CLASSES = 32, 5
SETTINGS = {"net.name": "resnet8", "net.width": 16, "net.strided": True, "specialist.lr": 0.03}
EPOCHS = {"specialist.epochs": 10, "tangent.epochs": 5, "projection.epochs": 5}


def make_pictures(folder: Path, count: int) -> list[Path]:
    """Write digits as PNG files of 128 x 128 pixels."""
    digits = load_digits()
    rows = np.flatnonzero(digits.target < CLASSES)
    paths = []
    for k in range(count):
        pixels = (digits.images[rows[k % len(rows)]] * 15.9).astype(np.uint8)
        paths.append(folder / f"{k:04d}.png")
        Image.fromarray(pixels).resize((128, 128), Image.Resampling.BILINEAR).save(paths[-1])
    return paths


def make_model(path: Path) -> Model:
    digits = load_digits()
    rows = np.flatnonzero(digits.target < CLASSES)[:300]
    images = [Image.fromarray((digits.images[row] * 15.9).astype(np.uint8)).resize((SIZE, SIZE)) for row in rows]
    pixels = torch.from_numpy(np.stack([np.stack([np.asarray(image)] * 3) for image in images]))
    model = Model.create(path, size=SIZE, flip=False, device="cpu", buffer=100, settings={**SETTINGS, **EPOCHS})
    with model.lock():
        model.teach(pixels, [f"digit {digits.target[row]}" for row in rows])
        model.finish({"folders": ["digits"]})
    return model


def plain_loop(model: Model, paths: list[Path]) -> tuple[float, list[np.ndarray]]:
    """Decode and classify one picture after another; return pictures per second and the probabilities."""
    start = time.perf_counter()
    rows = [model.predict_proba(torch.from_numpy(read_image(path, SIZE))[None])[0] for path in paths]
    return len(paths) / (time.perf_counter() - start), rows


def load(base: str, token: str, contents: list[bytes], clients: int) -> tuple[float, list[float], list[dict]]:
    """Send one picture per request from concurrent clients; return requests per second, latencies and answers."""
    latencies, answers = [0.0] * len(contents), [{}] * len(contents)

    def work(first: int) -> None:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "image/png"}
        with httpx.Client(base_url=base, headers=headers, timeout=120) as client:
            for k in range(first, len(contents), clients):
                start = time.perf_counter()
                answer = client.post("/api/predict", content=contents[k])
                latencies[k] = time.perf_counter() - start
                answer.raise_for_status()
                answers[k] = answer.json()["predictions"][0]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(contents) / (time.perf_counter() - start), latencies, answers


def count_correct(model: Model, expected: list[np.ndarray], answers: list[dict]) -> int:
    """Number of answers that agree with the plain loop in class and probability."""
    return sum(
        answer.get("class") == model.classes[int(row.argmax())] and bool(abs(answer["confidence"] - row.max()) < 1e-4)
        for row, answer in zip(expected, answers, strict=True)
    )


def resident_megabytes(process: int) -> float:
    text = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", text)[0]) / 1024


def measure(folder: Path, clients: int, requests: int, more: int, repeats: int) -> dict:
    model, paths = make_model(folder / "model"), make_pictures(folder, requests)
    contents = [io.BytesIO(path.read_bytes()).getvalue() for path in paths]
    command = [sys.executable, "-m", "itl", "serve", str(folder / "model"), "--read-only", "--no-open", "--port", "0"]
    server = subprocess.Popen(
        [*command, "--device", "cpu"], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    try:
        base, token = re.findall(r"(http://\S+)/\?token=(\S+)", server.stdout.readline())[0]
        load(base, token, contents[:clients], clients)  # warm up
        plain, served, latencies, correct = [], [], [], []
        for _ in range(repeats):
            speed, expected = plain_loop(model, paths)
            plain.append(speed)
            speed, new_latencies, answers = load(base, token, contents, clients)
            served.append(speed)
            latencies += new_latencies
            correct.append(count_correct(model, expected, answers))
        memory = [resident_megabytes(server.pid)]
        for _ in range(more // 500):
            load(base, token, (contents * 500)[:500], clients)
            memory.append(resident_megabytes(server.pid))
    finally:
        server.terminate()
        server.wait()
    return {
        "clients": clients,
        "requests": requests,
        "correct": correct,
        "plain_per_second": [round(one, 1) for one in plain],
        "served_per_second": [round(one, 1) for one in served],
        "served_over_plain": round(float(np.median(served) / np.median(plain)), 3),
        "latency_ms": {f"p{q}": round(1000 * float(np.percentile(latencies, q)), 1) for q in (50, 95, 99)},
        "resident_megabytes_every_500_requests": [round(one, 1) for one in memory],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, default in (("clients", 20), ("requests", 200), ("more", 2000), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path, help="file to write")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), args.clients, args.requests, args.more, args.repeats)
    command = " ".join(["python", "benchmarks/serve.py", *sys.argv[1:]])
    text = json.dumps({"command": command, **result, **environment(torch.device("cpu"))}, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
