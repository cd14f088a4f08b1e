"""Use ITL as a scikit-learn classifier: in a pipeline, in a grid search, and with one task per `partial_fit`.

Run: python examples/scikit_learn_pipeline.py
"""

import numpy as np
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from itl.apps.scikit_learn import ITLClassifier

X, y = load_wine(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)

# All classes at once, in a pipeline; the grid search chooses the size of the memory.
pipeline = make_pipeline(StandardScaler(), ITLClassifier(epochs=10))
search = GridSearchCV(pipeline, {"itlclassifier__buffer": [10, 60]}, cv=2)
search.fit(X_train, y_train)
print("chosen:", search.best_params_, f"accuracy {100 * search.score(X_test, y_test):.1f} %")

# Two classes, later a third one: every call of `partial_fit` is a task.
scaler = StandardScaler().fit(X_train)
classifier = ITLClassifier(buffer=60, epochs=10)
for labels in ([0, 1], [2]):
    chosen = np.isin(y_train, labels)
    classifier.partial_fit(scaler.transform(X_train[chosen]), y_train[chosen])
print(f"in two tasks: accuracy {100 * classifier.score(scaler.transform(X_test), y_test):.1f} %")
