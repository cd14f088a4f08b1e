"""`MLflowCallback`: logs the metrics of a run to MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from itl.callbacks.base import Callback
from itl.callbacks.scalars import parameters, scalars
from itl.errors import UserError

if TYPE_CHECKING:
    from itl.experiments import Config

# Characters that MLflow refuses in the names of metrics.
_REFUSED = str.maketrans({"%": "percent", ":": "-", "(": "-", ")": "-"})


class MLflowCallback(Callback):
    """Logs every line of metrics.jsonl to an MLflow run, and the configuration as its parameters.

    Use it as a context manager; the MLflow run ends with the block, as failed if the block raises an error. Other
    MLflow runs of the process are not affected.

    Args:
        config: Configuration of the run, or any parameters by name.
        experiment: Name of the MLflow experiment; it is created if it does not exist.
        run_name: Name of the MLflow run. Default: MLflow chooses one.
        tracking_uri: Where MLflow stores runs. Default: MLflow's own setting, `MLFLOW_TRACKING_URI`.

    Raises:
        UserError: MLflow is not installed.
    """

    def __init__(
        self,
        config: Config | Mapping[str, Any],
        experiment: str = "itl",
        run_name: str | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        try:
            from mlflow import MlflowClient  # type: ignore[import-not-found]
        except ImportError:
            raise UserError("MLflowCallback needs mlflow; install it with pip install 'itl[mlflow]'") from None
        self.config, self.run_name, self.line_count = config, run_name, 0
        self.experiment = experiment
        self.client = MlflowClient(tracking_uri=tracking_uri)
        self.run_id: str | None = None

    def __enter__(self) -> MLflowCallback:
        found = self.client.get_experiment_by_name(self.experiment)
        experiment_id = found.experiment_id if found else self.client.create_experiment(self.experiment)
        self.run_id = self.client.create_run(experiment_id, run_name=self.run_name).info.run_id
        for name, value in parameters(self.config).items():
            self.client.log_param(self.run_id, name, value)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.set_terminated(self.run_id, "FINISHED" if error is None else "FAILED")

    def on_record(self, line: dict[str, Any]) -> None:
        """Log the accuracies over the tasks seen and of each task, and the loss."""
        if self.run_id is None:
            raise UserError("MLflowCallback has no run; use it in a with statement")
        for tag, value, step in scalars(line, self.line_count):
            self.client.log_metric(self.run_id, tag.translate(_REFUSED), value, step=step)
        self.line_count += 1
