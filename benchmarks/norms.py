"""What a ResNet-18's norms cost by the sizes of their kernels: µs forward and backward, layer by layer. A GPU's work.

python benchmarks/norms.py [--json FILE]

Every set of sizes is compiled and timed in a CUDA graph, with residual and ReLU, in bf16, for batches of 32 in one
group (a projection's) and in two (a replay step's), its output used twice. The first set is the one in use.
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

LAYERS = ((64, 32), (128, 16), (256, 8), (512, 4))  # channels, side; a ResNet-18 has five norms of each
EACH = 5
TIMES = 20


def sets() -> Iterator[dict[str, int]]:
    """The sizes in use, then others."""
    yield {}
    for stages in (1, 2):
        yield {"STAGES": stages}
    for rows, warps, stages in itertools.product((128, 256), (4, 8), (1, 2)):
        yield {"BLOCK_M": rows, "WARPS": warps, "STAGES": stages}
    for stages in (1, 2):
        yield {"REDUCE_PROGRAMS": 128, "MAX_PARTS": 64, "BLOCK_M": 128, "WARPS": 8, "STAGES": stages}
    yield {"REDUCE_PROGRAMS": 512, "MAX_PARTS": 128, "BLOCK_M": 128, "WARPS": 4, "STAGES": 1}
    yield {"SINGLE_PASS_MAX_ROWS": 0}


def timed(work: Callable[[], Any]) -> float:
    """µs of one time, of many in a graph."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(TIMES):
            work()
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(TIMES):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * begin.elapsed_time(end) / TIMES**2


def layer(channels: int, side: int, groups: int) -> float:
    """µs of one norm, both ways."""
    bn = nn.BatchNorm2d(channels).cuda()
    bn.groups = groups  # type: ignore[assignment]
    shape = (32 * groups, channels, side, side)
    x, residual, g = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
        for _ in range(3)
    )
    leaves = [x.requires_grad_(), residual.requires_grad_(), bn.weight, bn.bias]

    def both_ways() -> Any:
        y, again = norm.fork(norm.norm(bn, x, residual))
        return torch.autograd.grad([y, again], leaves, [g, g])

    return timed(both_ways)


def measure(say: Callable[[str], None]) -> dict[str, Any]:
    """Every set of sizes."""
    out: dict[str, Any] = {"format": 1, **environment(torch.device("cuda")), "sets": []}
    for sizes in sets():
        with ExitStack() as stack:
            for name, value in sizes.items():
                stack.enter_context(patch.object(norm, name, value))
            found = {groups: [layer(*shape, groups) for shape in LAYERS] for groups in (1, 2)}
        out["sets"].append({"sizes": sizes, "us": found})
        words = ", ".join(f"{EACH * sum(us):.0f} {[round(t, 1) for t in us]}" for us in found.values())
        say(f"{sizes or 'in use'}: {words}")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/norms.py times kernels on a CUDA device; there is none here")
    found = measure(lambda line: print(line, flush=True))
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
