"""Kilobytes that a browser loads on its first and second visit of the page, in local mode and without it.

    make runtime
    python -m benchmarks.visits

The service and Chromium run on this machine; counted are the bodies of responses as sent, after compression. It needs
the packages of the tests, and Chromium.
"""

from playwright.sync_api import Page, Request, sync_playwright

from benchmarks.background import service
from benchmarks.results import publish
from tests.browser import WAIT_MS, launch

MODELS_LOADED = "document.getElementById('runs').textContent.includes('in this tab (')"


def visit_kb(page: Page, address: str, *, local: bool) -> float:
    """Open the page, and in local mode the models. Returns the kilobytes of all responses."""
    requests: list[Request] = []
    page.on("requestfinished", lambda request: requests.append(request))  # noqa: PLW0108 - Playwright marks the listener
    page.goto(address, timeout=WAIT_MS)
    page.wait_for_load_state("networkidle")
    if local:
        page.evaluate("() => { const box = document.getElementById('local'); box.checked = false; box.click(); }")
        while not page.evaluate(MODELS_LOADED):
            page.wait_for_timeout(200)
    return round(sum(request.sizes()["responseBodySize"] for request in requests) / 1000, 1)


def main() -> None:
    """Run the benchmark."""
    results: dict[str, float] = {}
    with service() as running, sync_playwright() as driver, launch(driver.chromium) as browser:
        for local in (False, True):
            context = browser.new_context()
            for name in ("first", "second"):
                page = context.new_page()
                address = f"http://127.0.0.1:{running.port}/"
                results[f"{name}_visit{'_local' if local else ''}_kb"] = visit_kb(page, address, local=local)
                page.close()
    publish(results, None)


if __name__ == "__main__":
    main()
