"""Deprecated names: every name that was renamed keeps working here, with a `DeprecationWarning` naming the new one.

Old names may appear in this module and its tests only. To rename something, add one line to the right table:

- a module or package moved: `MODULES["itl.old_module"] = "itl.new_module"` (submodules follow their package);
- a class, function or constant was renamed: `NAMES["itl.module.OldName"] = "itl.module.NewName"`, where the key is the
  path under which users imported it, through an old or a current module;
- a setting was renamed: `SETTINGS["group.old"] = "group.new"`; one of its values was: `SETTING_VALUES`;
- an entry-point group was renamed: `ENTRY_POINT_GROUPS["itl.new"] = "itl.old"`;
- a parameter was renamed: decorate the function with `@renamed_parameters(old="new")`;
- an attribute was renamed: decorate the class with `@renamed_attributes(old="new")`;
- an overridden method was renamed: call `adopt_renamed_methods(cls, {"old": "new"})` in `__init_subclass__`.

`install()` is called by `import itl`. It imports no other module of the package, so `import itl` stays fast.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type)

# Old module -> new module. Submodules of an old package map to those of the new one unless they have their own line.
MODULES = {
    "itl.learner.front": "itl.learner.learner",
    "itl.learner.checks": "itl.learner.validation",
    "itl.learner.legs": "itl.learner.stage_estimate",
    "itl.learner.lessons": "itl.learner.inputs",
    "itl.observer": "itl.callbacks.base",
    "itl.events": "itl.callbacks.tensorboard",
    "itl.saving": "itl.checkpoint.learner_state",
    "itl.engine.state": "itl.checkpoint.store",
    "itl.model.lock": "itl.checkpoint.lock",
    "itl.specialists.rounds": "itl.replay.epochs",
    "itl.specialists.live": "itl.replay.online_step",
    "itl.memory.plan": "itl.replay.plan",
    "itl.specialists.per_sample": "itl.gradients.grad_sample",
    "itl.specialists.taps": "itl.gradients.layer_recorder",
    "itl.specialists.virtual": "itl.gradients.virtual_update",
    "itl.specialists.twins": "itl.specialists.model_copies",
    "itl.specialists.averaged": "itl.specialists.weight_average",
    "itl.specialists.er_apart": "itl.specialists.er_separate",
    "itl.memory.live": "itl.memory.online_selection",
    "itl.memory.sight": "itl.memory.model_outputs",
    "itl.memory.reservoir": "itl.memory.policies.reservoir",
    "itl.memory.ring": "itl.memory.policies.ring",
    "itl.memory.stratified": "itl.memory.policies.stratified",
    "itl.memory.herding": "itl.memory.policies.herding",
    "itl.memory.entropy": "itl.memory.policies.entropy",
    "itl.memory.coreset": "itl.memory.policies.coreset",
    "itl.memory.gcr": "itl.memory.policies.gcr",
    "itl.memory.greedy": "itl.memory.greedy_selection",
    "itl.methods": "itl.presets",
    "itl.engine.shadow": "itl.engine.bf16_weights",
    "itl.engine.packed": "itl.engine.packed_inputs",
    "itl.engine.views": "itl.engine.normalize",
    "itl.engine.partition": "itl.engine.green_context",
    "itl.engine.lanes": "itl.engine.concurrency",
    "itl.engine.kernels": "itl.engine.sgd_kernel",
    "itl.engine.update": "itl.engine.fused_sgd",
    "itl.engine.random": "itl.engine.keyed_random",
    "itl.kernels": "itl.triton_support",
    "itl.nets.dual": "itl.nets.jvp_rules",
    "itl.nets.foreign": "itl.nets.adapter",
    "itl.nets.kernels": "itl.nets.norm_kernels",
    "itl.nets.head": "itl.nets.pooled_classifier",
    "itl.augment.kernels": "itl.augment.view_kernels",
    "itl.augment.tone": "itl.augment.lookup_tables",
    "itl.generalists.learn": "itl.generalists.learning",
    "itl.generalists.rounds": "itl.generalists.epochs",
    "itl.generalists.tangent": "itl.generalists.tangent_model",
    "itl.config": "itl.experiments.config",
    "itl.run": "itl.experiments.run",
    "itl.recorder": "itl.experiments.recorder",
    "itl.refine": "itl.experiments.refine",
    "itl.search": "itl.experiments.search",
    "itl.search.board": "itl.experiments.search.progress",
    "itl.search.cells": "itl.experiments.search.sweep_jobs",
    "itl.search.claims": "itl.experiments.search.job_locks",
    "itl.search.cluster": "itl.experiments.search.ray_backend",
    "itl.search.courier": "itl.experiments.search.ray_task",
    "itl.search.extras": "itl.experiments.search.optional_imports",
    "itl.search.find": "itl.experiments.search.study",
    "itl.search.local": "itl.experiments.search.local_backend",
    "itl.search.parcels": "itl.experiments.search.file_sync",
    "itl.search.work": "itl.experiments.search.jobs",
    "itl.model": "itl.apps.model",
    "itl.model.change": "itl.apps.model.edit",
    "itl.model.judge": "itl.apps.model.evaluation",
    "itl.model.pictures": "itl.apps.model.memory_images",
    "itl.teach": "itl.apps.teaching",
    "itl.teach.choice": "itl.apps.teaching.default_settings",
    "itl.teach.plan": "itl.apps.teaching.lesson_plan",
    "itl.teach.exams": "itl.apps.teaching.held_out_evaluation",
    "itl.teach.lecture": "itl.apps.teaching.lesson_result",
    "itl.images": "itl.apps.images",
    "itl.images.scan": "itl.apps.images.image_folder",
    "itl.images.split": "itl.apps.images.holdout",
    "itl.results.cells": "itl.results.seed_groups",
    "itl.images.cache": "itl.apps.images.decoded_cache",
    "itl.images.many": "itl.apps.images.parallel_read",
    "itl.sklearn": "itl.apps.scikit_learn",
    "itl.bench.ours": "itl.bench.engine_timing",
    "itl.bench.usual": "itl.bench.baseline_loop",
    "itl.bench.scale": "itl.bench.workload",
    "itl.bench.whole": "itl.bench.full_run",
    "itl.bench.methods": "itl.bench.method_steps",
    "itl.cli.bench": "itl.cli.commands.bench",
    "itl.cli.change": "itl.cli.commands.edit",
    "itl.cli.export": "itl.cli.commands.export",
    "itl.cli.info": "itl.cli.commands.info",
    "itl.cli.judge": "itl.cli.commands.evaluate",
    "itl.cli.learn": "itl.cli.commands.learn",
    "itl.cli.listing": "itl.cli.commands.listing",
    "itl.cli.predict": "itl.cli.commands.predict",
    "itl.cli.refine": "itl.cli.commands.refine",
    "itl.cli.report": "itl.cli.commands.report",
    "itl.cli.run": "itl.cli.commands.run",
    "itl.cli.search": "itl.cli.commands.search",
    "itl.cli.sweep": "itl.cli.commands.sweep",
    "itl.cli.table": "itl.cli.commands.table",
    "itl.cli.abreast": "itl.cli.display.runs",
    "itl.cli.board": "itl.cli.display.jobs",
    "itl.cli.curve": "itl.cli.display.accuracy_plot",
    "itl.cli.learned": "itl.cli.display.learn_tables",
    "itl.cli.lessons": "itl.cli.display.learn_progress",
    "itl.cli.live": "itl.cli.display.progress",
    "itl.cli.outlook": "itl.cli.display.eta",
    "itl.cli.screen": "itl.cli.display.live",
    "itl.cli.tables": "itl.cli.display.run_tables",
    "itl.cli.words": "itl.cli.display.formatting",
    "itl.cli.folders": "itl.cli.run_folders",
    "itl.report.drawings": "itl.report.matplotlib_figures",
    "itl.report.words": "itl.report.captions",
    "itl.report.pictures": "itl.report.image_sheets",
    "itl.report.paper": "itl.report.figure_files",
    "itl.report.contents": "itl.report.tabs",
    "itl.report.subject": "itl.report.run_selection",
    "itl.results.check": "itl.results.validation",
    "itl.results.chosen": "itl.results.image_selection",
    "itl.streams.cache": "itl.streams.array_cache",
    "itl.streams.pictures": "itl.streams.pillow_images",
    "itl.streams.arithmetic": "itl.streams.permutations",
    "itl.streams.files": "itl.streams.checked_files",
    "itl.streams.tree": "itl.streams.file_tree",
}

# Old importable name -> new one.
NAMES = {
    "itl.engine.lanes.ETIQUETTE": "itl.engine.concurrency.CAPTURE_GATE",
    "itl.engine.lanes.Etiquette": "itl.engine.concurrency.CaptureGate",
    "itl.engine.pool.Pool": "itl.engine.pool.ImagePool",
    "itl.engine.pool.Source": "itl.engine.pool.ImageSource",
    "itl.engine.shadow.Shadow": "itl.engine.bf16_weights.BF16Weights",
    "itl.engine.stage.Batch": "itl.engine.stage.StepInputs",
    "itl.engine.stage.Descent": "itl.engine.stage.OptimizerConfig",
    "itl.engine.stage.Rounds": "itl.engine.stage.RoundPlanner",
    "itl.engine.stage.Span": "itl.engine.stage.StepChunk",
    "itl.engine.state.OtherVersion": "itl.checkpoint.store.UnsupportedVersion",
    "itl.engine.state.Unreadable": "itl.checkpoint.store.TemporarilyUnreadable",
    "itl.engine.state.named": "itl.checkpoint.store.current_unchecked",
    "itl.engine.state.point": "itl.checkpoint.store.set_current",
    "itl.engine.state.read_text": "itl.checkpoint.store.read_state_unchecked",
    "itl.engine.state.reason": "itl.checkpoint.store.error_summary",
    "itl.engine.state.seal": "itl.checkpoint.store.write_checksums",
    "itl.engine.state.sums": "itl.checkpoint.store.read_checksums",
    "itl.engine.state.tidy": "itl.checkpoint.store.remove_generations",
    "itl.engine.views.Normalise": "itl.engine.normalize.Normalize",
    "itl.generalists.Ground": "itl.generalists.MemoryContext",
    "itl.generalists.learn.Ground": "itl.generalists.MemoryContext",
    "itl.generalists.rounds.SampleRounds": "itl.generalists.epochs.SampleRoundPlanner",
    "itl.images.KINDS": "itl.apps.images.FORMAT_NAMES",
    "itl.images.Problem": "itl.apps.images.SkippedPath",
    "itl.images.Scan": "itl.apps.images.ImageFolder",
    "itl.images.dimensions": "itl.apps.images.image_dimensions",
    "itl.images.hold_out": "itl.apps.images.split_held_out",
    "itl.images.is_model": "itl.apps.images.is_model_folder",
    "itl.images.scan": "itl.apps.images.scan_folder",
    "itl.images.shown": "itl.apps.images.printable_path",
    "itl.learner.legs.Leg": "itl.learner.stage_estimate.StageEstimate",
    "itl.learner.legs.legs_of": "itl.learner.stage_estimate.estimate_stages",
    "itl.generalists.Tangent": "itl.generalists.TangentLearning",
    "itl.generalists.learn.Tangent": "itl.generalists.TangentLearning",
    "itl.memory.POLICIES": "itl.memory.registry.BUILT_IN",
    "itl.memory.Policy": "itl.memory.policies.from_functions.policy_from_functions",
    "itl.memory.Seen": "itl.memory.FeaturesAndLogits",
    "itl.memory.Sight": "itl.memory.ModelOutputs",
    "itl.memory.buffer.BESIDE": "itl.memory.buffer.OPTIONAL_TENSORS",
    "itl.memory.live.ARRAYS": "itl.memory.slots.INTEGER_FIELDS",
    "itl.memory.live.CHOOSE": "itl.memory.online_selection.CHOOSE_ON_DEVICE",
    "itl.memory.live.GreedyCosine": "itl.memory.policies.gss.GradientSimilaritySelector",
    "itl.memory.live.Live": "itl.memory.online_selection.OnlineSelector",
    "itl.memory.live.LossAware": "itl.memory.policies.loss_aware.LossAwareSelector",
    "itl.memory.live.replaced": "itl.memory.policies.loss_aware.eviction_probabilities",
    "itl.memory.policies.Offer": "itl.memory.policies.base.WritePlanner",
    "itl.memory.policies.POLICIES": "itl.memory.registry.BUILT_IN",
    "itl.memory.policies.Policy": "itl.memory.policies.from_functions.policy_from_functions",
    "itl.memory.policies.find": "itl.memory.get_policy",
    "itl.memory.reservoir.last_wins": "itl.memory.slots.last_write_per_slot",
    "itl.memory.stratified.merge": "itl.memory.class_balance.merge_by_class",
    "itl.memory.stratified.quotas": "itl.memory.class_balance.class_quotas",
    "itl.memory.sight.Seen": "itl.memory.FeaturesAndLogits",
    "itl.memory.sight.Sight": "itl.memory.model_outputs.ModelOutputs",
    "itl.model.folder.Keeper": "itl.callbacks.CheckpointCallback",
    "itl.model.judge.Verdict": "itl.apps.model.evaluation.EvaluationResult",
    "itl.model.judge.judge": "itl.apps.model.evaluation.evaluate_predictions",
    "itl.model.pictures.Album": "itl.apps.model.memory_images.MemoryImageFiles",
    "itl.nets.Foreign": "itl.nets.ModuleAdapter",
    "itl.nets.draw": "itl.nets.initialize",
    "itl.nets.for_classes": "itl.nets.with_new_classifier",
    "itl.nets.forward_mode": "itl.nets.math_attention",
    "itl.nets.forwards": "itl.nets.forward_each",
    "itl.nets.weights.start_from": "itl.nets.weights.load_backbone_weights",
    "itl.nets.foreign.Foreign": "itl.nets.ModuleAdapter",
    "itl.nets.resnet.Pool": "itl.nets.resnet.GlobalAvgPool",
    "itl.observer.Observer": "itl.callbacks.Callback",
    "itl.observer.Observers": "itl.callbacks.CallbackList",
    "itl.results.Folder": "itl.results.RunFolder",
    "itl.results.record.Folder": "itl.results.RunFolder",
    "itl.events.Events": "itl.callbacks.TensorBoardCallback",
    "itl.observer.Clock": "itl.learner.timer.SectionTimer",
    "itl.saving.Pace": "itl.checkpoint.throttle.CheckpointThrottle",
    "itl.saving.load": "itl.learner.load_learner",
    "itl.saving.save": "itl.learner.Learner.save",
    "itl.refine.ALLOWED": "itl.experiments.refine.REFINABLE_SETTINGS",
    "itl.refine.Failed": "itl.experiments.refine.GeneralistDiverged",
    "itl.refine.check": "itl.experiments.refine.check_settings",
    "itl.refine.kept": "itl.experiments.refine.saved_specialists",
    "itl.refine.record": "itl.experiments.refine.write_attempts",
    "itl.refine.tried": "itl.experiments.refine.refine_or_error",
    "itl.search.board.Board": "itl.experiments.search.progress.ProgressTracker",
    "itl.search.board.Entry": "itl.experiments.search.progress.JobProgress",
    "itl.search.cells.CellWork": "itl.experiments.search.sweep_jobs.SweepJob",
    "itl.search.cells.Cells": "itl.experiments.search.sweep_jobs.SweepJobs",
    "itl.search.claims.Claim": "itl.locks.FileLock",
    "itl.search.claims.claim": "itl.experiments.search.job_locks.acquire_job_lock",
    "itl.search.cluster.Cluster": "itl.experiments.search.ray_backend.RayBackend",
    "itl.search.cluster.Mailbox": "itl.experiments.search.ray_backend.DriverActor",
    "itl.search.cluster.Reports": "itl.experiments.search.ray_backend.PruningActor",
    "itl.search.courier.Courier": "itl.experiments.search.ray_task.RayTaskCallback",
    "itl.search.courier.carry_out": "itl.experiments.search.ray_task.run_ray_job",
    "itl.search.extras.need": "itl.experiments.search.optional_imports.import_optional",
    "itl.search.find.Plan": "itl.experiments.search.study.SearchPlan",
    "itl.search.find.begin": "itl.experiments.search.study.open_search",
    "itl.search.find.best": "itl.experiments.search.study.best_trial",
    "itl.search.find.check": "itl.experiments.search.study.check_plan",
    "itl.search.find.chosen": "itl.experiments.search.study.best_config",
    "itl.search.find.elsewhere": "itl.experiments.search.study.describe_running_trials",
    "itl.search.find.final": "itl.experiments.search.study.final_configs",
    "itl.search.grid.build": "itl.experiments.search.grid.build_grid",
    "itl.search.grid.read": "itl.experiments.search.grid.load_grid",
    "itl.search.grid.ready": "itl.experiments.search.grid.packaged_grids",
    "itl.search.local.Local": "itl.experiments.search.local_backend.LocalBackend",
    "itl.search.parcels.Parcel": "itl.experiments.search.file_sync.FileBundle",
    "itl.search.space.Choice": "itl.experiments.search.space.Dimension",
    "itl.search.space.read": "itl.experiments.search.space.parse_space",
    "itl.search.sweep.board_of": "itl.experiments.search.sweep.load_progress",
    "itl.search.sweep.default_place": "itl.experiments.search.sweep.default_sweep_folder",
    "itl.search.sweep.elsewhere": "itl.experiments.search.sweep.cells_in_other_processes",
    "itl.search.trials.AfterTask": "itl.experiments.search.trials.PruningCallback",
    "itl.search.trials.BelowMedian": "itl.experiments.search.trials.LatestValueMedianPruner",
    "itl.search.trials.Hopeless": "itl.experiments.search.trials.PrunedTrial",
    "itl.search.trials.TrialWork": "itl.experiments.search.trials.TrialJob",
    "itl.search.trials.Trials": "itl.experiments.search.trials.TrialJobs",
    "itl.search.trials.sampler": "itl.experiments.search.trials.make_sampler",
    "itl.search.trials.study": "itl.experiments.search.trials.open_study",
    "itl.search.work.Event": "itl.experiments.search.jobs.JobEvent",
    "itl.search.work.Report": "itl.experiments.search.jobs.ReportValue",
    "itl.search.work.Source": "itl.experiments.search.jobs.JobSource",
    "itl.search.work.Streams": "itl.experiments.search.jobs.StreamCache",
    "itl.search.work.Work": "itl.experiments.search.jobs.Job",
    "itl.search.worker.Drain": "itl.experiments.search.worker.JobRunner",
    "itl.search.worker.Gone": "itl.experiments.search.worker.WorkerStopped",
    "itl.search.worker.Tidings": "itl.experiments.search.worker.WorkerCallback",
    "itl.settings.Part": "itl.settings.SettingsGroup",
    "itl.specialists.Here": "itl.specialists.TaskContext",
    "itl.specialists.View": "itl.specialists.Batch",
    "itl.specialists.base.Here": "itl.specialists.TaskContext",
    "itl.specialists.base.View": "itl.specialists.Batch",
    "itl.specialists.base.Over": "itl.specialists.base.TrainingData",
    "itl.specialists.base.join": "itl.specialists.base.concat",
    "itl.specialists.captured": "itl.specialists.is_capturable",
    "itl.specialists.er_apart.ERApart": "itl.specialists.er_separate.ERSeparate",
    "itl.specialists.join": "itl.specialists.concat",
    "itl.specialists.losses.among": "itl.specialists.losses.mask_logits",
    "itl.specialists.losses.contrast": "itl.specialists.losses.supervised_contrast",
    "itl.specialists.losses.shares": "itl.specialists.losses.normalize_weights",
    "itl.specialists.losses.wide": "itl.specialists.losses.at_least_float32",
    "itl.specialists.per_sample.gram": "itl.gradients.grad_sample.gradient_gram",
    "itl.specialists.resolve": "itl.specialists.resolve_options",
    "itl.specialists.rounds.data_over": "itl.replay.epochs.phase_data",
    "itl.specialists.rounds.specialist_stage": "itl.replay.specialist_stage.specialist_stage",
    "itl.specialists.twins.copy_into": "itl.specialists.model_copies.copy_weights_",
    "itl.specialists.twins.lean": "itl.specialists.model_copies.ema_update_",
    "itl.specialists.twins.restore_twin": "itl.specialists.model_copies.restore_copy",
    "itl.specialists.twins.twin": "itl.specialists.model_copies.frozen_copy",
    "itl.specialists.twins.widen": "itl.specialists.model_copies.grow_outputs",
    "itl.specialists.live.LiveStep": "itl.replay.online_step.OnlineSelectionStep",
    "itl.specialists.rounds.ReplayRounds": "itl.replay.epochs.ReplayRoundPlanner",
    "itl.streams.Source": "itl.streams.DatasetSource",
    "itl.streams.base.Source": "itl.streams.DatasetSource",
    "itl.streams.arithmetic.held_out": "itl.streams.permutations.stratified_split",
    "itl.streams.arithmetic.permutation": "itl.streams.permutations.hash_permutation",
    "itl.streams.cache.Array": "itl.streams.array_cache.ChunkedArray",
    "itl.streams.tree.Folder": "itl.streams.file_tree.DirectoryTree",
    "itl.streams.tree.Tree": "itl.streams.file_tree.FileTree",
    "itl.streams.tree.Zip": "itl.streams.file_tree.ZipTree",
    "itl.teach.Lecture": "itl.apps.teaching.LessonResult",
    "itl.teach.Material": "itl.apps.teaching.LessonImages",
    "itl.teach.Options": "itl.apps.teaching.TeachingOptions",
    "itl.teach.exams.Exams": "itl.apps.teaching.held_out_evaluation.HeldOutEvaluation",
    "itl.teach.exams.Grade": "itl.apps.teaching.GroupAccuracy",
    "itl.teach.exams.Report": "itl.apps.teaching.HeldOutScores",
    "itl.teach.lecture.Lecture": "itl.apps.teaching.lesson_result.LessonResult",
    "itl.teach.lesson.Material": "itl.apps.teaching.LessonImages",
    "itl.teach.lesson.Part": "itl.apps.teaching.LabeledImages",
    "itl.teach.options.Options": "itl.apps.teaching.options.TeachingOptions",
    "itl.teach.plan": "itl.apps.teaching.plan_lessons",
}

# Old dotted setting -> new one.
SETTINGS: dict[str, str] = {}

# (new dotted setting, old value) -> new value.
SETTING_VALUES = {("specialist.name", "er-apart"): "er-separate"}

# Old hook of `Callback` -> new one.
CALLBACK_HOOKS = {
    "stage_begins": "on_stage_start",
    "round_ends": "on_round_end",
    "stage_ends": "on_stage_end",
    "memory_updated": "on_memory_update",
    "task_ends": "on_task_end",
    "recorded": "on_record",
}

# Hooks and class attributes of `itl.specialists.Specialist` that plug-ins override: old name -> new one.
SPECIALIST_MEMBERS = {
    "backwards": "backward_batches",
    "changed": "mutable_tensors",
    "closing": "closing_phase",
    "draws": "num_replay_batches",
    "epoch_starts": "on_epoch_start",
    "extra_state": "state_dict",
    "fixed_classes": "requires_fixed_classes",
    "forwards": "forward_batches",
    "gradient": "transform_gradients",
    "hand_over": "on_generalist_start",
    "inputs": "draw_inputs",
    "logits": "evaluate_logits",
    "logits_at_end": "stores_logits_at_task_end",
    "looks_up": "lookup_inputs",
    "needs_policy": "required_policy",
    "new_classes": "requires_new_classes",
    "over": "data",
    "phase": "training_phase",
    "restarts": "resets_network",
    "restore": "load_state_dict",
    "settles": "changes_model_at_task_end",
    "take_back": "on_generalist_end",
    "task_ends": "on_task_end",
    "task_starts": "on_task_start",
    "turns_gradients": "transforms_gradients",
    "views": "num_views",
}
# Attributes of the objects that a specialist uses: old name -> new one.
BATCH_ATTRIBUTES = {
    "logits": "stored_logits",
    "others": "extra_views",
    "renewed": "updated_logits",
    "said": "outputs",
    "widths": "logit_widths",
}
TASK_CONTEXT_ATTRIBUTES = {
    "columns": "class_mask",
    "old": "past_columns",
    "own": "task_mask",
    "past": "past_classes",
    "sight": "model_outputs",
    "taught": "seen_mask",
}
PHASE_ATTRIBUTES = {"batch": "batch_size", "descent": "optimizer", "over": "data"}

# New entry-point group -> old one.
ENTRY_POINT_GROUPS = {"itl.methods": "itl.specialists"}


def warn(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn that `old` is deprecated in favor of `new`, at the caller's caller."""
    warnings.warn(f"{old} is deprecated, use {new}", DeprecationWarning, stacklevel=stacklevel)


def new_module(name: str) -> str:
    """Current name of a module: the longest renamed prefix of `name` is replaced."""
    parts = name.split(".")
    for length in range(len(parts), 1, -1):
        prefix = ".".join(parts[:length])
        if prefix in MODULES:
            return ".".join([MODULES[prefix], *parts[length:]])
    return name


def new_setting(name: str) -> str:
    """Current name of a dotted setting; warns if `name` is an old one."""
    if name in SETTINGS:
        warn(f"setting {name}", SETTINGS[name], stacklevel=4)
    return SETTINGS.get(name, name)


def new_setting_value(name: str, value: Any) -> Any:
    """Current form of the value of a setting; warns if `value` is an old one."""
    if isinstance(value, str) and (name, value) in SETTING_VALUES:
        warn(f"{name}={value}", f"{name}={SETTING_VALUES[name, value]}", stacklevel=4)
        return SETTING_VALUES[name, value]
    return value


def update_saved_settings(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted settings from a file with current names and values, without warnings."""
    renamed = {SETTINGS.get(name, name): value for name, value in saved.items()}
    return {
        name: SETTING_VALUES.get((name, value), value) if isinstance(value, str) else value
        for name, value in renamed.items()
    }


def entry_points_of(group: str) -> list[EntryPoint]:
    """Entry points of a group, including those that plug-ins still declare under its old name."""
    found = list(entry_points(group=group))
    old = ENTRY_POINT_GROUPS.get(group)
    if old is not None:
        for point in entry_points(group=old):
            warn(f"entry-point group {old} (of {point.name})", group)
            found.append(point)
    return found


def renamed_parameters(**renamed: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator: accept the keyword arguments `old="new"` under their old names too."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            for old in renamed.keys() & kwargs.keys():
                new = renamed[old]
                if new in kwargs:
                    raise TypeError(f"{function.__qualname__}() got both {old} and {new}, which are the same")
                warn(f"argument {old} of {function.__qualname__}()", new)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return wrapper

    return decorate


def renamed_attributes(**renamed: str) -> Callable[[C], C]:
    """Class decorator: the attributes `old="new"` can be read and set under their old names too."""

    def decorate(cls: C) -> C:
        for old, new in renamed.items():
            setattr(cls, old, _alias_property(cls.__name__, old, new))
        return cls

    return decorate


def adopt_renamed_methods(cls: type, renamed: Mapping[str, str]) -> None:
    """Let the methods that a subclass defines under old names override the renamed ones."""
    for old, new in renamed.items():
        if old in vars(cls) and new not in vars(cls):
            warn(f"method {cls.__name__}.{old}", new, stacklevel=4)
            setattr(cls, new, vars(cls)[old])


def keep_old_members(cls: type, renamed: Mapping[str, str]) -> None:
    """Make the members that a class defines under new names available under the old ones, as for `super().old()`."""
    for old, new in renamed.items():
        if new in vars(cls) and old not in vars(cls):
            setattr(cls, old, vars(cls)[new])


def install() -> None:
    """Make old module paths and names importable."""
    if not any(isinstance(finder, _DeprecatedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _DeprecatedFinder())


def _alias_property(owner: str, old: str, new: str) -> property:
    def get(self: Any) -> Any:
        warn(f"{owner}.{old}", new)
        return getattr(self, new)

    def put(self: Any, value: Any) -> None:
        warn(f"{owner}.{old}", new)
        setattr(self, new, value)

    return property(get, put, doc=f"Deprecated alias of `{new}`.")


@functools.cache
def _renamed_by_module() -> dict[str, dict[str, str]]:
    """Current module -> {old name: qualified new name}, including the old names of submodules."""
    table: dict[str, dict[str, str]] = {}
    for old, new in {**MODULES, **NAMES}.items():
        owner, _, name = old.rpartition(".")
        table.setdefault(new_module(owner), {})[name] = new
    return table


class _DeprecatedFinder(MetaPathFinder):
    """Finds old modules, and adds the old names to the current modules that had them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("itl."):
            return None
        if new_module(fullname) != fullname:
            return ModuleSpec(fullname, _AliasLoader())
        table = _renamed_by_module().get(fullname, {})
        spec = PathFinder.find_spec(fullname, path, target) if table else None
        if spec is not None and spec.loader is not None:
            _add_names_after_import(spec.loader, table)
        return spec


class _AliasLoader(Loader):
    """Loads the current module under its old name."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        new = new_module(module.__name__)
        sys.modules[module.__name__] = import_module(new)
        warn(f"module {module.__name__}", new)


class _ModuleWithOldNames(ModuleType):
    """A module in which importing an old submodule does not hide an old function of the same name."""

    def __setattr__(self, name: str, value: Any) -> None:
        new = _renamed_by_module().get(self.__name__, {}).get(name)
        if not (isinstance(value, ModuleType) and new and new != value.__name__):
            super().__setattr__(name, value)


def _add_names_after_import(loader: Loader, table: dict[str, str]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        previous: Callable[[str], Any] | None = vars(module).get("__getattr__")

        def get(name: str) -> Any:
            if name in table:
                warn(f"{module.__name__}.{name}", table[name])
                return resolve_name(table[name])
            if previous is not None:
                return previous(name)
            raise AttributeError(f"module '{module.__name__}' has no attribute '{name}'")

        module.__getattr__ = get  # type: ignore[method-assign]
        module.__class__ = _ModuleWithOldNames

    loader.exec_module = exec_module  # type: ignore[method-assign]
