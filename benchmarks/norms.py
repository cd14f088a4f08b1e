"""Time of a ResNet-18's fused norms by the block sizes of their kernels, per layer in microseconds. Needs a GPU.

python benchmarks/norms.py [--json FILE]

Each set of sizes is compiled and timed in a CUDA graph: forward and backward pass with residual and ReLU in bf16, the
output used twice, for batches of 32 in one group (as in projection) and in two (as in a replay step). The first set is
the one in use.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

HOME = Path(__file__).parents[1]
sys.path[:0] = [str(HOME / "src")]

import torch  # noqa: E402
from torch import nn  # noqa: E402

from itl.nets import norm  # noqa: E402
from itl.results import environment  # noqa: E402

LAYERS = ((64, 32), (128, 16), (256, 8), (512, 4))  # (channels, height and width)
NORMS_PER_LAYER = 5  # norms of each shape in a ResNet-18
REPEATS = 20  # calls per graph, and replays of the graph


def size_sets() -> Iterator[dict[str, int]]:
    """The sizes in use, then others, as changes of constants of `itl.nets.norm`."""
    yield {}
    for stages in (1, 2):
        yield {"STAGES": stages}
    for rows, warps, stages in itertools.product((128, 256), (4, 8), (1, 2)):
        yield {"BLOCK_M": rows, "WARPS": warps, "STAGES": stages}
    for stages in (1, 2):
        yield {"REDUCE_PROGRAMS": 128, "MAX_PARTS": 64, "BLOCK_M": 128, "WARPS": 8, "STAGES": stages}
    yield {"REDUCE_PROGRAMS": 512, "MAX_PARTS": 128, "BLOCK_M": 128, "WARPS": 4, "STAGES": 1}
    yield {"SINGLE_PASS_MAX_ROWS": 0}


def microseconds(work: Callable[[], Any]) -> float:
    """Microseconds per call of `work`, averaged over many calls in a CUDA graph."""
    warm_up = torch.cuda.Stream()
    warm_up.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm_up):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            work()
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(REPEATS):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * begin.elapsed_time(end) / REPEATS**2


def time_norm(channels: int, side: int, groups: int) -> float:
    """Microseconds of one norm, forward and backward."""
    bn = nn.BatchNorm2d(channels).cuda()
    bn.groups = groups  # type: ignore[assignment]
    shape = (32 * groups, channels, side, side)
    x, residual, grad = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
        for _ in range(3)
    )
    leaves = [x.requires_grad_(), residual.requires_grad_(), bn.weight, bn.bias]

    def forward_and_backward() -> Any:
        first, second = norm.fork(norm.norm(bn, x, residual))
        return torch.autograd.grad([first, second], leaves, [grad, grad])

    return microseconds(forward_and_backward)


def measure(log: Callable[[str], None]) -> dict[str, Any]:
    """Time every set of sizes."""
    out: dict[str, Any] = {"format": 1, **environment(torch.device("cuda")), "sets": []}
    for sizes in size_sets():
        with ExitStack() as stack:
            for name, value in sizes.items():
                stack.enter_context(patch.object(norm, name, value))
            times = {groups: [time_norm(*layer, groups) for layer in LAYERS] for groups in (1, 2)}
        out["sets"].append({"sizes": sizes, "us": times})
        text = ", ".join(f"{NORMS_PER_LAYER * sum(us):.0f} {[round(t, 1) for t in us]}" for us in times.values())
        log(f"{sizes or 'in use'}: {text}")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements to this file")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/norms.py times CUDA kernels, but there is no CUDA device")
    measured = measure(lambda line: print(line, flush=True))
    if args.json is not None:
        args.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
