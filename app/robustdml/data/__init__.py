"""Data: images and features with their labels, split into training and test, and batches of them."""

from robustdml.arrays import Rows
from robustdml.data.dataset import RetrievalData, Split, divide_classes, take_classes
from robustdml.data.load import load_data

__all__ = ["RetrievalData", "Rows", "Split", "divide_classes", "load_data", "take_classes"]
