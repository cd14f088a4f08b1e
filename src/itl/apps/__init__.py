"""Applications on top of the learner: image folders, model folders, teaching, scikit-learn."""
