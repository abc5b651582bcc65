"""Bounds on what a network can answer when its input moves inside a box."""

from citrus.bounds.alpha import AlphaSettings as AlphaSettings
from citrus.bounds.alpha import alpha as alpha
from citrus.bounds.interval import Bounds as Bounds
from citrus.bounds.interval import Box as Box
from citrus.bounds.interval import interval as interval
from citrus.bounds.interval import relu_box as relu_box
from citrus.bounds.interval import training_interval as training_interval
from citrus.bounds.linear import LinearBounds as LinearBounds
from citrus.bounds.linear import LinearSettings as LinearSettings
from citrus.bounds.linear import crown as crown
from citrus.bounds.margins import margin_loss as margin_loss
from citrus.bounds.margins import margin_rows as margin_rows
from citrus.bounds.margins import margins as margins
from citrus.bounds.margins import wrong_labels as wrong_labels
from citrus.bounds.substitution import Planes as Planes
from citrus.bounds.substitution import adaptive_slopes as adaptive_slopes
from citrus.bounds.substitution import lower_planes as lower_planes
from citrus.bounds.substitution import training_planes as training_planes
