"""Runs record everything that figures need, are reproducible by seed, and can be resumed."""

from __future__ import annotations

import json
import multiprocessing
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import itl
from itl import Learner, UserError
from itl.experiments.run import Config, fresh_folder, run
from itl.results.record import LOCK_FILE, release_reserved_folders
from itl.settings import parse
from support.records import lines_of, without_keys
from support.tiny import TINY, Interrupted, LambdaCallback, tiny_stream

METHODS = ["itl", "itl-l", "er", "sgd", "b+hp+ff+pd"]
STREAM = {"classes": 6, "tasks": 3}


def config(method: str = "itl", **options: Any) -> Config:
    return Config(stream="arrays", method=method, buffer=8, settings=dict(TINY), **{"curves": 16, **options})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished run of each method on three tasks."""
    root = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        run(config(method), tiny_stream(**STREAM), root / method, device="cpu")
    return {method: root / method for method in METHODS}


def result_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "result.json").read_text()))


FIELDS = [
    "format",
    "method",
    "variant",
    "stream",
    "split",
    "buffer",
    "seed",
    "class_il",
    "task_il",
    "class_il_matrix",
    "task_il_matrix",
    "forgetting",
    "average_incremental",
    "stages",
    "memory",
    "seconds",
    "hardware",
    "command",
    "versions",
]
SECONDS = {"specialist", "memory", "tangent", "projection", "evaluation", "total"}


@pytest.mark.parametrize("method", METHODS)
def test_result_has_every_documented_field(method: str, folders: dict[str, Path]) -> None:
    result = result_of(folders[method])
    assert [name for name in FIELDS if name not in result] == []
    assert result["method"] == method
    assert result["variant"] is None
    assert (result["stream"], result["split"], result["buffer"], result["seed"]) == ("arrays", "test", 8, 0)
    assert set(result["seconds"]) >= SECONDS
    parts = sum(value for name, value in result["seconds"].items() if name != "total")
    assert result["seconds"]["total"] == pytest.approx(parts, abs=0.01)
    assert sorted(p.name for p in folders[method].iterdir() if p.name != LOCK_FILE) == [
        "config.json",
        "metrics.jsonl",
        "model",
        "pictures.npz",
        "predictions.npz",
        "result.json",
    ]


@pytest.mark.parametrize("method", METHODS)
def test_accuracy_matrices_have_a_row_per_learned_task_and_a_column_per_task(
    method: str, folders: dict[str, Path]
) -> None:
    result = result_of(folders[method])
    for name in ("class_il", "task_il"):
        matrix = np.array(result[f"{name}_matrix"])
        assert matrix.shape == (3, 3)
        assert ((matrix >= 0) & (matrix <= 100)).all()
        assert result[name] == pytest.approx(matrix[-1].mean())
        seen = [matrix[t, : t + 1].mean() for t in range(3)]
        suffix = "" if name == "class_il" else "_task_il"
        assert result[f"average_incremental{suffix}"] == pytest.approx(np.mean(seen))
        lost = [max(matrix[0, 0], matrix[1, 0]) - matrix[2, 0], matrix[1, 1] - matrix[2, 1]]
        assert result[f"signed_forgetting{suffix}"] == pytest.approx(np.mean(lost))
        assert result[f"forgetting{suffix}"] == pytest.approx(np.mean(np.maximum(lost, 0)))
    assert (np.array(result["task_il_matrix"]) >= np.array(result["class_il_matrix"])).all()


def test_class_il_over_the_classes_seen_ignores_untrained_outputs(tmp_path: Path) -> None:
    stream, expected = tiny_stream(**STREAM), []

    def evaluate(event: str, learner: Learner, stage: Any, epoch: int) -> None:
        if event != "on_task_end":
            return
        seen = [label for classes in learner.tasks for label in classes]
        predicted = [learner.logits(task.test)[:, seen].argmax(1).numpy() for task in stream]
        accuracies = [
            (np.take(seen, p) == t.test.labels.numpy()).mean() for p, t in zip(predicted, stream, strict=True)
        ]
        expected.append([100 * accuracy for accuracy in accuracies])

    results = {}
    for rule in ("all", "seen"):
        settings = {**TINY, "class_il_over": rule}
        config = Config(stream="arrays", method="lwf", buffer=8, settings=settings, curves=0)
        callbacks = [LambdaCallback(evaluate)] if rule == "seen" else []
        results[rule] = run(config, stream, tmp_path / rule, device="cpu", callbacks=callbacks)
        assert result_of(tmp_path / rule)["class_il_over"] == rule
    np.testing.assert_allclose(results["seen"]["class_il_matrix"], expected)
    assert results["all"]["class_il_matrix"][:-1] != results["seen"]["class_il_matrix"][:-1]
    assert results["all"]["class_il"] == results["seen"]["class_il"]  # every class is seen in the end
    assert results["all"]["task_il_matrix"] == results["seen"]["task_il_matrix"]
    assert results["seen"]["class_il_matrix"][0][1:] == [0, 0]


@pytest.mark.parametrize("method", METHODS)
def test_final_predictions_give_the_recorded_scores(method: str, folders: dict[str, Path]) -> None:
    result, stream = result_of(folders[method]), tiny_stream(**STREAM)
    with np.load(folders[method] / "predictions.npz") as file:
        predictions = {name: file[name] for name in file.files}
    assert predictions["label"].tolist() == [int(y) for task in stream for y in task.test.labels]
    assert predictions["task"].tolist() == [task.index for task in stream for _ in range(len(task.test))]
    for name in ("class_il", "task_il"):
        per_task = [
            100 * (predictions[name] == predictions["label"])[predictions["task"] == t].mean() for t in range(3)
        ]
        assert per_task == pytest.approx(result[f"{name}_matrix"][-1])
    assert all(label // 2 == task for label, task in zip(predictions["task_il"], predictions["task"], strict=True))
    assert ((predictions["confidence"] > 0) & (predictions["confidence"] <= 1)).all()


@pytest.mark.parametrize("method", METHODS)
def test_saved_model_gives_the_recorded_scores(method: str, folders: dict[str, Path]) -> None:
    learner = itl.load(folders[method] / "model", device="cpu")
    scores = learner.evaluate(tiny_stream(**STREAM))
    result = result_of(folders[method])
    assert (scores.class_il, scores.task_il) == (pytest.approx(result["class_il"]), pytest.approx(result["task_il"]))
    slots = learner.memory.slots
    for name in ("label", "task", "row", "written"):
        assert result["memory"][name] == getattr(slots, name)[: slots.count].tolist()
    history = result["memory_history"]  # how many images of each class, after each task
    assert len(history) == len(result["class_il_matrix"])
    assert history[-1] == [result["memory"]["label"].count(column) for column in range(len(result["class_names"]))]


STAGES = {
    "itl": ["specialist", "tangent", "projection"],
    "itl-l": ["specialist", "tangent", "projection"],
    "b+hp+ff+pd": ["specialist", "full", "projection"],
    "er": ["specialist"],
    "sgd": ["specialist"],
}


@pytest.mark.parametrize("method", METHODS)
def test_metrics_have_every_stage_of_every_task_in_order(method: str, folders: dict[str, Path]) -> None:
    lines = lines_of(folders[method])
    assert (lines[0]["kind"], lines[0]["task"], lines[0]["stage"]) == ("untrained", 0, None)
    expected: list[tuple[Any, ...]] = []
    for task in (1, 2, 3):
        for stage in STAGES[method]:
            if stage != "specialist":
                expected.append(("start", task, stage, 0))
            expected += [("curve", task, stage, 1), ("curve", task, stage, 2), ("end", task, stage, 2)]
        expected.append(("expert", task, "expert", 0))
    assert [(line["kind"], line["task"], line["stage"], line["epoch"]) for line in lines[1:]] == expected
    for line in lines:
        # Curves cover the tasks seen so far, all other lines every task.
        num_tasks = line["task"] if line["kind"] in ("start", "curve") else 3
        assert len(line["class_il_tasks"]) == len(line["task_il_tasks"]) == num_tasks
        assert (line["loss"] is not None) == (line["kind"] == "curve")
        if line["task"]:
            assert line["class_il"] == pytest.approx(np.mean(line["class_il_tasks"][: line["task"]]))


def test_stage_scores_of_the_result_are_those_after_each_stage(folders: dict[str, Path]) -> None:
    result, lines = result_of(folders["itl"]), lines_of(folders["itl"])
    assert [set(stages) for stages in result["stages"]] == [{"specialist", "tangent", "expert"}] * 3
    for t, stages in enumerate(result["stages"], 1):
        for stage, scores in stages.items():
            kind = "expert" if stage == "expert" else "end"
            line = next(i for i in lines if (i["kind"], i["task"], i["stage"]) == (kind, t, stage))
            assert scores == {"class_il": line["class_il"], "task_il": line["task_il"]}
        assert stages["expert"]["class_il"] == pytest.approx(np.mean(result["class_il_matrix"][t - 1][:t]))
    assert set(result_of(folders["b+hp+ff+pd"])["stages"][0]) == {"specialist", "full", "expert"}
    assert set(result_of(folders["er"])["stages"][0]) == {"specialist", "expert"}


def test_same_seed_gives_the_same_result_except_for_times(folders: dict[str, Path], tmp_path: Path) -> None:
    torch.manual_seed(1234)  # whatever the process did before
    np.random.default_rng(5)
    again = run(config(), tiny_stream(**STREAM), tmp_path / "again", device="cpu")
    assert without_keys(again, "seconds") == without_keys(result_of(folders["itl"]), "seconds")
    assert lines_of(tmp_path / "again") == lines_of(folders["itl"])
    other = run(config(seed=1), tiny_stream(**STREAM), tmp_path / "other", device="cpu")
    assert other["memory"]["row"] != again["memory"]["row"]


@pytest.mark.parametrize(
    ("at", "often"),
    [((1, "specialist"), False), ((1, "specialist"), True), ((2, "tangent"), True), ((3, "projection"), False)],
)
def test_interrupted_run_resumes_to_the_same_record(
    at: tuple[int, str], often: bool, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved after every round or only at the ends of tasks, and stopped at the end of a stage."""
    if often:
        monkeypatch.setenv("ITL_SAVE_EVERY", "0")
    stopping = True

    def stop(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        # Later than the last save: the record has lines that the saved state does not include.
        if stopping and event == "on_stage_end" and (len(learner.tasks), stage) == at:
            raise Interrupted

    stream = tiny_stream(**STREAM)
    with pytest.raises(Interrupted):
        run(config(), stream, tmp_path, device="cpu", callbacks=[LambdaCallback(stop)])
    assert not (tmp_path / "result.json").exists()
    stopping = False
    result = run(config(), stream, tmp_path, device="cpu", callbacks=[LambdaCallback(stop)], resume=True)
    assert without_keys(result, "seconds") == without_keys(result_of(folders["itl"]), "seconds")
    assert lines_of(tmp_path) == lines_of(folders["itl"])
    with np.load(tmp_path / "predictions.npz") as a, np.load(folders["itl"] / "predictions.npz") as b:
        assert all(np.array_equal(a[name], b[name]) for name in b.files)


def test_line_truncated_by_a_crash_is_ignored(folders: dict[str, Path], tmp_path: Path) -> None:
    def stop(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if (event, len(learner.tasks)) == ("on_memory_update", 2):
            raise Interrupted

    with pytest.raises(Interrupted):
        run(config(), tiny_stream(**STREAM), tmp_path, device="cpu", callbacks=[LambdaCallback(stop)])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "cur')
    run(config(), tiny_stream(**STREAM), tmp_path, device="cpu", resume=True)
    assert lines_of(tmp_path) == lines_of(folders["itl"])


def test_run_that_lost_lines_is_not_resumed(tmp_path: Path) -> None:
    """The lines that a saved state includes were on disk before it; without them the result would lack a task."""

    def stop(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if (event, len(learner.tasks)) == ("on_memory_update", 3):
            raise Interrupted

    with pytest.raises(Interrupted):
        run(config(), tiny_stream(**STREAM), tmp_path, device="cpu", callbacks=[LambdaCallback(stop)])
    metrics = tmp_path / "metrics.jsonl"
    all_lines = metrics.read_text().splitlines(keepends=True)
    expert = max(i for i, line in enumerate(all_lines) if '"kind": "expert"' in line)
    metrics.write_text("".join(all_lines[:expert]))
    with pytest.raises(
        UserError, match=rf"metrics\.jsonl has {expert} lines, but the saved state includes {expert + 1}"
    ):
        run(config(), tiny_stream(**STREAM), tmp_path, device="cpu", resume=True)
    assert metrics.read_text() == "".join(all_lines[:expert])


def test_finished_run_is_returned_and_not_repeated(folders: dict[str, Path]) -> None:
    before = (folders["er"] / "result.json").stat().st_mtime_ns
    assert run(config("er"), tiny_stream(**STREAM), folders["er"], resume=True) == result_of(folders["er"])
    assert (folders["er"] / "result.json").stat().st_mtime_ns == before


def test_existing_run_is_never_overwritten(folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="already contains a run"):
        run(config("er"), tiny_stream(**STREAM), folders["er"], device="cpu")
    with pytest.raises(UserError, match="different options: method er, not sgd; seed 0, not 3"):
        run(config("sgd", seed=3), tiny_stream(**STREAM), folders["er"], device="cpu", resume=True)
    assert fresh_folder(folders["er"].parent, "er") == folders["er"].parent / "er-2"
    assert fresh_folder(folders["er"].parent, "new") == folders["er"].parent / "new"
    assert fresh_folder(folders["er"].parent, "new") == folders["er"].parent / "new-2"
    release_reserved_folders()
    assert not (folders["er"].parent / "new").exists()


def test_concurrent_processes_get_folders_of_their_own(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, found = context.Barrier(6), context.Queue()

    def reserve() -> None:
        barrier.wait(60)
        found.put(fresh_folder(tmp_path, "run").name)
        barrier.wait(60)  # a process that ends releases its folder

    processes = [context.Process(target=reserve) for _ in range(6)]
    for process in processes:
        process.start()
    names = sorted(found.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(60)
    assert names == ["run", *(f"run-{k}" for k in range(2, 7))]


def test_second_run_in_a_folder_is_refused_before_it_writes(tmp_path: Path) -> None:
    stream = tiny_stream(**STREAM)
    refused = []

    def start_another(event: str, *_: Any) -> None:
        if event == "on_stage_start" and not refused:
            for resume in (False, True):
                with pytest.raises(UserError, match=r"another process is writing|already contains a run") as error:
                    run(config("sgd"), stream, tmp_path / "run", device="cpu", resume=resume)
                refused.append(str(error.value))

    run(config("er"), stream, tmp_path / "run", device="cpu", callbacks=[LambdaCallback(start_another)])
    assert len(refused) == 2
    assert result_of(tmp_path / "run")["method"] == "er"


def test_saved_configuration_equals_that_of_the_run(folders: dict[str, Path]) -> None:
    text = (folders["itl"] / "config.json").read_text()
    assert Config.from_dict(json.loads(text)) == config()
    assert str(folders["itl"].parent) not in text
    assert str(folders["itl"].parent) not in (folders["itl"] / "result.json").read_text()


def test_command_contains_every_option() -> None:
    settings = {"augment.task": None, "half_pipe": True, "specialist.lr": 0.1, "memory.policy": "none", "net.width": 4}
    given = Config("seq-digits", "b", 20, 7, settings, tasks=2, order=(1, 0), split="validation", variant="a b")
    words = shlex.split(given.command)
    pairs = [words[k + 1] for k, word in enumerate(words) if word == "--set"]
    assert parse(pairs) == settings
    for option, value in (("--seed", "7"), ("--tasks", "2"), ("--order", "1,0"), ("--variant", "a b")):
        assert words[words.index(option) + 1] == value


def test_specialists_are_saved_with_keep_specialists(tmp_path: Path) -> None:
    run(config(keep_specialists=True), tiny_stream(**STREAM), tmp_path, device="cpu", save=False)
    lines = lines_of(tmp_path)
    assert not (tmp_path / "model").exists()
    for task in (1, 2, 3):
        learner = itl.load(tmp_path / "specialists" / f"task-{task:02d}", device="cpu")
        assert learner.position == ("generalist", 0)
        end = next(i for i in lines if (i["kind"], i["task"], i["stage"]) == ("end", task, "specialist"))
        assert learner.evaluate(tiny_stream(**STREAM)).class_il == pytest.approx(end["class_il"])


def test_run_without_curves_gives_the_same_scores_and_records_its_command(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    bare = run(config(curves=0), tiny_stream(**STREAM), tmp_path, device="cpu", save=False)
    assert {line["kind"] for line in lines_of(tmp_path)} == {"untrained", "end", "expert"}
    assert bare["class_il_matrix"] == result_of(folders["itl"])["class_il_matrix"]
    assert bare["command"].endswith("--curves 0")


def test_pictures_are_memory_images_and_final_mistakes(folders: dict[str, Path]) -> None:
    stream, result = tiny_stream(**STREAM), result_of(folders["itl"])
    with np.load(folders["itl"] / "pictures.npz") as file:
        pictures = dict(file)
    with np.load(folders["itl"] / "predictions.npz") as file:
        predicted = dict(file)
    memory = result["memory"]
    assert sorted(pictures["slot"]) == list(range(len(memory["label"])))
    for slot, image in zip(pictures["slot"], pictures["memory"], strict=True):
        task = stream.tasks[memory["task"][slot]]
        assert np.array_equal(image, task.train.pixels[memory["row"][slot]].numpy())
    test = torch.cat([task.test.pixels for task in stream]).numpy()
    assert len(pictures["row"]) == min(48, (predicted["label"] != predicted["class_il"]).sum()) > 0
    for row, image in zip(pictures["row"], pictures["wrong"], strict=True):
        assert predicted["label"][row] != predicted["class_il"][row]
        assert np.array_equal(image, test[row])
