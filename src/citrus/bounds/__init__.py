"""Bounds on what a network can answer when its input moves inside a box."""

from citrus.bounds.interval import Bounds as Bounds
from citrus.bounds.interval import Box as Box
from citrus.bounds.interval import interval as interval
from citrus.bounds.margins import margin_loss as margin_loss
from citrus.bounds.margins import margin_rows as margin_rows
from citrus.bounds.margins import margins as margins
from citrus.bounds.margins import wrong_labels as wrong_labels
