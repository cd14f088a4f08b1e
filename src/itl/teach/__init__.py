"""Teaching a model folder from folders of images: what is in them, what suits them, learning, and how well it went."""

from itl.teach.lecture import Lecture
from itl.teach.lesson import Lesson, Material
from itl.teach.options import Options
from itl.teach.plan import plan
from itl.teach.teacher import Teacher

__all__ = ["Lecture", "Lesson", "Material", "Options", "Teacher", "plan"]
