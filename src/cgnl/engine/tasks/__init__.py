"""What there is to learn: the classes of images or videos, or the objects in images."""

from ...data.index import Kind
from .base import Task
from .classification import Images, Videos
from .detection import Objects

TASKS: dict[Kind, type[Task]] = {task.kind: task for task in (Images, Videos, Objects)}
