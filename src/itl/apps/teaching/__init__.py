"""Teaching a model folder from folders of images: what is in them, what suits them, learning, and how well it went."""

from itl.apps.teaching.lesson import Lesson, Material
from itl.apps.teaching.lesson_result import LessonResult
from itl.apps.teaching.options import TeachingOptions
from itl.apps.teaching.plan import plan
from itl.apps.teaching.teacher import Teacher

__all__ = ["Lesson", "LessonResult", "Material", "Teacher", "TeachingOptions", "plan"]
