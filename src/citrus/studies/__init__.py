"""Studies: many networks trained and certified by one engine, and tables and figures that are views of their rows."""

from citrus.studies.engine import Listener as Listener
from citrus.studies.engine import run_study as run_study
from citrus.studies.entries import Entry as Entry
from citrus.studies.entries import Study as Study
from citrus.studies.entries import StudyResult as StudyResult
from citrus.studies.rows import read_rows as read_rows
