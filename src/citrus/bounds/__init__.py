"""Bounds on what a network can answer when its input moves inside a box."""

from citrus.bounds.alpha import AlphaSettings, alpha
from citrus.bounds.interval import Bounds, Box, interval, relu_box, training_interval
from citrus.bounds.linear import LinearBounds, LinearSettings, crown
from citrus.bounds.margins import margin_loss, margin_rows, margins, wrong_labels
from citrus.bounds.planes import Planes, lower_planes, training_planes
from citrus.bounds.rounding import proves
from citrus.bounds.substitution import adaptive_slopes
