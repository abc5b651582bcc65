"""The two engines, each in a process of its own: python -m fuzz.engines ENGINE READER FOLDER SECONDS SEED"""

import importlib.util
import sys
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzz.watch import Watch

INSTRUMENTED = ["citrus", "json", "pickletools", "tarfile", "zipfile", "gzip", "numpy.lib", "PIL", "onnx.numpy_helper"]
ENGINES = ("hypothesis", "atheris")


def with_hypothesis(watch: "Watch", seconds: float, number: int) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        batch(watch, number)
        number += 1
    watch.save(always=True)


def batch(watch: "Watch", number: int, examples: int = 200) -> None:
    """Some edits of a valid file, drawn by Hypothesis."""
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis import strategies as st

    checks = list(HealthCheck)

    @seed(number)
    @settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=checks
    )
    @given(st.sampled_from(watch.seeds), st.integers(1, 4), st.randoms(use_true_random=False))
    def once(content: bytes, edits: int, random: Random) -> None:
        for _ in range(edits):
            content = watch.edited(content, random)
        watch.try_one(content)

    once()


def with_atheris(watch: "Watch", seconds: float, number: int) -> None:
    """What reaches new code is kept and changed again: by our edits, and by libFuzzer's own. Never returns."""
    import atheris

    corpus = watch.folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for k, content in enumerate(watch.seeds):
        (corpus / f"seed{k}").write_bytes(content)

    def mutate(content: bytes, most: int, number: int) -> bytes:
        if number % 2:
            return watch.edited(content, Random(number))[:most]
        return bytes(atheris.Mutate(content, len(content)))[:most]

    longest = 4 * max(map(len, watch.seeds)) + 4096
    flags = [f"-max_total_time={max(1, round(seconds))}", f"-seed={number}", f"-max_len={longest}", "-rss_limit_mb=0"]
    watch.save(always=True)
    words = ["fuzz", str(corpus), *flags, "-timeout=60", "-verbosity=0", "-print_final_stats=0"]
    atheris.Setup(words, watch.try_one, custom_mutator=mutate)
    atheris.Fuzz()


def have_atheris() -> bool:
    return importlib.util.find_spec("atheris") is not None


def main() -> None:
    engine, name, folder, seconds, number = sys.argv[1:]
    warnings.simplefilter("ignore")
    watched = nullcontext()
    if engine == "atheris":
        import atheris

        watched = atheris.instrument_imports(include=INSTRUMENTED)
    with watched:  # atheris sees the code of what is imported now
        from fuzz.readers import BY_NAME
        from fuzz.watch import Watch
    watch = Watch(BY_NAME[name], Path(folder))
    watch.limit()
    run = {"hypothesis": with_hypothesis, "atheris": with_atheris}[engine]
    run(watch, float(seconds), int(number))


if __name__ == "__main__":
    main()
