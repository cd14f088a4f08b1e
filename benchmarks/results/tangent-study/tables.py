"""Print the tables of study.md from study.jsonl: means over seeds and 95 % intervals (Student's t, n seeds)."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path

T95 = {2: 12.706, 3: 4.303}
LAMBDAS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
ROWS = [json.loads(line) for line in (Path(__file__).parent / "study.jsonl").open()]


def mean(values):
    return sum(values) / len(values)


def interval(values):
    """Mean and half-width of the 95 % interval, as text."""
    m = mean(values)
    if len(values) < 2:
        return f"{m:.2f}"
    s = math.sqrt(sum((v - m) ** 2 for v in values) / (len(values) - 1))
    return f"{m:.2f} ± {T95[len(values)] * s / math.sqrt(len(values)):.2f}"


def signed(values):
    return f"{'+' if mean(values) >= 0 else ''}{interval(values)}"


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print()


runs = {(r["method"], r["seed"]): r["result"] for r in ROWS if r["part"] == "train"}
tangent, linear, share = defaultdict(dict), defaultdict(dict), {}
for r in ROWS:
    if r["kind"] == "tangent":
        tangent[r["variant"], r["scale"], r["l2"], r["task"]][r["seed"]] = r
    if r["kind"] == "linear":
        linear[r["variant"], r["l2"], r["task"]][r["seed"]] = r
refined = defaultdict(dict)
for r in ROWS:
    if r["kind"] == "refine" and "stages" in r:
        refined[r["part"], r["name"], r["task"]][r["seed"]] = r
chain = defaultdict(dict)
for r in ROWS:
    if r["kind"] == "chain":
        chain[r["task"]][r["seed"]] = r


def before(r):
    """The stage before projection."""
    return next(v for k, v in r["stages"].items() if k != "expert")


print("### Default runs\n")
rows = []
for task in (1, 3, 5):
    stages = {s: runs["itl", s]["stages"][task - 1] for s in (0, 1, 2)}
    rows.append((task, *(f"{interval([stages[s][k]['class_il'] for s in stages])} / {mean([stages[s][k]['task_il'] for s in stages]):.2f}" for k in ("specialist", "tangent", "expert")), signed([stages[s]["expert"]["class_il"] - stages[s]["tangent"]["class_il"] for s in stages])))
table(("task", "specialist", "tangent model (SGD)", "expert", "expert − tangent"), rows)

for task in (5, 3):
    print(f"### Class-IL at the minimum, task {task}\n")
    rows = []
    for kind, variant, scale in [("tangent", "drawn", s) for s in (1.0, 3.0, 10.0, 30.0)] + [("tangent", "own", 1.0), ("tangent", "own", 3.0), ("tangent", "linear", 1.0), ("tangent", "linear", 3.0), ("tangent", "drawn-plain", 3.0), ("tangent", "drawn-plain", 10.0), ("linear", "drawn", None), ("linear", "own", None), ("linear", "drawn-plain", None)]:
        cells = [(tangent if kind == "tangent" else linear).get(((variant, scale, lam, task) if kind == "tangent" else (variant, lam, task)), {}) for lam in LAMBDAS]
        if not any(cells):
            continue
        seeds = {len(c) for c in cells if c}
        shares = [r["share"] for r in cells[0].values()] if kind == "tangent" else [1.0]
        rows.append((kind, variant, "" if scale is None else f"{scale:g}", f"{mean(shares):.3f}", *(f"{mean([r['class_il'] for r in c.values()]):.2f}" if c else "" for c in cells), "/".join(map(str, seeds))))
    table(("model", "classifier", "scale", "share", *(f"λ={lam:.0e}" for lam in LAMBDAS), "seeds"), rows)

print("### Tangent minus linear, before projection\n")
rows = []
for name, key in (("drawn, scale 3, λ 1e-3", ("drawn", 3.0, 1e-3)), ("drawn, scale 3, λ 1e-4", ("drawn", 3.0, 1e-4)), ("drawn, scale 10, λ 1e-3", ("drawn", 10.0, 1e-3)), ("drawn, scale 10, λ 1e-4", ("drawn", 10.0, 1e-4)), ("own classifier, λ 1e-3", ("own", 1.0, 1e-3)), ("own classifier, λ 1e-4", ("own", 1.0, 1e-4))):
    row = [name]
    for task in (5, 3):
        a, b = tangent[(*key, task)], linear["drawn", 1e-3, task]
        row += [signed([a[s]["class_il"] - b[s]["class_il"] for s in a]), signed([a[s]["task_il"] - b[s]["task_il"] for s in a]), len(a)]
    rows.append(row)
table(("tangent model", "task 5 Class-IL", "Task-IL", "seeds", "task 3 Class-IL", "Task-IL", "seeds"), rows)

print("### Doubling the budget of L-BFGS\n")
rows = []
for variant, scale in (("drawn", 1.0), ("drawn", 3.0), ("drawn", 10.0), ("own", 1.0)):
    for lam in (1e-2, 1e-3, 1e-4, 1e-5):
        for task in (5, 3):
            got = tangent[variant, scale, lam, task]
            paths = [[p["class_il"] for p in r["path"]] for r in got.values()]
            objectives = [[p["objective"] for p in r["path"]] for r in got.values()]
            rows.append((variant, f"{scale:g}", f"{lam:.0e}", task, *(f"{mean([p[k] for p in paths]):.2f}" for k in range(4)), *(f"{mean([o[k] for o in objectives]):.5f}" for k in range(4)), f"{max(abs(p[2] - p[1]) for p in paths):.2f}", f"{max(abs(p[3] - p[2]) for p in paths):.2f}"))
table(("classifier", "scale", "λ", "task", "25", "50", "100", "200", "obj. 25", "50", "100", "200", "largest change of one seed 50→100", "100→200"), rows)

print("### Solvers: objective after so many products (seed 0)\n")
rows = []
for r in ROWS:
    if r["kind"] == "solver" and r["scale"] in (3.0, 10.0):
        path = dict((k, v) for k, v, _ in r["path"])
        near = lambda n: next((f"{v:.5f}" + ("" if k == n else f" ({k})") for k, v in sorted(path.items()) if k >= n), "")
        rows.append((r["task"], f"{r['scale']:g}", f"{r['l2']:.0e}", r["solver"], *(near(n) for n in (25, 50, 100, 200, 400))))
table(("task", "scale", "λ", "solver", "25", "50", "100", "200", "400"), rows)

print("### Generalists from kept specialists\n")
rows, full = [], {t: refined["refine-a", "full-train", t] for t in (1, 3, 5)}
for (part, name, task), got in refined.items():
    projects = "projection" in next(iter(got.values()))["seconds"]
    row = [f"{name} ({part[-1]})", task, len(got), f"{interval([before(r)['class_il'] for r in got.values()])} / {mean([before(r)['task_il'] for r in got.values()]):.2f}"]
    if projects:
        row += [f"{interval([r['stages']['expert']['class_il'] for r in got.values()])} / {mean([r['stages']['expert']['task_il'] for r in got.values()]):.2f}", signed([r["stages"]["expert"]["class_il"] - before(r)["class_il"] for r in got.values()]), f"{min(r['stages']['expert']['class_il'] - before(r)['class_il'] for r in got.values()):+.2f}", signed([got[s]["stages"]["expert"]["class_il"] - full[task][s]["stages"]["expert"]["class_il"] for s in got])]
    else:
        row += [""] * 4
    rows.append(row)
order = {n: i for i, n in enumerate(dict.fromkeys(r[0] for r in rows))}
table(("generalist", "task", "seeds", "before projection", "expert", "expert − before", "worst seed", "expert − full-train's"), sorted(rows, key=lambda r: (r[1], order[r[0]])))
for r in ROWS:
    if r["kind"] == "refine" and "error" in r:
        print("not finite:", r["part"], r["name"], "seed", r["seed"], "task", r["task"])
print()

print("### Converged tangent model minus the default SGD's, same specialists\n")
rows = []
for label, part, name in (("scale 10, λ 1e-3, 8 views", "refine-a", "p-default"), ("scale 10, λ 1e-3, 32 views", "refine-a", "v32"), ("own classifier, λ 1e-4, 16 views", "refine-b", "p-kl"), ("SGD, sum reduction, lr .05", "refine-a", "sgd-sum-05")):
    rows.append((label, *(signed([before(r)["class_il"] - runs["itl", s]["stages"][t - 1]["tangent"]["class_il"] for s, r in refined[part, name, t].items()]) for t in (1, 3, 5))))
rows.append(("32 views minus 8 views, scale 10, λ 1e-3", *(signed([before(refined["refine-a", "v32", t][s])["class_il"] - before(refined["refine-a", "p-default", t][s])["class_il"] for s in (0, 1, 2)]) for t in (1, 3, 5))))
table(("tangent model", "task 1", "task 3", "task 5"), rows)

print("### Experts minus the default expert, same specialists\n")
rows = []
for (part, name) in dict.fromkeys(k[:2] for k in refined):
    if "projection" in next(iter(refined[part, name, 5].values()))["seconds"]:
        rows.append((f"{name} ({part[-1]})", *(signed([r["stages"]["expert"]["class_il"] - runs["itl", s]["stages"][t - 1]["expert"]["class_il"] for s, r in refined[part, name, t].items()]) if refined.get((part, name, t)) else "" for t in (1, 3, 5))))
table(("generalist", "task 1", "task 3", "task 5"), rows)

print("### Whole runs\n")
rows = []
for task, got in chain.items():
    default = {s: runs["itl", s]["stages"][task - 1] for s in got}
    rows.append((task, *(interval([got[s]["stages"][k]["class_il"] for s in got]) if k in got[0]["stages"] else "" for k in ("specialist", "tangent", "expert")), f"{mean([got[s]['stages']['expert']['task_il'] for s in got]):.2f}", signed([got[s]["stages"]["expert"]["class_il"] - got[s]["stages"]["tangent"]["class_il"] for s in got]), f"{mean([default[s]['expert']['class_il'] for s in got]):.2f}", signed([got[s]["stages"]["expert"]["class_il"] - default[s]["expert"]["class_il"] for s in got]), signed([got[s]["stages"]["expert"]["task_il"] - default[s]["expert"]["task_il"] for s in got])))
table(("after task", "specialist", "tangent model", "expert", "Task-IL", "expert − tangent", "default expert", "difference Class-IL", "Task-IL"), rows)
for s in (0, 1, 2):
    spent = {k: chain[5][s]["seconds"][k] - chain[1][s]["seconds"].get(k, 0) for k in ("specialist", "tangent", "projection")}
    print(f"seed {s}: tasks 2 to 5, seconds {({k: round(v, 1) for k, v in spent.items()})}, generalist/specialist {(spent['tangent'] + spent['projection']) / spent['specialist']:.3f}")
    d = runs["itl", s]["seconds"]
    print(f"seed {s}: default run, five tasks, four at once, {d}, ratio {(d['tangent'] + d['projection']) / d['specialist']:.3f}")
