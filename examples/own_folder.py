"""Teach a model from folders of image files, one sub-folder per class, as `itl learn` does.

Run: python examples/own_folder.py
"""

from pathlib import Path

import torch
from PIL import Image
from sklearn.datasets import load_digits

from itl.apps.images import read_images
from itl.apps.model import Model, lock
from itl.apps.teaching import Teacher, TeachingOptions

# Image files for the example; with your own images you do not need this part.
digits = load_digits()
for day, classes in {"monday": (0, 1), "tuesday": (2, 3)}.items():
    for digit in classes:
        folder = Path("pictures", day, f"digit {digit}")
        folder.mkdir(parents=True, exist_ok=True)
        for k, image in enumerate(digits.images[digits.target == digit][:40]):
            Image.fromarray((image * 15.9).astype("uint8")).save(folder / f"{k:03d}.png")

# One lesson per folder, as with `itl learn my-digits pictures/monday pictures/tuesday --size 8`, but with few epochs.
short = {"specialist.epochs": 30, "tangent.epochs": 20, "projection.epochs": 20}
options = TeachingOptions(size=8, settings=short)
with lock("my-digits"):
    teacher = Teacher("my-digits", ["pictures/monday", "pictures/tuesday"], options)
    for result in teacher.lesson_results():
        teacher.teach(result)

model = Model.open("my-digits")
print("classes:", ", ".join(model.classes))
pixels, _, _ = read_images([Path("pictures/tuesday/digit 3/000.png")], size=8)
print("tuesday/digit 3/000.png:", model.predict(torch.from_numpy(pixels))[0])
