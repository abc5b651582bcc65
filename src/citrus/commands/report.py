"""`citrus report RUN [RUN ...]`: one self-contained page about a run, or about several side by side."""

from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from citrus.commands.target import parse_flags
from citrus.errors import CitrusError
from citrus.report.document import plain
from citrus.report.read import read_runs
from citrus.report.write import write_report


@dataclass
class ReportFlags:
    """Show what the files of one or several runs say, also while they are still going: citrus report RUN [RUN ...]"""

    out: str | None = None
    """Folder of report.html and report.md; by default the run folder, or ./report for several runs."""


def run(arguments: list[str]) -> None:
    folders = [Path(word) for word in takewhile(lambda word: not word.startswith("-"), arguments)]
    flags, _ = parse_flags(ReportFlags, "report", arguments[len(folders) :])
    if not folders:
        raise CitrusError("Which run? citrus report RUN_FOLDER, or several: citrus report RUN_FOLDER RUN_FOLDER")
    records = read_runs(folders)
    default = records[0].path if len(records) == 1 else Path("report")
    page, twin = write_report(records, Path(flags.out) if flags.out else default)
    for record in records:
        for entry in record.missing:
            print(plain(f"missing   {record.name}: {entry.text} {entry.command}".rstrip()))
    print(plain(f"report    {page}\nmarkdown  {twin}"))
