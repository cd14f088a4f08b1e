"""Configuration of all tests: one thread, a fixed random seed, no flushing to disk, no warnings from inside torch.

Without a GPU, Triton kernels run in Triton's interpreter. A process that only distributes tests to workers does not
import torch, which takes seconds: the workers start after it has been configured.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from support.cli_process import ForkServer

# Tests with large networks or images. On the tiny ones of other tests, oneDNN is slower than PyTorch's convolutions.
WITH_ONEDNN = {
    "bench",
    "cli",
    "features",
    "search",  # compares with other processes, which use oneDNN
    "server",
    "test_default_backbone.py",
    "test_efficientnet_lite.py",
    "test_examples.py",
    "test_external_backbones.py",
    "test_nets_weights.py",
    "test_scikit_learn.py",
    "test_replay_plan.py",  # PyTorch's convolutions of 18 images and of fewer differ in the last bit
}
# The files that take longest, slow tests included. They run first, so that parallel workers end at about the same time.
LONGEST = (
    "test_search_cluster.py",
    "test_examples.py",
    "test_docs_shell.py",
    "test_report_scale.py",
    "test_cli_kills.py",
    "test_search_trials.py",
    "test_fuzzing.py",
    "test_disk_failures.py",
    "test_server_browser.py",
    "test_cli_own_data.py",
    "test_scikit_learn.py",
    "test_kernels_end_to_end.py",
    "test_methods_table.py",
    "test_specialist_methods.py",
    "test_cli_errors.py",
    "test_report_browser.py",
    "test_cli_sweep.py",
    "test_cli_learn.py",
    "test_cli_resume.py",
    "test_cli_model.py",
    "test_cli_live.py",
    "test_frozen_trunk.py",
    "test_specialist_selection.py",
    "test_contributing.py",
    "test_search_sweep.py",
    "test_run.py",
    "test_learner_state.py",
    "test_model_damage.py",
    "test_model_export.py",
    "test_learner_known_classes.py",
    "test_docs.py",
    "test_memory_choosing.py",
    "test_cli_run.py",
    "test_kernels_norm.py",
    "test_committed_results.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(LONGEST)))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what has been imported stays; searching it for garbage again and again takes long
    gc.set_threshold(10_000, 20, 20)


def pytest_configure(config: pytest.Config) -> None:
    # The first call of jvp makes torch use its own deprecated torch.jit.script.
    config.addinivalue_line("filterwarnings", "ignore:`torch.jit:DeprecationWarning")
    os.fsync = lambda handle: None  # slow, and needed only if the machine loses power
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        return  # this process runs no tests
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
    torch.set_num_threads(1)  # threads only add overhead to tensors this small


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Choose the implementation of convolutions before the fixtures of a test are set up."""
    import torch

    torch.backends.mkldnn.enabled = not WITH_ONEDNN.isdisjoint(item.path.parts[-2:])


@pytest.fixture(autouse=True)
def fixed_random_seed() -> None:
    """Seed torch's global generators before every test."""
    import torch

    torch.default_generator.manual_seed(0)  # torch.manual_seed also seeds unused devices, which takes longer
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A server, shared by all workers, that runs command lines in forked processes."""
    folder = tmp_path_factory.getbasetemp()
    server = ForkServer(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)
    yield server
    server.close()
