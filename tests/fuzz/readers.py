"""The table of readers: what makes a folder of valid files, which of them becomes hostile, and the call that reads it.

VNN-LIB is only written, never read; the one reader of pictures is TinyImageNet's.
"""

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from support.kept import FIXTURES, kept_network
from support.run_files import write_attack, write_run, write_targets
from torch import nn

from citrus.attacks.alarm import Alarm, load_alarm, save_alarm
from citrus.certify.run_folder import read_rows
from citrus.checker.certificate import read_certificate
from citrus.checker.check import check
from citrus.data import arrays, readers, tinyimagenet
from citrus.data.download import unpack
from citrus.errors import CitrusError
from citrus.networks import Normalize, build, graph, load_network
from citrus.networks.onnx import save_onnx
from citrus.networks.saved import save_network
from citrus.recipes import recipe
from citrus.report.read import read_runs
from citrus.report.write import compose
from citrus.studies.plan import read_plan, runs_sheet
from citrus.studies.rows import StudyRows
from citrus.training import read_config, to_dict
from fuzz.mutate import Edit, bytes_edit, header_edit, json_edit, lines_edit, onnx_edit, tensors_edit

RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Reader:
    name: str
    file: str
    """The hostile file, in a folder."""
    make: Callable[[Path], list[bytes]]
    """Valid contents of it; what else belongs into the folder is written there."""
    read: Callable[[Path], object]
    """Reads that file."""
    edit: Edit = bytes_edit


def onnx_seeds(folder: Path) -> list[bytes]:
    torch.manual_seed(0)
    conv = nn.Conv2d(1, 2, 2, padding=1)
    pool = [nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 3), nn.BatchNorm1d(3)]
    module = nn.Sequential(Normalize((0.5,), (0.3,)), conv, nn.BatchNorm2d(2), nn.ReLU(), *pool).eval()
    save_onnx(graph(module, (1, 4, 4)), folder / "seed.onnx")
    return [(folder / "seed.onnx").read_bytes(), exported()]


def exported() -> bytes:
    """What exporters write around a network: shapes that are computed, padding, branches, constants."""
    from onnx import TensorProto, helper, numpy_helper

    weights = {
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "one": np.array([1.0], np.float32),
        "zero": np.array(0),
        "rest": np.array([-1]),
        "matrix": RNG.normal(size=(9, 3)).astype(np.float32),
        "stats": np.array([1.0], np.float32),
    }
    nodes = [
        helper.make_node("Pad", ["input", "pads"], ["padded"]),
        helper.make_node("AveragePool", ["padded"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("BatchNormalization", ["pooled", *["stats"] * 4], ["normal"]),
        helper.make_node("Relu", ["normal"], ["active"]),
        helper.make_node("Add", ["active", "normal"], ["sum"]),
        helper.make_node("Mul", ["one", "one"], ["scale"]),
        helper.make_node("Div", ["sum", "scale"], ["scaled"]),
        helper.make_node("Transpose", ["scaled"], ["same"], perm=[0, 1, 2, 3]),
        helper.make_node("Shape", ["same"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"]),
        helper.make_node("Unsqueeze", ["batch", "rest"], ["first"]),
        helper.make_node("Concat", ["first", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["same", "target"], ["flat"]),
        helper.make_node("MatMul", ["flat", "matrix"], ["output"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("input", ["batch", 1, 4, 4]), ("output", ["batch", 3]))
    ]
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    body = helper.make_graph(nodes, "exported", ends[:1], ends[1:], held)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return bytes(model.SerializeToString())


def network_seeds(folder: Path) -> list[bytes]:
    made = {"name": "mlp", "shape": [1, 12, 12], "classes": 2, "mean": [0.5], "std": [0.2]}
    save_network(folder / "seed", build("mlp", (1, 12, 12), 2), made, {})
    return [(folder / "seed").read_bytes()]


def images() -> dict[str, np.ndarray]:
    return {"images": RNG.integers(0, 256, (5, 3, 2, 2), np.uint8), "labels": np.arange(5) % 3}


def npz_seeds(folder: Path) -> list[bytes]:
    np.savez(folder / "seed.npz", **images(), classes=np.array(["a", "b", "c"]))  # type: ignore[arg-type]
    np.savez_compressed(folder / "packed.npz", **images())  # type: ignore[arg-type]
    return [(folder / name).read_bytes() for name in ("seed.npz", "packed.npz")]


def safetensors_seeds(folder: Path) -> list[bytes]:
    tensors = {name: torch.from_numpy(array) for name, array in images().items()}
    save_file(tensors, folder / "seed", metadata={"classes": '["a", "b", "c"]'})
    save_file(tensors | {"images": tensors["images"] / 255}, folder / "floats")
    return [(folder / name).read_bytes() for name in ("seed", "floats")]


def idx_seeds(folder: Path) -> list[bytes]:
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, 3, 28, 28) + bytes(3 * 784))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 3) + b"\0\1\2")
    return [(folder / "t10k-images-idx3-ubyte").read_bytes()]


def packed_seeds(folder: Path) -> list[bytes]:
    return [gzip.compress(content) for content in idx_seeds(folder)]


def digits_seeds(folder: Path) -> list[bytes]:
    lines = [",".join(["0"] * 784 + [str(label)]) for label in range(10)] * 5
    return [gzip.compress("\n".join(lines).encode())]


def cifar_seeds(folder: Path) -> list[bytes]:
    batch = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1], b"batch_label": b"made"}
    contents = [pickle.dumps(batch, protocol=protocol) for protocol in (3, 4)]
    for file in readers.BATCHES:
        (folder / file).write_bytes(contents[0])
    return contents


def config_seeds(folder: Path) -> list[bytes]:
    return [json.dumps(to_dict(recipe(name))).encode() for name in ("quickstart", "mnist-0.1-citrus-cpu")]


def plan_seeds(folder: Path) -> list[bytes]:
    return [b'[{"name": "a", "recipe": "quickstart", "set": {"epochs": 30, "method.tau_ratio": 0.4}}, {"name": "b", '
            b'"recipe": "quickstart"}]']  # fmt: skip


def rows_seeds(folder: Path) -> list[bytes]:
    study = StudyRows(folder / "rows.jsonl", "fuzz")
    study.claim({"entries": ["a"]})
    study.add("run", "a", {"recipe": "quickstart", "set": {"epochs": 3}, "clean": 97.5, "train_seconds": 9.0})
    study.add("certification", "a", {"group_size": 5, "certified": 80.0, "images": 100})
    study.add("run", "b", {"failed": "no data", "recipe": "quickstart"})
    return [(folder / "rows.jsonl").read_bytes()]


def read_study(path: Path) -> None:
    study = StudyRows(path, "fuzz")
    if study.rows:
        study.claim({"entries": ["a"]})
    study.about("a", "run")
    runs_sheet(study.rows)


def run_seeds(file: str) -> Callable[[Path], list[bytes]]:
    return lambda folder: [(write_run(folder) / file).read_bytes()]


FOR_ALL, TARGETS = "certify/citrus-0.1-nall-dataset-uap.safetensors", "certify/citrus-0.1-targets.json"


def targets_seeds(folder: Path) -> list[bytes]:
    path = write_run(folder) / TARGETS
    write_targets(path)
    return [path.read_bytes()]


def everybody_seeds(folder: Path) -> list[bytes]:
    path = write_run(folder) / FOR_ALL
    write_attack(path, size=20)
    return [path.read_bytes()]


def read_report(depth: int) -> Callable[[Path], None]:
    return lambda path: print(compose(read_runs([path.parents[depth]])).html, file=io.StringIO())


def certificate_seeds(folder: Path) -> list[bytes]:
    names = [
        f"residual-{name}" for name in ("crown-0.03/group-00000", "interval-0.03/group-00001", "dual-0.02/group-00000")
    ]
    return [(FIXTURES / f"{name}.safetensors").read_bytes() for name in names]


def read_proofs(path: Path) -> None:
    report = check(path, kept_network("residual"))
    read_certificate(path)
    if report.failures:
        raise CitrusError(report.failures[0])


def alarm_seeds(folder: Path) -> list[bytes]:
    images = torch.rand(2, 1, 2, 2)
    labels = torch.tensor([0, 1])
    save_alarm(folder / "seed", Alarm(3, "2 of 2", 0.1, labels, images, labels, images[0], "real", "net.onnx"))
    return [(folder / "seed").read_bytes()]


def picture(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (64, 64, 3), np.uint8)).save(buffer, kind, quality=10)
    return buffer.getvalue()


def picture_seeds(folder: Path) -> list[bytes]:
    contents = [picture("JPEG"), picture("PNG")]
    for place in ("train/n01/images/a.JPEG", "train/n02/images/b.JPEG", "val/images/c.JPEG"):
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[0])
    (folder / "wnids.txt").write_text("n02\nn01\n")
    (folder / "words.txt").write_text("n01\tgoldfish, carp\nn02\tcrane\n")
    (folder / "val/val_annotations.txt").write_text("c.JPEG\tn01\t0\t0\t63\t63\n")
    return contents


def list_seeds(file: str) -> Callable[[Path], list[bytes]]:
    return lambda folder: [(folder / file).read_bytes()] if picture_seeds(folder) else []


def read_pictures(depth: int) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        os.environ["XDG_CACHE_HOME"] = "/dev/null"  # no cache: it would answer without reading
        return tinyimagenet.read("tinyimagenet", path.parents[depth])

    return read


def archive_seeds(kind: str) -> Callable[[Path], list[bytes]]:
    def make(folder: Path) -> list[bytes]:
        buffer = io.BytesIO()
        if kind == "zip":
            with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as pack:
                pack.writestr("top/a.txt", b"a" * 100)
                pack.writestr("top/sub/b.txt", b"b")
        else:
            with tarfile.open(fileobj=buffer, mode="w") as tar:
                for name in ("top/a.txt", "top/sub/b" + "b" * 120):
                    member = tarfile.TarInfo(name)
                    member.size, member.pax_headers = 5, {"comment": "long"}
                    tar.addfile(member, io.BytesIO(b"hello"))
        plain = buffer.getvalue()
        return [plain] if kind == "zip" else [plain, gzip.compress(plain)]

    return make


def read_archive(path: Path) -> None:
    inside = path.parent / "inside"
    inside.mkdir(exist_ok=True)
    unpack(path, inside)


READERS = (
    Reader("onnx", "net.onnx", onnx_seeds, load_network, onnx_edit),
    Reader("network", "model.safetensors", network_seeds, load_network, tensors_edit),
    Reader("npz", "mine.npz", npz_seeds, arrays.read),
    Reader("safetensors", "mine.safetensors", safetensors_seeds, arrays.read, header_edit),
    Reader("idx", "t10k-images-idx3-ubyte", idx_seeds, lambda path: readers.read_mnist("mnist", path.parent)),
    Reader("idx.gz", "t10k-images-idx3-ubyte.gz", packed_seeds, lambda path: readers.read_mnist("mnist", path.parent)),
    Reader("digits", "digits.csv.gz", digits_seeds, lambda path: readers.read_digits("digits", path)),
    Reader("cifar", "data_batch_2", cifar_seeds, lambda path: readers.read_cifar("cifar10", path.parent)),
    Reader("config", "config.json", config_seeds, read_config, json_edit),
    Reader("plan", "plan.json", plan_seeds, read_plan, json_edit),
    Reader("study rows", "rows.jsonl", rows_seeds, read_study, lines_edit),
    Reader("group rows", "citrus-0.1-n5-dataset.jsonl", run_seeds("certify/citrus-0.1-n5-dataset.jsonl"), read_rows,
           lines_edit),
    Reader("run config", "config.json", run_seeds("config.json"), read_report(0), json_edit),
    Reader("run summary", "summary.json", run_seeds("summary.json"), read_report(0), json_edit),
    Reader("run metrics", "metrics.jsonl", run_seeds("metrics.jsonl"), read_report(0), lines_edit),
    Reader("run groups", "certify/citrus-0.1-n5-dataset.jsonl", run_seeds("certify/citrus-0.1-n5-dataset.jsonl"),
           read_report(1), lines_edit),
    Reader("run certification", "certify/citrus-0.1-n5-dataset.json", run_seeds("certify/citrus-0.1-n5-dataset.json"),
           read_report(1), json_edit),
    Reader("perturbation", "uap/0.1.safetensors", run_seeds("uap/0.1.safetensors"), read_report(1), tensors_edit),
    Reader("perturbation for all", FOR_ALL, everybody_seeds, read_report(1), tensors_edit),
    Reader("targets", TARGETS, targets_seeds, read_report(1), json_edit),
    Reader("certificate", "group-00000.safetensors", certificate_seeds, read_proofs, tensors_edit),
    Reader("alarm", "group-00003.safetensors", alarm_seeds, load_alarm, tensors_edit),
    Reader("pictures", "train/n01/images/a.JPEG", picture_seeds, read_pictures(3)),
    Reader("picture list", "val/val_annotations.txt", list_seeds("val/val_annotations.txt"), read_pictures(1)),
    Reader("picture classes", "wnids.txt", list_seeds("wnids.txt"), read_pictures(0)),
    Reader("zip", "made.zip", archive_seeds("zip"), read_archive),
    Reader("tar", "made.tar.gz", archive_seeds("tar"), read_archive),
)  # fmt: skip
BY_NAME = {reader.name: reader for reader in READERS}
