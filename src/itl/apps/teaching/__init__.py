"""Teach a model folder from image folders: choose settings, train, evaluate on held-out images, record history."""

from itl.apps.teaching.held_out_evaluation import GroupAccuracy, HeldOutEvaluation, HeldOutScores
from itl.apps.teaching.lesson import DecodedImages, Lesson, LessonImages
from itl.apps.teaching.lesson_plan import plan_lessons
from itl.apps.teaching.lesson_result import LessonResult
from itl.apps.teaching.options import TeachingOptions
from itl.apps.teaching.teacher import Teacher

__all__ = [
    "DecodedImages",
    "GroupAccuracy",
    "HeldOutEvaluation",
    "HeldOutScores",
    "Lesson",
    "LessonImages",
    "LessonResult",
    "Teacher",
    "TeachingOptions",
    "plan_lessons",
]
