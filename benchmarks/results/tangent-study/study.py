"""Tangent-plane study on kept specialists (study.md). Needs the library with library.patch and solve.py applied.

python study.py train  --which itl:0,itl:1,itl:2 --concurrent 3       train and keep specialists (method:seed)
python study.py kernel --which itl:0:5,itl:0:3 --compare              all scales and λ from one kernel (method:seed:task)
python study.py refine --which itl:0:5 --names p-kl,full-train        named generalists of settings.json
python study.py chains --which itl:0 --names p-kl                     whole runs from the kept first specialist on

Everything is measured on the validation split. Measurements are appended to *.jsonl in the folder `--out`.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from pathlib import Path

T0 = time.time()
HERE = Path(__file__).parent

import numpy as np
import torch
from torch import Tensor
import torch.nn.functional as F

from itl import saving
from itl.config import Config
from itl.engine.lanes import side_by_side
from itl.generalists import solve
from itl.results import Folder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LOCK = threading.Lock()
OUT = Path(".")


def say(*words):
    print(f"[{time.time() - T0:6.1f}]", *words, flush=True)


class Log:
    def __init__(self, name):
        self.path = OUT / name
        self.file = self.path.open("a")

    def __call__(self, **line):
        line = {"torch": torch.__version__, "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU", **line}
        with LOCK:
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()


def config(args, method, seed, **own):
    settings = {**json.loads(args.base), **own.pop("settings", {})}
    return Config(args.stream, method, args.buffer, seed, settings=settings, split="validation", keep_specialists=True, **own)


def stream_of(args):
    return config(args, "itl", 0).load_stream(args.data)


def place(args, method, seed):
    return Path(args.runs) / f"{method}-{seed}"


# ---------------------------------------------------------------- train

def train(args):
    from itl.run import run_all

    todo = [m.split(":") for m in args.which.split(",")]
    configs = [config(args, m, int(s)) for m, s in todo]
    stream = stream_of(args)
    say("training", [c.name for c in configs])
    log = Log("train.jsonl")
    results = run_all(configs, stream, [place(args, m, int(s)) for m, s in todo], lanes=args.concurrent, device=DEVICE, save=False)
    for (m, s), r in zip(todo, results):
        r = {k: v for k, v in r.items() if k in ("class_il", "task_il", "seconds", "stages", "tasks", "settings", "class_il_matrix")}
        log(kind="run", method=m, seed=int(s), result=r)
        say(m, s, {k: r.get(k) for k in ("class_il", "task_il", "seconds")})


# ---------------------------------------------------------------- kernel

def bn_of(bn):
    rstd = (bn.running_var + bn.eps).rsqrt()
    return bn.running_mean, rstd, bn.weight.detach(), bn.bias.detach()


def plain_head(layer4, classifier, h):
    """Logits of the head in evaluation mode, and (input, convolution, norm, z, norm's output) of each convolution."""
    found, x = [], h

    def conv_norm(conv, bn, x):
        z = F.conv2d(x, conv.weight.detach(), None, conv.stride, conv.padding)
        mean, rstd, weight, bias = (t.view(-1, 1, 1) for t in bn_of(bn))
        b = (z - mean) * rstd * weight + bias
        if not b.requires_grad:
            b.requires_grad_()
        found.append((x, conv, bn, z, b))
        return b

    for block in list(layer4)[:-1]:
        o = conv_norm(block.conv1, block.bn1, x).relu()
        b2 = conv_norm(block.conv2, block.bn2, o)
        short = conv_norm(block.shortcut.conv, block.shortcut.bn, x) if block.shortcut.changes else x
        x = (b2 + short).relu()
    pooled = x.mean((2, 3))
    return F.linear(pooled, classifier.weight.detach(), classifier.bias.detach()), found, pooled.detach()


def gram(net, h, chunk=None):
    """The kernels of layer4 and of the pooled features: `[n k, n k]` and `[n, n]`."""
    layer4, classifier = getattr(net, net.layers[-2]), net.classifier
    K, N = classifier.out_features, len(h)
    grads, inputs, pooled, hats = None, None, [], None
    for part in h.split(400):
        with torch.enable_grad():
            logits, found, pool = plain_head(layer4, classifier, part)
            each = [torch.autograd.grad(logits[:, k].sum(), [b for *_, b in found], retain_graph=k < K - 1) for k in range(K)]
        mine = [torch.stack([each[k][i] for k in range(K)], 1).flatten(3) for i in range(len(found))]  # n, K, c, p
        ins = [F.unfold(x.detach(), conv.kernel_size, padding=conv.padding, stride=conv.stride).transpose(1, 2) for x, conv, *_ in found]
        hat = [((z.detach() - bn_of(bn)[0].view(-1, 1, 1)) * bn_of(bn)[1].view(-1, 1, 1)).flatten(2) for _, _, bn, z, _ in found]
        if grads is None:
            grads, inputs, hats, layers = [[] for _ in found], [[] for _ in found], [[] for _ in found], [(c, b) for _, c, b, *_ in found]
        for store, new in ((grads, mine), (inputs, ins), (hats, hat)):
            for a, b in zip(store, new):
                a.append(b)
        pooled.append(pool)
        del found, each, logits
    pooled = torch.cat(pooled)
    out = torch.zeros(N * K, N * K, device=h.device)
    nb = chunk or max(1, min(N, int(6e9 / (K * N * K * 4 * grads[0][0].shape[-1]))))
    for i, (conv, bn) in enumerate(layers):
        G, A, hat = torch.cat(grads[i]), torch.cat(inputs[i]), torch.cat(hats[i])
        grads[i] = inputs[i] = hats[i] = None
        P = G.shape[-1]
        shift, gain = G.sum(-1).flatten(0, 1), torch.einsum("nkcp,ncp->nkc", G, hat).flatten(0, 1)
        out += shift @ shift.T
        out += gain @ gain.T
        mean, rstd, weight, bias = bn_of(bn)
        D = (G * (rstd * weight)[:, None]).permute(0, 1, 3, 2).contiguous()  # n, K, p, c
        del G
        A = A.reshape(N * P, -1)
        gp = (A @ A.T).view(N, P, N, P)
        flat = D.view(N * K * P, -1)
        for first in range(0, N, nb):
            last = min(N, first + nb)
            rest = flat[first * K * P :].T  # only what is not below the diagonal
            for q in range(P):
                x = D[first:last, :, q].reshape((last - first) * K, -1) @ rest
                x = x.view(last - first, K, N - first, K, P)
                x.mul_(gp[first:last, q, first:].unsqueeze(1).unsqueeze(3))
                out[first * K : last * K, first * K :] += x.sum(-1).view((last - first) * K, -1)
        del gp, D, A, flat
    upper = torch.triu(out)
    return upper + torch.triu(out, 1).T, pooled


def whole_kernel(k4, pooled, scale, K):
    """s² K4 + (h h' + 1) ⊗ I."""
    n = len(pooled)
    out = (scale**2) * k4
    same = pooled @ pooled.T + 1
    out.view(n, K, n, K).diagonal(dim1=1, dim2=3).add_(same.unsqueeze(-1))
    return out


class Validation:
    """A specialist's validation images of the tasks seen, ready to be scored."""

    def __init__(self, learner, stream, task, features):
        self.tasks = stream.tasks[:task]
        px = [t.test.pixels for t in self.tasks]
        self.sizes = [len(p) for p in px]
        x = learner.engine.send(torch.cat(px))
        self.y = learner.engine.send(torch.cat([t.test.labels for t in self.tasks]))
        self.x = x
        self.h = solve.features_of(features, learner._ground, x) if features is not None else None

    def score(self, logits):
        c, t = [], []
        for part, y, task in zip(logits.split(self.sizes), self.y.split(self.sizes), self.tasks):
            c.append((part.argmax(1) == y).double().mean())
            lo, hi = min(task.classes), max(task.classes) + 1
            t.append((part[:, lo:hi].argmax(1) + lo == y).double().mean())
        both = (100 * torch.stack([torch.stack(c).mean(), torch.stack(t).mean()])).tolist()
        return round(both[0], 3), round(both[1], 3)


def opened(args, stream, method, seed, task, settings):
    """A learner loaded at a kept specialist, its generalist built."""
    folder = Folder(place(args, method, seed))
    learner = saving.load(folder.specialist(task), device=DEVICE, settings=settings)
    learner._begin(stream.tasks[task - 1])
    with learner.engine.here():
        learner._half_pipe(stream.tasks[task - 1])
    return learner


def specialist_score(args, stream, method, seed, task):
    folder = Folder(place(args, method, seed))
    learner = saving.load(folder.specialist(task), device=DEVICE)
    learner._begin(stream.tasks[task - 1])
    s = learner.scores(stream.tasks[:task], [t.test for t in stream.tasks[:task]])
    return round(s.class_il, 3), round(s.task_il, 3)


LAMBDAS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


def kernel_study(args):
    """All (scale, λ) from one kernel a specialist; the linear model on the same views."""
    stream, log = stream_of(args), Log(f"kernel-{args.tag}.jsonl")
    V, its = args.views, args.iterations
    for item in args.which.split(","):
        method, seed, task = item.split(":")
        seed, task = int(seed), int(task)
        if time.time() - T0 > args.until:
            say("no time for", item)
            break
        where = dict(method=method, seed=seed, task=task, views=V)
        spec = specialist_score(args, stream, method, seed, task)
        log(kind="specialist", **where, class_il=spec[0], task_il=spec[1])
        say(item, "specialist", spec)
        for variant in args.variants.split(","):
            if time.time() - T0 > args.until:
                break
            one_variant(args, stream, log, where, variant, V, its)
        if DEVICE == "cuda":
            torch.cuda.empty_cache()


def one_variant(args, stream, log, where, variant, V, its):
    """`variant` is e.g. drawn, drawn-plain (no AutoAugment on the memory), own, linear."""
    kind, _, plain = variant.partition("-")
    settings = {"tangent.views": V}
    if plain:
        settings["augment.memory"] = None
    if kind == "own":
        settings["half_pipe"] = False
    if kind == "linear":
        settings["tangent.classifier"] = "linear"
    begun = time.time()
    learner = opened(args, stream, where["method"], where["seed"], where["task"], settings)
    with learner.engine.here():
        gen, ground = learner._generalist, learner._ground
        val = Validation(learner, stream, where["task"], gen.model.features)
        h = solve.features_of(gen.model.features, ground, solve.views_of(ground, V))
        p = solve.Primal(gen.model, h)
        pv = solve.Primal.__new__(solve.Primal)
        pv.model, pv.head, pv.shapes, pv.size, pv.w0 = p.model, p.head, p.shapes, p.size, p.w0
        with torch.no_grad():
            pv.parts = []
            for x in val.h.split(1024):
                known = gen.model.values(x)
                value, _ = solve.dual.along(pv.head, x, pv.split(torch.zeros_like(p.w0)), known)
                pv.parts.append((x, known, value, None))
            pv.f0 = torch.cat([v for _, _, v, _ in pv.parts])
        K = p.f0.shape[1]
        obj0 = solve.objective_of(ground, V, p.f0, ground.settings.tangent)
        log(kind="at w=0", **where, variant=variant, class_il=val.score(pv.f0)[0], task_il=val.score(pv.f0)[1], logit_rms=float(p.f0.square().mean().sqrt()))
        net = gen.anchor
        sync()
        t1 = time.time()
        with torch.no_grad():
            k4, pooled = gram(net, h)
        sync()
        t2 = time.time()
        # the check: the kernel's product against J J'
        c = torch.randn_like(p.f0)
        with torch.no_grad():
            full = whole_kernel(k4, pooled, 1.0, K)
        direct, by_kernel = p.jvp(p.vjp(c)), (full @ c.reshape(-1)).view_as(c)
        error = float((direct - by_kernel).norm() / direct.norm())
        del full
        tr4, trc = float(k4.diagonal().sum()), float((pooled.square().sum() + len(pooled)) * K)
        say(variant, f"kernel {t2 - t1:.2f} s, error {error:.1e}, layer4 {tr4 / len(h) / K:.3g}, classifier {trc / len(h) / K:.3g}")
        log(kind="kernel", **where, variant=variant, seconds=t2 - t1, error=error, trace_layer4=tr4, trace_classifier=trc, samples=len(h))
        four = torch.cat([torch.full((int(np.prod(s)),), 0.0 if n.startswith("classifier") else 1.0, device=h.device) for n, s in p.shapes.items()])
        scales = {"drawn": (1.0, 3.0, 10.0, 30.0), "own": (1.0, 3.0), "linear": (1.0, 3.0)}[kind]
        if plain:
            scales = (3.0, 10.0)
        for scale in scales:
            if time.time() - T0 > args.until:
                break
            gain = 1 + (scale - 1) * four  # w of the scaled head: layer4's part of J is scale times as large
            kern = solve.Kernel(whole_kernel(k4, pooled, scale, K), len(h), K)
            f0, v0 = p.f0 * scale, pv.f0 * scale
            obj = solve.objective_of(ground, V, f0, ground.settings.tangent)
            top = kern.gram[:, 0].clone()
            for _ in range(8):
                top = kern.gram @ (top / top.norm())
            share = trc / (scale**2 * tr4 + trc)
            warm = None
            for lam in LAMBDAS:
                if scale == 30.0 and lam < 1e-5:
                    continue
                rows = []

                def mark(k, w, f, g):
                    flat = p.vjp(w[0].view_as(f0)) * gain
                    logits = v0 + pv.jvp(flat * gain)
                    c, t = val.score(logits)
                    value = float(obj.value(f) + lam * kern.dot(w, w))
                    rows.append({"products": k, "class_il": c, "task_il": t, "objective": value, "gradient": float(kern.dot(g, g).clamp(min=0).sqrt())})

                begun = time.time()
                w, f, info = solve.lbfgs(kern, obj, lam, its, w=None, marks=(its // 8, its // 4, its // 2, its), mark=mark)
                sync()
                info["seconds"] = time.time() - begun
                c, t = rows[-1]["class_il"], rows[-1]["task_il"]
                log(kind="tangent", **where, variant=variant, scale=scale, l2=lam, solver="lbfgs (kernel)", share=share, top=float(top.norm()), class_il=c, task_il=t, path=rows, **info)
                say(f"  {variant} s={scale:g} λ={lam:.0e}: {' '.join(str(r['class_il']) for r in rows)} / {t}  obj {info['objective']:.4f} |g|/|g0| {info['gradient'] / max(info['gradient_0'], 1e-30):.1e} acc {info['train_accuracy']:.3f} rms {info['logit_rms']:.2f} share {share:.2f} {info['seconds']:.2f}s")
            if args.compare and kind == "drawn" and not plain:
                for lam in (1e-3, 1e-4):
                    for name in ("lbfgs", "fista", "newton"):
                        rows = []
                        begun = time.time()

                        def mark(k, w, f, g):
                            rows.append((k, float(obj.value(f) + lam * kern.dot(w, w)), float(kern.dot(g, g).clamp(min=0).sqrt())))

                        _, _, info = solve.METHODS[name](kern, obj, lam, 400, marks=(25, 50, 100, 200, 400), mark=mark)
                        log(kind="solver", **where, variant=variant, scale=scale, l2=lam, solver=name, path=rows, **info)
                        say(f"    {name} s={scale:g} λ={lam:.0e}", " ".join(f"{k}:{v:.5f}" for k, v, _ in rows))
            del kern
        if kind == "drawn" or kind == "own":
            hv = val.h  # the linear model, on the same views
            with torch.no_grad():
                pool_v = torch.cat([plain_head(getattr(net, net.layers[-2]), net.classifier, x)[2] for x in hv.split(1024)])
            lp = solve.Linear(pooled, net.classifier.weight.detach(), net.classifier.bias.detach())
            lo = solve.objective_of(ground, V, lp.f0, ground.settings.tangent)
            ones = torch.cat([pool_v, torch.ones_like(pool_v[:, :1])], 1)
            start = F.linear(pool_v, net.classifier.weight.detach(), net.classifier.bias.detach())
            for lam in LAMBDAS:
                begun = time.time()
                rows = []

                def mark(k, w, f, g):
                    rows.append(val.score(start + ones @ w.view(K, -1).T))

                w, f, info = solve.lbfgs(lp, lo, lam, its, marks=(its // 8, its // 4, its // 2, its), mark=mark)
                sync()
                info["seconds"] = time.time() - begun
                log(kind="linear", **where, variant=variant, l2=lam, class_il=rows[-1][0], task_il=rows[-1][1], path=rows, **info)
                say(f"  linear {variant} λ={lam:.0e}: {' '.join(str(r[0]) for r in rows)} / {rows[-1][1]} obj {info['objective']:.4f} acc {info['train_accuracy']:.3f}")
    del k4, p, pv, learner


def sync():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


# ---------------------------------------------------------------- refine

def settings_of(args):
    table = json.loads(args.settings) if args.settings else json.loads((HERE / "settings.json").read_text())
    tangent = {"tangent.solver": "lbfgs", **json.loads(args.tangent)}
    return {n: {**(tangent if v.pop("T", False) else {}), **v} for n, v in table.items()}


def refine_study(args):
    """Named settings from kept specialists, several at once."""
    from itl.refine import _Scores
    from itl.errors import UserError

    solve.KEEP = True
    stream, log = stream_of(args), Log(f"refine-{args.tag}.jsonl")
    table = settings_of(args)
    names = [n for n in table if any(n.startswith(p) for p in args.names.split(","))] if args.names else list(table)
    where = [tuple(w.split(":")) for w in args.which.split(",")]
    jobs = [(n, m, int(s), int(t)) for n in names for m, s, t in where]
    found = {}

    def one(job):
        name, method, seed, task = job
        if time.time() - T0 > args.until:
            return
        own = table[name]
        try:
            folder = Folder(place(args, method, seed))
            scores = _Scores(stream, task)
            learner = saving.load(folder.specialist(task), device=DEVICE, settings=own, observer=scores)
            learner.clock.seconds.clear()
            begun = time.time()
            learner.learn(stream.tasks[task - 1])
            stages = {k: {a: round(b, 3) for a, b in v.items()} for k, v in scores.stages.items()}
            line = dict(stages=stages, seconds={k: round(v, 3) for k, v in learner.clock.seconds.items()}, solved=getattr(learner, "solved", None))
        except UserError as error:
            line = dict(error=str(error))
        log(kind="refine", name=name, settings=own, method=method, seed=seed, task=task, **line)
        found[job] = line
        if "stages" in line:
            say(name, method, seed, task, {k: v["class_il"] for k, v in line["stages"].items()}, line["seconds"])
        else:
            say(name, method, seed, task, line["error"][:100])

    from functools import partial

    def safe(job):
        try:
            one(job)
        except Exception as error:
            say("FAILED", job, repr(error)[:300])

    side_by_side([partial(safe, job) for job in jobs], args.concurrent, torch.device(DEVICE))
    say("means over what was run (Class-IL before projection -> expert):")
    for n in names:
        for task in sorted({t for *_, t in jobs}):
            rows = [found[j] for j in jobs if j[0] == n and j[3] == task and j in found and "stages" in found[j]]
            if rows:
                mean = {k: [round(sum(r["stages"][k][x] for r in rows) / len(rows), 2) for x in ("class_il", "task_il")] for k in rows[0]["stages"]}
                say(f"{n:34s} task {task} n={len(rows)} {mean}")


# ---------------------------------------------------------------- chains

def chains(args):
    """Whole runs with new settings, from the kept first specialist on."""
    stream, log = stream_of(args), Log(f"chains-{args.tag}.jsonl")
    table = settings_of(args)
    from functools import partial

    from itl.refine import _Scores

    def one(name, method, seed):
        folder = Folder(place(args, method, seed))

        class Scores(_Scores):
            def add(self, stage, learner):
                super().add(stage, learner)

        scores = Scores(stream, 1)
        learner = saving.load(folder.specialist(1), device=DEVICE, settings=table[name], observer=scores)
        learner.clock.seconds.clear()
        for t in range(1, len(stream.tasks) + 1):
            scores.tasks, scores.stages = stream.tasks[:t], {}
            learner.learn(stream.tasks[t - 1])
            stages = {k: {a: round(b, 3) for a, b in v.items()} for k, v in scores.stages.items()}
            log(kind="chain", name=name, settings=table[name], method=method, seed=seed, task=t, stages=stages, seconds={k: round(v, 3) for k, v in learner.clock.seconds.items()}, solved=getattr(learner, "solved", None))
            say("chain", name, method, seed, "task", t, {k: (v["class_il"], v["task_il"]) for k, v in stages.items()}, {k: round(v, 1) for k, v in learner.clock.seconds.items()})
            if time.time() - T0 > args.until:
                return

    def safe(*job):
        try:
            one(*job)
        except Exception as error:
            say("FAILED", job, repr(error)[:300])

    jobs = [partial(safe, n, *w.split(":")[:1], int(w.split(":")[1])) for n in args.names.split(",") for w in args.which.split(",")]
    side_by_side(jobs, args.concurrent, torch.device(DEVICE))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("phase")
    p.add_argument("--data", default="data")
    p.add_argument("--out", default=".")
    p.add_argument("--runs", default="runs")
    p.add_argument("--stream", default="seq-cifar10")
    p.add_argument("--buffer", type=int, default=200)
    p.add_argument("--base", default="{}")
    p.add_argument("--which", default="")
    p.add_argument("--names", default="")
    p.add_argument("--settings", default="")
    p.add_argument("--tangent", default="{}", help="settings that entries marked T have, too")
    p.add_argument("--tag", default="0")
    p.add_argument("--concurrent", type=int, default=4)
    p.add_argument("--views", type=int, default=8)
    p.add_argument("--iterations", type=int, default=200)
    p.add_argument("--variants", default="drawn,drawn-plain,own,linear")
    p.add_argument("--until", type=float, default=1e9)
    p.add_argument("--compare", action="store_true")
    args = p.parse_args()
    global OUT
    OUT = Path(args.out)
    {"train": train, "kernel": kernel_study, "refine": refine_study, "chains": chains}[args.phase](args)
    say("done", args.phase)


if __name__ == "__main__":
    main()
