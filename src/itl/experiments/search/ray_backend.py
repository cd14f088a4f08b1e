"""The backend `ray`: whole runs as Ray tasks. Placement, queues, fractions of GPUs and retries are Ray's.

A task works in a scratch folder of its node's and sends what it saves to an actor on the driver's node, which writes it
into the driver's folder. So no disk is shared; when a worker or a node dies, Ray begins the task again somewhere else,
and it goes on from what was sent last. Streams are loaded by the driver and travel through Ray's object store.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from itl import __version__
from itl.errors import UserError
from itl.experiments.search.file_sync import Parcel, pack, unpack
from itl.experiments.search.jobs import Event, JobSource, Streams, Work, in_one_line, stream_key
from itl.experiments.search.optional_imports import need
from itl.experiments.search.progress import Board
from itl.experiments.search.ray_task import carry_out
from itl.experiments.search.resources import ROOM, cores, processes
from itl.experiments.search.worker import source_of

RETRIES = 5  # of a task whose worker or node died
PATIENCE = 5.0  # seconds for a cluster to answer
EVERY = 0.2  # seconds between two looks


@dataclass(frozen=True)
class Cluster:
    """A running cluster's address, or None for one on this machine, which ends with the command."""

    address: str | None = None
    workers: int | None = None
    threads: int | None = None
    lanes: int = 4
    device: str = "auto"

    def drain(self, spec: dict[str, Any], board: Board, amount: int, data: str) -> None:
        """Do all work of the source that `spec` describes; tell the board."""
        ray = need("ray")
        if self.device not in ("auto", "cpu") and not self.device.startswith("cuda"):
            raise UserError(f"unknown device '{self.device}'; use auto, cpu or cuda")
        connect(ray, self.address, self._cores() if self.address is None else 0)
        try:
            _Driver(ray, self, source_of(spec), Path(spec["out"]), Streams(data), board).work()
        finally:
            ray.shutdown()

    def _cores(self) -> int:
        """Of a cluster made here: no more than there are."""
        count, threads = processes(self.workers, self.threads or 1, cores())
        return count * threads


def connect(ray: Any, address: str | None, here: int) -> None:
    """Join a cluster, or begin one here."""
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        ray.init(num_cpus=here, include_dashboard=False, **quiet)
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto":
        if not colon or not port.isdigit():
            raise UserError(f"--address takes auto or host:port, such as 10.0.0.1:6379, not '{address}'")
        try:
            socket.create_connection((host, int(port)), PATIENCE).close()
        except OSError as error:
            raise UserError(f"no Ray cluster answers at {address}: {error.strerror or error}; is it up?") from None
    if address.startswith("ray://"):
        raise UserError("give --address host:port of the cluster's head, on a machine that has joined it (ray start)")
    try:
        ray.init(address=address, **quiet)
    except Exception as error:  # Ray has many words for it
        raise UserError(f"cannot join the Ray cluster at {address}: {in_one_line(error)}") from None


class Mailbox:
    """Lives on the driver's node: files arrive here, and what is there already is sent out. An actor of Ray's."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)
        self.told: list[Event] = []

    def fetch(self, folder: str) -> Parcel:
        """What is there of a piece of work (or of a folder anywhere, by its full path)."""
        return pack(self.root / folder)

    def put(self, folder: str, parcel: Parcel) -> str:
        """Write what a task sent; what went wrong, or nothing."""
        try:
            unpack(self.root / folder, parcel)
        except OSError as error:
            return f"cannot write to {self.root / folder}: {error.strerror or error}"
        return ""

    def tell(self, event: Event) -> None:
        """Something happened."""
        self.told.append(event)

    def events(self) -> list[Event]:
        """What happened since the last time."""
        told, self.told = self.told, []
        return told


class Reports:
    """Answers, beside the mailbox, whether a trial is hopeless. An actor of Ray's, for it has the study open."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.source = source_of(spec)

    def report(self, work: Work, step: int, value: float) -> bool:
        """Whether to give up."""
        return self.source.report(work)(step, value)


class _Driver:
    """Claims work, hands it to Ray, and takes what comes back."""

    def __init__(self, ray: Any, how: Cluster, source: JobSource, out: Path, streams: Streams, board: Board) -> None:
        self.ray, self.how, self.source, self.streams, self.board = ray, how, source, streams, board
        here = need("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        stay = {"num_cpus": 0, "scheduling_strategy": here}
        self.mailbox = ray.remote(Mailbox).options(**stay).remote(str(out.resolve()))
        spec = {**source.spec, "out": str(out.resolve())}  # type: ignore[attr-defined]
        self.reports = ray.remote(Reports).options(**stay).remote(spec)
        self.cuda = how.device != "cpu" and ray.cluster_resources().get("GPU", 0) > 0
        if how.device.startswith("cuda") and not self.cuda:
            raise UserError("the cluster has no GPU; use --device cpu")
        # A process on a GPU ends with its run, so that the GPU's memory is given back.
        self.task = ray.remote(max_calls=1)(carry_out) if self.cuda else ray.remote(carry_out)
        self.threads = how.threads or 1
        most = self._most("CPU")
        if not self.cuda and 0 < most < self.threads:  # Ray would wait for such a node for ever
            raise UserError(f"no node of the cluster has {self.threads} cores, the largest {most:.0f}; fewer --threads")
        self.memory, self.share = 0, 1 / how.lanes  # what a piece was seen to take: bytes, and part of a GPU
        self.sent: dict[str, Any] = {}
        self.flying: dict[Any, tuple[Work, Any]] = {}

    def work(self) -> None:
        """Until nothing is left."""
        over = False
        while True:
            while not over and len(self.flying) < self._room():
                taken = self.source.claim()
                over = taken is None
                if taken is not None:
                    self._submit(*taken)
            if not self.flying:
                return
            landed, _ = self.ray.wait(list(self.flying), num_returns=1, timeout=EVERY)
            self._listen()
            for ref in landed:
                self._land(ref)
                over = False

    def _most(self, resource: str) -> float:
        """What the node that has most of it has."""
        return float(max(node["Resources"].get(resource, 0.0) for node in self.ray.nodes() if node["Alive"]))

    def _room(self) -> int:
        """How many may be with Ray: one until it is known what it takes, then as many as the cluster has places.

        A sweep's are handed over ahead, so that a cluster that grows by itself sees what is wanted.
        """
        if not self.memory:
            return 1
        has = self.ray.cluster_resources()
        if self.cuda:  # of each GPU as many as fit, on as many GPUs as asked for
            gpus = has.get("GPU", 0)
            places = int(min(gpus, self.how.workers or gpus)) * int(1 / self.share + 1e-9)
        else:
            places = int(has.get("CPU", 0) // self.threads)
            places = min(places, self.how.workers or places)
        places = max(1, places)
        self.board.take({"kind": "workers", "count": places})
        return places if self.how.workers or not self.source.ahead else 2 * places

    def _submit(self, work: Work, mine: Any) -> None:
        keys = list(dict.fromkeys(stream_key(config) for config in work.configs))
        for config in work.configs:
            if stream_key(config) not in self.sent:
                self.sent[stream_key(config)] = self.ray.put(self.streams.of(config))
        options: dict[str, Any] = {"num_cpus": self.threads, "max_retries": RETRIES, "name": work.name}
        if self.cuda:
            options |= {"num_gpus": self.share, "num_cpus": 0.01}
        if self.memory:
            options["memory"] = int(min(self.memory / ROOM, self._most("memory") or self.memory))
        task = self.task.options(**options)
        args = (keys, self.mailbox, self.reports, "cuda" if self.cuda else "cpu", self.threads, __version__)
        self.flying[task.remote(work, *args, *(self.sent[key] for key in keys))] = (work, mine)

    def _listen(self) -> None:
        for event in self.ray.get(self.mailbox.events.remote()):
            if event["kind"] == "measured":
                self.memory = max(self.memory, event["bytes"], 1)
                self.share = min(1.0, max(self.share, event["gpu"] / ROOM))
            self.board.take(event)

    def _land(self, ref: Any) -> None:
        work, mine = self.flying.pop(ref)
        with mine:
            try:
                details = self.ray.get(ref)
            except self.ray.exceptions.RayError as error:  # its worker or node died too often
                details = {"kind": "failed", "error": f"Ray gave it up after {RETRIES} retries: {in_one_line(error)}"}
            self._listen()
            self.memory = self.memory or 1
            kind = details.pop("kind")
            if kind == "full":
                raise UserError(
                    f"{details['error']}; what is finished is kept, make room and give the same command again"
                )
            if kind == "done":
                self.source.finish(work, details)
            else:
                self.source.fail(work.name, details["error"])
            self.board.take({"kind": kind, "work": work.name, **details})
