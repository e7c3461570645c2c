"""The page in Firefox and in WebKit, the engine of Safari: the service, local mode, and the sample, which repeats."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.browser.conftest import serving
from tests.e2e.browser.test_local import needs_runtime
from tests.support import eventually
from tests.support.engines import firefox, webkit

# WebKitGTK sometimes loses the result of a script, or hangs, so that its driver does not answer: in 3 of 20 runs
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.flaky(reruns=2, only_rerun=[httpx.ReadTimeout, "Could not parse script result"]),
    needs_runtime,
]
CLICK = "document.getElementById('{}').click()"
LABEL = "document.querySelector('#faces .face:not(.away) .face-label')?.textContent"
POSITION_S = "document.getElementById('video').currentTime"


@pytest.mark.parametrize("engine", [firefox, webkit])
def test_the_service_and_local_mode_label_the_sample_which_repeats(engine: Any, tmp_path: Path) -> None:
    (profile := tmp_path / "profile").mkdir()
    with serving(tmp_path / "served") as site, engine(profile, site.url) as page:
        eventually(lambda: page("document.documentElement.dataset.ready === ''"), timeout_s=60)
        assert page("crossOriginIsolated")
        page(CLICK.format("sample-clip"))
        eventually(lambda: page(LABEL), timeout_s=60)
        page(CLICK.format("local"))
        eventually(lambda: page("document.getElementById('place').textContent").startswith("Ready"), timeout_s=120)
        page(CLICK.format("stop"))
        page(CLICK.format("sample-clip"))
        eventually(lambda: page(LABEL), timeout_s=120)
        page(f"{POSITION_S} = 9")
        eventually(lambda: page(POSITION_S) >= 9, timeout_s=60)
        eventually(lambda: 0.2 < page(POSITION_S) < 5, timeout_s=60)
        page(CLICK.format("stop"))
