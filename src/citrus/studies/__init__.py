"""Studies: many networks trained and certified by one engine, and tables and figures that are views of their rows."""

from citrus.studies.engine import Listener, run_study
from citrus.studies.rows import Entry, Study, StudyResult, read_rows
