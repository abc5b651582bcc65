"""Downloads from a server in this process: whole, damaged, cut off, of unknown length, offline."""

import hashlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from citrus.data import fetch, load
from citrus.data.places import ORIGINALS, Download
from citrus.errors import CitrusError

CONTENT = bytes(range(256)) * 4000  # about 1 MB, several chunks


class Handler(BaseHTTPRequestHandler):
    """Serves what the server object holds, in the way its `mode` says."""

    server: "Server"

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        content = self.server.files.get(self.path.lstrip("/"))
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        if self.server.mode != "no length":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        end = len(content) // 2 if self.server.mode == "cuts" else len(content)
        self.wfile.write(content[:end])

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.mode = "good"

    def handle_error(self, *_: object) -> None:
        """A client that hangs up early is part of these tests: nothing to report."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CITRUS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def offer(
    monkeypatch: pytest.MonkeyPatch, mirrors: tuple[str, ...], files: dict[str, bytes], kind: str = "sha256"
) -> None:
    """Put other files in place of those of MNIST."""
    downloads = [Download(f, len(c), f"{kind}:{hashlib.new(kind, c).hexdigest()}") for f, c in files.items()]
    monkeypatch.setitem(ORIGINALS, "mnist", replace(ORIGINALS["mnist"], mirrors=mirrors, downloads=tuple(downloads)))


@pytest.fixture
def offered(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server that offers one file as the whole of mnist."""
    server.files = {"one.gz": CONTENT}
    offer(monkeypatch, (server.url,), server.files)
    return server


def target(root: Path) -> Path:
    return root / "MNIST" / "raw" / "one.gz"


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_good_file_arrives_with_progress(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    server.files = {"one.gz": CONTENT, "two.gz": b"small"}
    offer(monkeypatch, (server.url,), server.files, kind)
    seen: list[tuple[str, int, int]] = []
    folder = fetch("mnist", tmp_path, progress=lambda *row: seen.append(row))
    assert folder == tmp_path / "MNIST" / "raw"
    assert sorted(path.name for path in folder.iterdir()) == ["one.gz", "two.gz"]
    assert target(tmp_path).read_bytes() == CONTENT
    assert seen[-2:] == [("one.gz", len(CONTENT), len(CONTENT)), ("two.gz", 5, 5)]
    assert [done for _, done, _ in seen[:-1]] == sorted(done for _, done, _ in seen[:-1])


def test_what_is_there_and_right_is_not_downloaded_again(offered: Server, tmp_path: Path) -> None:
    fetch("mnist", tmp_path)
    fetch("mnist", tmp_path)
    assert len(offered.asked) == 1
    other = tmp_path / "other" / "mnist"
    other.mkdir(parents=True)
    (other / "one.gz").write_bytes(CONTENT)
    assert fetch("mnist", tmp_path / "other") == other  # another accepted layout
    assert len(offered.asked) == 1
    target(tmp_path).write_bytes(CONTENT[:-1] + b"?")
    fetch("mnist", tmp_path)
    assert target(tmp_path).read_bytes() == CONTENT


def test_the_folder_is_the_argument_the_environment_or_the_cache(
    offered: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fetch("mnist") == tmp_path / "xdg/citrus/data/MNIST/raw"
    monkeypatch.setenv("CITRUS_DATA", str(tmp_path / "environment"))
    assert fetch("mnist") == tmp_path / "environment/MNIST/raw"
    assert fetch("mnist", tmp_path / "argument") == tmp_path / "argument/MNIST/raw"


def test_a_wrong_checksum_deletes_the_part_and_shows_both_sums(offered: Server, tmp_path: Path) -> None:
    wrong = CONTENT[:-1] + b"?"
    offered.files["one.gz"] = wrong
    with pytest.raises(CitrusError) as failure:
        fetch("mnist", tmp_path)
    assert hashlib.sha256(wrong).hexdigest() in str(failure.value)
    assert hashlib.sha256(CONTENT).hexdigest() in str(failure.value)
    assert list(target(tmp_path).parent.iterdir()) == []


@pytest.mark.parametrize("content", [b"<html>log in to the hotel network</html>", CONTENT + b"more"])
def test_a_page_of_another_size_is_not_written(offered: Server, tmp_path: Path, content: bytes) -> None:
    offered.files["one.gz"] = content
    with pytest.raises(CitrusError, match=f"offers {len(content)} bytes instead of {len(CONTENT)}"):
        fetch("mnist", tmp_path)
    assert list(target(tmp_path).parent.iterdir()) == []


@pytest.mark.parametrize("mode", ["cuts", "no length"])
def test_a_cut_connection_leaves_nothing_behind(offered: Server, tmp_path: Path, mode: str) -> None:
    offered.mode = mode
    if mode == "no length":
        offered.files["one.gz"] = CONTENT[:-1]
    with pytest.raises(CitrusError, match=r"broke off: \d+ of 1024000 bytes came.*`citrus data fetch mnist` again"):
        fetch("mnist", tmp_path)
    assert list(target(tmp_path).parent.iterdir()) == []
    offered.mode, offered.files["one.gz"] = "good", CONTENT
    fetch("mnist", tmp_path)
    assert target(tmp_path).read_bytes() == CONTENT


def test_a_server_need_not_say_how_long_a_file_is(offered: Server, tmp_path: Path) -> None:
    offered.mode = "no length"
    fetch("mnist", tmp_path)
    assert target(tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("left", [b"something else" * 50, CONTENT + b"more", CONTENT[:1000]])
def test_the_part_that_a_killed_download_left_does_no_harm(offered: Server, tmp_path: Path, left: bytes) -> None:
    part = target(tmp_path).with_name("one.gz.part")
    part.parent.mkdir(parents=True)
    part.write_bytes(left)
    fetch("mnist", tmp_path)
    assert target(tmp_path).read_bytes() == CONTENT
    assert not part.exists()


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/"


def test_offline_names_the_missing_files_and_where_to_put_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, (closed_port(),), {"one.gz": CONTENT, "two.gz": b"small"})
    with pytest.raises(CitrusError, match=r"one\.gz, two\.gz of data set 'mnist' cannot be downloaded") as failure:
        load("mnist", tmp_path, download=True)
    assert str(tmp_path / "MNIST" / "raw") in str(failure.value)
    assert "\n" not in str(failure.value)


def test_a_missing_page_is_named(offered: Server, tmp_path: Path) -> None:
    offered.files.clear()
    with pytest.raises(CitrusError, match=r"one\.gz.*Not Found"):
        fetch("mnist", tmp_path)


def test_the_next_mirror_is_tried(offered: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, (closed_port(), offered.url + "nowhere/", offered.url), {"one.gz": CONTENT})
    fetch("mnist", tmp_path)
    assert target(tmp_path).read_bytes() == CONTENT


def test_a_folder_that_cannot_be_written_is_named(offered: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(CitrusError, match="cannot be written"):
        fetch("mnist", tmp_path / "file")


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(CitrusError, match="did you mean 'cifar10'"):
        fetch("cifar")


def test_the_table_is_complete() -> None:
    lengths = {"sha256": 64, "md5": 32}
    for name, original in ORIGINALS.items():
        assert original.folders, name
        assert original.downloads, name
        assert all(mirror.startswith("http") and mirror.endswith("/") for mirror in original.mirrors)
        for file in original.downloads:
            assert file.size > 0
            kind, _, digest = file.checksum.partition(":")
            assert len(digest) == lengths[kind]
        assert {len(checksum) for checksum in original.contents.values()} <= {0, len("sha256:") + 64}
