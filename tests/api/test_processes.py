"""`Analyzer` in several processes: forked after its threads have run, or started with a copy of it."""

import sys
from pathlib import Path

from tests.support import ROOT, output_of
from tests.support.albums import write_photos

# Opens analyzers and uses their threads, then passes each to other processes. One that hangs tells where, and ends.
_PROGRAM = """
import faulthandler, gc, multiprocessing, os, sys
from concurrent.futures import ThreadPoolExecutor
from mien import Analyzer
from mien.models import manifest

MODEL, PHOTO = sys.argv[1:]

def check(pool, analyzer, expected):
    assert list(pool.map(analyzer.analyze, [PHOTO] * 8)) == [expected] * 8

def started(analyzer, expected):
    faulthandler.dump_traceback_later(100, exit=True)
    gc.collect()  # of what was garbage in the parent: sessions of the round before
    check(ThreadPoolExecutor(4), analyzer, expected)

def main():
    gc.disable()
    pool = ThreadPoolExecutor(4)  # stays open: a thread that ends during a fork may leave a lock of OpenCV locked
    for _ in range(2):
        analyzer = Analyzer(MODEL, device="cpu", detector="builtin", threads=2)
        expected = analyzer.analyze(PHOTO)
        assert len(expected) == 1
        check(pool, analyzer, expected)
        forks = 2 if hasattr(os, "fork") else 0  # none on Windows
        for _ in range(forks):
            if os.fork() == 0:
                manifest.read_manifest = manifest.sha256_of = None  # nothing is parsed or verified again
                started(analyzer, expected)
                sys.exit(7)  # a worker of gunicorn ends like this: the interpreter destroys its objects
        codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(forks)]
        process = multiprocessing.get_context("spawn").Process(target=started, args=(analyzer, expected))
        process.start()
        process.join()
        assert [*codes, process.exitcode] == [7] * forks + [0], (codes, process.exitcode)
        check(pool, analyzer, expected)

if __name__ == "__main__":
    main()
"""


def test_an_analyzer_works_in_other_processes(artifact: Path, tmp_path: Path) -> None:
    program, photo = tmp_path / "program.py", write_photos(tmp_path, "small.jpg") / "small.jpg"
    program.write_text(_PROGRAM, encoding="utf-8")
    output_of(sys.executable, program, artifact, photo, cwd=ROOT, timeout=240)
