"""`Analyzer` in several processes: forked after its threads have run, or started with a copy of it."""

import sys
from pathlib import Path

import pytest

from tests.support import ROOT, output_of
from tests.support.albums import write_photos

# Opens an analyzer and uses its threads, then passes it to other processes. A process that hangs is ended.
_PROGRAM = """
import multiprocessing, os, signal, sys
from concurrent.futures import ThreadPoolExecutor
from mien import Analyzer

PHOTO = {photo!r}

def check(pool, analyzer, expected):
    assert list(pool.map(analyzer.analyze, [PHOTO] * 8)) == [expected] * 8

def limit(seconds):
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)  # ends the process, even if it waits in a destructor

def started(analyzer, expected):
    limit(40)
    check(ThreadPoolExecutor(4), analyzer, expected)

def main():
    limit(80)
    analyzer = Analyzer(model={artifact!r}, device="cpu", detector="builtin", threads=4)
    expected = analyzer.analyze(PHOTO)
    assert len(expected) == 1
    pool = ThreadPoolExecutor(4)  # stays open: a thread that ends during a fork may leave a lock of OpenCV locked
    check(pool, analyzer, expected)
    {body}
    check(pool, analyzer, expected)

if __name__ == "__main__":
    main()
"""
_PREFORK = """
    for _ in range(2):
        if os.fork() == 0:
            started(analyzer, expected)
            sys.exit(7)  # a worker of gunicorn ends like this: the interpreter destroys its objects
    for _ in range(2):
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
"""
_SPAWN = """
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=started, args=(analyzer, expected)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0, process.exitcode
"""


@pytest.mark.parametrize("body", [_PREFORK, _SPAWN], ids=["prefork", "spawn"])
def test_an_analyzer_works_in_other_processes(body: str, artifact: Path, tmp_path: Path) -> None:
    if sys.platform == "win32" and body == _PREFORK:
        pytest.skip("Windows has no fork")
    program, photo = tmp_path / "program.py", write_photos(tmp_path, "small.jpg") / "small.jpg"
    text = _PROGRAM.format(photo=str(photo), artifact=str(artifact), body=body.strip())
    program.write_text(text, encoding="utf-8")
    output_of(sys.executable, program, cwd=ROOT, timeout=110)
