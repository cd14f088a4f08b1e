"""Minimise L(f0 + J w) + λ‖w‖² over w to convergence, on a fixed set of augmented views (prototype).

Copy to src/itl/generalists/solve.py after applying library.patch.

L is convex and the model is linear in w, so the logits on the views are tracked by addition. One iteration costs one
product with J (a forward-mode derivative), one with its transpose (a backward pass), and an exact line search on the
logits alone. The backward graph is built once: it does not depend on w.

The solvers work on any problem with `zero`, `jvp`, `vjp` and `dot`: `Primal` (the tangent model), `Linear` (the
classifier alone) and `Kernel` (the tangent model in the span of its gradients, for which the kernel was computed).
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from itl.engine.random import generator
from itl.generalists.rounds import in_parts
from itl.augment import Draws
from itl.nets import dual

CHUNK = 2048
KEEP = False  # whether solutions are cached
SOLVED: dict = {}  # solutions by specialist and settings: the projection study reuses them


class Objective:
    """β CE(f, y) + α ‖f − b‖² of logits f `[n, k]`: means over the views, and over the stored columns."""

    def __init__(self, y, f0, stored=None, widths=None, alpha=0.0, beta=1.0):
        self.y, self.f0, self.beta, self.alpha = y, f0, beta, alpha
        self.n = len(y)
        self.hot = torch.zeros_like(f0).scatter_(1, y[:, None], 1.0)
        self.stored = stored if alpha else None
        if self.stored is not None:
            self.mask = (torch.arange(f0.shape[1], device=f0.device) < widths[:, None]).float()
            self.total = self.mask.sum()

    def value(self, f: Tensor) -> Tensor:
        """Objective without λ‖w‖², of logits `[..., n, k]`."""
        out = self.beta * (f.logsumexp(-1) - (f * self.hot).sum(-1)).mean(-1)
        if self.stored is not None:
            out = out + self.alpha * ((f - self.stored).square() * self.mask).sum((-1, -2)) / self.total
        return out

    def grad(self, f: Tensor) -> Tensor:
        """Gradient with respect to the logits, `[n, k]`."""
        out = self.beta * (f.softmax(-1) - self.hot) / self.n
        if self.stored is not None:
            out = out + 2 * self.alpha * (f - self.stored) * self.mask / self.total
        return out

    def curve(self, f: Tensor, d: Tensor) -> Tensor:
        """Hessian at logits `f` times `d`."""
        p = f.softmax(-1)
        out = self.beta * p * (d - (p * d).sum(-1, keepdim=True)) / self.n
        if self.stored is not None:
            out = out + 2 * self.alpha * d * self.mask / self.total
        return out


class Primal:
    """The tangent model on given features; vectors are flat tensors of the head's parameters, channels last."""

    def __init__(self, model, h: Tensor):
        self.model, self.head = model, model.head
        self.shapes = {n: p.shape for n, p in model.params.items()}
        self.size = sum(p.numel() for p in model.params.values())
        self.w0 = torch.zeros(self.size, device=h.device, requires_grad=True)
        self.parts = []
        for x in h.split(CHUNK):
            known = model.values(x)
            value, along = dual.along(self.head, x, self.split(self.w0), known)
            self.parts.append((x, known, value, along))
        self.f0 = torch.cat([v for _, _, v, _ in self.parts]).detach()

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        out, at = {}, 0
        for name, shape in self.shapes.items():
            n = math.prod(shape)
            part = flat[at : at + n]
            if len(shape) == 4:
                o, i, a, b = shape
                out[name] = part.view(o, a, b, i).permute(0, 3, 1, 2)
            else:
                out[name] = part.view(shape)
            at += n
        return out

    def flat(self, w: dict[str, Tensor]) -> Tensor:
        return torch.cat([(w[n].permute(0, 2, 3, 1) if len(s) == 4 else w[n]).reshape(-1) for n, s in self.shapes.items()])

    def zero(self) -> Tensor:
        return torch.zeros(self.size, device=self.w0.device)

    @torch.no_grad()
    def jvp(self, d: Tensor) -> Tensor:
        w = self.split(d)
        return torch.cat([dual.along(self.head, x, w, known)[1] for x, known, _, _ in self.parts])

    def vjp(self, c: Tensor) -> Tensor:
        total = None
        for (_, _, _, along), part in zip(self.parts, c.split(CHUNK), strict=True):
            (g,) = torch.autograd.grad(along, self.w0, part, retain_graph=True)
            total = g if total is None else total.add_(g)
        return total

    @staticmethod
    def dot(u: Tensor, v: Tensor) -> Tensor:
        return (u * v).sum()


class Linear:
    """The linear model: only the classifier moves; vectors are `[k (features + 1)]`."""

    def __init__(self, h: Tensor, weight: Tensor, bias: Tensor):
        self.h = torch.cat([h, torch.ones_like(h[:, :1])], 1)
        self.k = len(weight)
        self.f0 = h @ weight.T + bias

    def zero(self):
        return torch.zeros(self.k * self.h.shape[1], device=self.h.device)

    def jvp(self, d):
        return self.h @ d.view(self.k, -1).T

    def vjp(self, c):
        return (c.T @ self.h).reshape(-1)

    dot = staticmethod(Primal.dot)


class Kernel:
    """The tangent model in the span of its gradients: a vector is (a, K a), K being the kernel `[n k, n k]`.

    Inner products are those of the parameter space, so the iterates equal those of `Primal`.
    """

    def __init__(self, gram: Tensor, n: int, k: int):
        self.gram, self.n, self.k = gram, n, k

    def zero(self):
        return torch.zeros(2, self.n * self.k, device=self.gram.device)

    def jvp(self, d):
        return d[1].view(self.n, self.k)

    def vjp(self, c):
        c = c.reshape(-1)
        return torch.stack([c, self.gram @ c])

    @staticmethod
    def dot(u, v):
        return (u[0] * v[1]).sum()


def line_search(obj, f, jd, lam, ww, wd, dd, guess):
    """Minimise L(f + t jd) + λ‖w + t d‖² over t ≥ 0 by two grids around `guess`, without synchronising."""
    def best(ts):
        values = obj.value(f + ts[:, None, None] * jd) + lam * (ww + 2 * ts * wd + ts * ts * dd)
        return ts[values.nan_to_num(nan=float("inf")).argmin()]

    wide = torch.exp2(torch.linspace(-9, 5, 29, device=f.device)) * guess
    near = torch.linspace(0.75, 1.4, 27, device=f.device)
    return best(best(wide) * torch.cat([torch.zeros_like(near[:1]), near]))


def lbfgs(p, obj, lam, iterations, *, memory=10, tol=0.0, w=None, marks=(), mark=None, every=10):
    """Limited-memory BFGS with an exact line search.

    Args:
        p: The problem.
        obj: The objective.
        lam: λ.
        iterations: At most so many; each is one product with J and one with its transpose.
        memory: Pairs of differences kept.
        tol: Stop when the gradient norm is below `tol` times its initial value (checked every `every` iterations).
        w: Starting point; zero by default.
        marks: Iterations after which `mark(iteration, w, logits, gradient)` is called.

    Returns:
        w, the logits on the views, and a dict with objective, gradient norm and other figures.
    """
    w = p.zero() if w is None else w
    f = obj.f0 + p.jvp(w)
    g = p.vjp(obj.grad(f)) + 2 * lam * w
    g0 = first = p.dot(g, g)
    S, Y, R = [], [], []
    guess, done = torch.ones((), device=f.device), 0
    gamma = torch.ones((), device=f.device)
    for k in range(iterations):
        q, alphas = -g, []
        for s, y, r in zip(reversed(S), reversed(Y), reversed(R)):
            a = r * p.dot(s, q)
            alphas.append(a)
            q = q - a * y
        if S:
            q = q * gamma
        for s, y, r, a in zip(S, Y, R, reversed(alphas)):
            q = q + (a - r * p.dot(y, q)) * s
        jd = p.jvp(q)
        if not S:  # first step: start the search where the largest logit changes by one
            guess = 1 / jd.abs().max().clamp(min=1e-12)
        t = line_search(obj, f, jd, lam, p.dot(w, w), p.dot(w, q), p.dot(q, q), guess)
        guess = torch.ones_like(t)
        w, f = w + t * q, f + t * jd
        new = p.vjp(obj.grad(f)) + 2 * lam * w
        s, y = t * q, new - g
        # Near the minimum, differences of gradients are rounding errors: leave such pairs out, or the method diverges.
        sy, ss, yy = p.dot(s, y), p.dot(s, s), p.dot(y, y)
        good = sy > 1e-5 * (ss.clamp(min=0) * yy.clamp(min=0)).sqrt()
        gamma = torch.where(good, sy / yy.clamp(min=1e-30), gamma)
        S.append(s), Y.append(y), R.append(torch.where(good, 1 / sy.clamp(min=1e-30), torch.zeros_like(sy)))
        if len(S) > memory:
            S.pop(0), Y.pop(0), R.pop(0)
        g, done = new, k + 1
        if done in marks:
            mark(done, w, f, g)
        if tol and done % every == 0 and bool(p.dot(g, g) <= tol**2 * first):
            break
    return w, f, _reached(p, obj, lam, w, f, g, g0, done)


def fista(p, obj, lam, iterations, *, tol=0.0, w=None, marks=(), mark=None, every=10, powers=12):
    """Nesterov's method: step size from the largest eigenvalue (power iteration), gradient-based restarts."""
    v = p.vjp(torch.randn(obj.f0.shape, device=obj.f0.device, generator=None))
    for _ in range(powers):
        v = v / p.dot(v, v).sqrt()
        jv = p.jvp(v)
        top = (jv * jv).sum()
        v = p.vjp(jv)
    bend = 0.5 * obj.beta / obj.n + (2 * obj.alpha / obj.total if obj.stored is not None else 0.0)
    step = 1 / (1.1 * top * bend + 2 * lam)
    w = p.zero() if w is None else w
    f = obj.f0 + p.jvp(w)
    first = None
    wy, fy, theta = w, f, torch.ones((), device=f.device)
    for k in range(iterations):
        g = p.vjp(obj.grad(fy)) + 2 * lam * wy
        first = p.dot(g, g) if first is None else first
        nw = wy - step * g
        nf = fy - step * p.jvp(g)
        move, fmove = nw - w, nf - f
        uphill = p.dot(g, move) > 0
        theta = torch.where(uphill, torch.ones_like(theta), theta)
        after = (1 + (1 + 4 * theta * theta).sqrt()) / 2
        m = torch.where(uphill, torch.zeros_like(theta), (theta - 1) / after)
        w, f, theta = nw, nf, after
        wy, fy = w + m * move, f + m * fmove
        if k + 1 in marks:
            mark(k + 1, w, f, p.vjp(obj.grad(f)) + 2 * lam * w)
        if tol and (k + 1) % every == 0 and bool(p.dot(g, g) <= tol**2 * first):
            break
    g = p.vjp(obj.grad(f)) + 2 * lam * w
    return w, f, _reached(p, obj, lam, w, f, g, first, k + 1 + powers)


def newton(p, obj, lam, iterations, *, tol=0.0, w=None, marks=(), mark=None, inner=20):
    """Truncated Newton: conjugate gradients on the Hessian, exact line search. `iterations` counts products with J."""
    w = p.zero() if w is None else w
    f = obj.f0 + p.jvp(w)
    g = p.vjp(obj.grad(f)) + 2 * lam * w
    first, used = p.dot(g, g), 1
    while used < iterations:
        x, r = torch.zeros_like(g), -g
        d, rr = r, p.dot(g, g)
        jx = torch.zeros_like(f)
        start = rr
        for _ in range(inner):
            jd = p.jvp(d)
            hd = p.vjp(obj.curve(f, jd)) + 2 * lam * d
            a = rr / p.dot(d, hd).clamp(min=1e-30)
            x, jx, r = x + a * d, jx + a * jd, r - a * hd
            new = p.dot(r, r)
            d, rr = r + (new / rr) * d, new
            used += 1
            if used >= iterations or bool(rr <= 0.01 * start):
                break
        t = line_search(obj, f, jx, lam, p.dot(w, w), p.dot(w, x), p.dot(x, x), torch.ones((), device=f.device))
        before = used
        w, f = w + t * x, f + t * jx
        g = p.vjp(obj.grad(f)) + 2 * lam * w
        used += 1
        for m in marks:
            if before - inner <= m <= used and mark is not None:
                mark(used, w, f, g)
                break
        if tol and bool(p.dot(g, g) <= tol**2 * first):
            break
    return w, f, _reached(p, obj, lam, w, f, g, first, used)


def _reached(p, obj, lam, w, f, g, first, done):
    ce = (f.logsumexp(-1) - (f * obj.hot).sum(-1)).mean()
    right = (f.argmax(1) == obj.y).float().mean()
    values = torch.stack([obj.value(f) + lam * p.dot(w, w), p.dot(g, g).clamp(min=0).sqrt(), first.clamp(min=0).sqrt(), p.dot(w, w).clamp(min=0).sqrt(), ce, right, f.square().mean().sqrt()])
    names = ("objective", "gradient", "gradient_0", "norm_w", "ce", "train_accuracy", "logit_rms")
    return {**{n: float(v) for n, v in zip(names, values.tolist())}, "products": done}


METHODS = {"lbfgs": lbfgs, "fista": fista, "newton": newton}


def views_of(ground, count: int, first: int = 0, augment=None) -> Tensor:
    """Return `count` augmented views of every memory image, uint8 `[count n, c, h, w]`, view by view."""
    memory, augment = ground.memory, augment or ground.augment
    size = len(memory)
    draws = [augment.draw(generator(*ground.key, "fixed views", first + v), size) for v in range(count)]
    return augment(memory.gather(torch.arange(size).repeat(count)), Draws.cat(draws))


def objective_of(ground, count: int, f0: Tensor, s) -> Objective:
    memory, engine = ground.memory, ground.engine
    size = len(memory)
    y = engine.send(torch.from_numpy(memory.slots.label[:size].copy())).repeat(count)
    if memory.logits is None or not s.alpha:
        return Objective(y, f0, beta=s.beta)
    widths = engine.send(torch.from_numpy(memory.slots.width[:size].copy())).repeat(count)
    return Objective(y, f0, memory.logits[:size].repeat(count, 1), widths, s.alpha, s.beta)


@torch.no_grad()
def features_of(model_features, ground, pixels: Tensor) -> Tensor:
    with ground.engine.autocast():
        return in_parts(lambda part: model_features(ground.normalise(part)), pixels)


def fit(generalist, ground, key=None) -> dict:
    """Solve for the generalist's w (or the linear generalist's classifier), in place. Returns the solver's figures."""
    s = ground.settings.tangent
    begun = time.perf_counter()
    if key is not None and key in SOLVED:
        flat, info = SOLVED[key]
        with torch.no_grad():
            for name, t in generalist.w.items():
                t.copy_(flat[name])
        return info
    views = views_of(ground, s.views)
    if hasattr(generalist, "w"):
        h = features_of(generalist.model.features, ground, views)
        p = Primal(generalist.model, h)
    else:
        h = features_of(generalist.net.features, ground, views)
        c = generalist.net.classifier
        p = Linear(h, c.weight.detach(), c.bias.detach())
    obj = objective_of(ground, s.views, p.f0, s)
    w, f, info = METHODS[s.solver](p, obj, s.l2, s.iterations, tol=s.tol)
    with torch.no_grad():
        if hasattr(generalist, "w"):
            solved = p.split(w)
            for name, t in generalist.w.items():
                t.copy_(solved[name])
            if key is not None:
                SOLVED[key] = ({n: t.detach().clone() for n, t in generalist.w.items()}, info)
        else:
            moved = w.view(p.k, -1)
            c.weight.add_(moved[:, :-1])
            c.bias.add_(moved[:, -1])
    info["seconds"] = time.perf_counter() - begun
    return info


def fit_classifier(net, ground) -> None:
    """Fit the classifier linearly on the views, in place, before linearising there."""
    s = ground.settings.tangent
    net.eval()
    h = features_of(net.features, ground, views_of(ground, s.views))
    p = Linear(h, net.classifier.weight.detach(), net.classifier.bias.detach())
    w, _, _ = lbfgs(p, objective_of(ground, s.views, p.f0, s), s.linear_l2, 200)
    with torch.no_grad():
        moved = w.view(p.k, -1)
        net.classifier.weight.add_(moved[:, :-1])
        net.classifier.bias.add_(moved[:, -1])
