"""The built-in data set: scikit-learn's 1,797 handwritten digits of 8x8 pixels, always there."""

from __future__ import annotations

import torch

from spiritlevel.lab.datasets.labelled import LabelledData

TEST_SAMPLES = 360


def digits(split: str) -> LabelledData:
    """Return 1,437 digits for training or 360 for testing: one fixed split, stratified by class, pixels in [0, 1]."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    parts = train_test_split(pixels / 16.0, labels, test_size=TEST_SAMPLES, random_state=0, stratify=labels)
    which = 0 if split == "train" else 1
    x = torch.as_tensor(parts[which], dtype=torch.float32).reshape(-1, 1, 8, 8)
    y = torch.as_tensor(parts[2 + which], dtype=torch.int64)
    return LabelledData(x, y, "digits", split, 10)
