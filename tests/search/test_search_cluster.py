"""A sweep on a real Ray cluster of several nodes ends as on this machine, also when a node is killed in the middle."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from search_world import Here, fingerprint, grid

from itl.config import Config
from itl.errors import UserError
from itl.search.board import Board
from itl.search.cells import Cells
from itl.search.parcels import pack, unpack

pytest.importorskip("ray")
pytest.importorskip("psutil")
from itl.search.cluster import Cluster
from itl.search.sweep import sweep

LONGER = {"specialist.steps": 20, "tangent.steps": 10, "projection.steps": 10}
CONFIGS = [config for method in ("er", "itl", "derpp") for config in grid(0, 1, 2, 3, method=method, settings=LONGER)]


def test_a_parcel_is_the_folder_without_what_was_sent_and_without_drafts(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "model/generation-000001").mkdir(parents=True)
    (here / "model/generation-000001/tensors").write_bytes(b"one")
    (here / "model/CURRENT").write_text("generation-000001")
    (here / "model/.draft-000002").mkdir()
    (here / "model/.draft-000002/tensors").write_bytes(b"half")
    sent: dict[str, tuple[int, int]] = {}
    first = pack(here, sent)
    assert list(first["files"]) == ["model/generation-000001/tensors", "model/CURRENT"]  # what makes it valid is last
    unpack(there, first)
    assert pack(here, sent)["files"] == {}
    (here / "model/generation-000001").rename(here / "model/generation-000002")
    (here / "model/CURRENT").write_text("generation-000002!")
    unpack(there, pack(here, sent))
    assert pack(there)["files"] == pack(here)["files"]
    assert [path.name for path in (there / "model").glob("gen*")] == ["generation-000002"]


def test_a_parcel_stays_within_its_folder(tmp_path):
    for name in ("../x", "/x", "a/../../x"):
        with pytest.raises(ValueError, match="outside"):
            unpack(tmp_path / "in", {"files": {name: b""}, "all": []})
    assert not (tmp_path / "x").exists()


class Watching(Board):
    """Counts how often each run was begun."""

    def __init__(self, configs: list[Config]) -> None:
        super().__init__(config.name for config in configs)
        self.begun_times: Counter[str] = Counter()

    def take(self, event):
        super().take(event)
        if event["kind"] == "begins":
            self.begun_times[event["work"]] += 1


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The runs on this machine, one after another, with one thread."""
    out = tmp_path_factory.mktemp("alone")
    Here(Cells(out, CONFIGS), out).run()
    return out


@pytest.fixture
def cluster(monkeypatch):
    """A head without cores and two nodes with one each: raylets of their own, on loopback."""
    monkeypatch.setenv("ITL_SAVE_EVERY", "1")
    from ray.cluster_utils import Cluster as Raylets

    raylets = Raylets(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [raylets.add_node(num_cpus=1) for _ in range(2)]
    yield raylets, nodes
    raylets.shutdown()


def same(out: Path, alone: Path) -> None:
    for config in CONFIGS:
        assert fingerprint(out / config.name) == fingerprint(alone / config.name), config.name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_of_several_nodes_ends_with_what_this_machine_has(cluster, alone, tmp_path):
    raylets, _ = cluster
    board, cells = Watching(CONFIGS), Cells(tmp_path / "out", CONFIGS)
    sweep(cells, Cluster(address=raylets.address, threads=1, device="cpu"), board)
    assert len(board.of("done")) == len(CONFIGS) == 12
    assert set(board.begun_times.values()) == {1}
    same(cells.out, alone)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_node_killed_in_the_middle_loses_nothing(cluster, alone, tmp_path):
    raylets, nodes = cluster
    board, cells = Watching(CONFIGS), Cells(tmp_path / "out", CONFIGS)

    def kill() -> None:
        while len(board.of("done")) < 3 or len(board.of("runs")) < 2:
            time.sleep(0.05)
        raylets.remove_node(nodes[1], allow_graceful=False)

    killer = Thread(target=kill, daemon=True)
    killer.start()
    sweep(cells, Cluster(address=raylets.address, threads=1, device="cpu"), board)
    killer.join(timeout=60)
    assert not killer.is_alive()
    assert len(board.of("done")) == len(CONFIGS)
    assert 2 in board.begun_times.values()  # a run was in flight on that node, and was begun again elsewhere
    same(cells.out, alone)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_search_on_a_cluster_has_the_trials_and_values_of_one_here(cluster, tmp_path):
    pytest.importorskip("optuna")
    from itl.search import find
    from itl.search.space import Choice, Space

    space = Space([Choice("specialist.lr", [0.1, 0.03, 0.01]), Choice("specialist.momentum", [0.0, 0.9])])
    config = replace(CONFIGS[0], method="b", split="validation")
    plan = find.Plan(config, space, trials=6, seeds=(0, 1), sampler="grid", prune=False)
    raylets, _ = cluster
    here, there = find.begin(plan, tmp_path / "here"), find.begin(plan, tmp_path / "there")
    Here(here, here.out).run()
    Cluster(address=raylets.address, threads=1, device="cpu").drain(there.spec, Board(), plan.trials, "data")
    drawn = [sorted((str(t.params), t.value) for t in trials.study.get_trials()) for trials in (here, there)]
    assert len(drawn[0]) == 6
    assert drawn[0] == drawn[1]
    assert find.best(here)["settings"] == find.best(there)["settings"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cell_that_fails_on_a_node_and_a_full_disk_are_said(cluster, tmp_path):
    raylets, _ = cluster
    ray = Cluster(address=raylets.address, threads=1, device="cpu")
    configs = [*grid(0, buffer=1), *grid(0, 1, method="er")]
    cells, board = Cells(tmp_path, configs), Board(config.name for config in configs)
    sweep(cells, ray, board)
    assert [entry.name for entry in board.of("failed")] == [configs[0].name]
    assert "buffer of 1" in board.of("failed")[0].error
    assert len(board.of("done")) == 2
    last = grid(2, method="er")
    (tmp_path / last[0].name).mkdir()
    (tmp_path / last[0].name / ".config.json.arriving").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"No space left on device.*kept"):
        sweep(Cells(tmp_path, last), ray, Board())
