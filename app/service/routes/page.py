"""`/`: the page with live camera and photos; `/card`: the model card. Both are files of this package."""

from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

router = APIRouter(include_in_schema=False)
_FILES: Final = Path(__file__).parents[2] / "static" / "page"
# blob: for videos that the person chooses; they are read from the disk and not sent.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "media-src 'self' blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}


class Assets(StaticFiles):
    """Scripts and styles of the page; browsers revalidate them on each use."""

    def __init__(self) -> None:
        super().__init__(directory=_FILES)

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


@router.get("/")
async def page() -> Response:
    """Live camera and photos."""
    return FileResponse(_FILES / "index.html", media_type="text/html", headers=_HEADERS)


@router.get("/card")
async def card() -> Response:
    """Page with the model card; its Markdown text is `/v1/models/{name}/card`."""
    return FileResponse(_FILES / "card.html", media_type="text/html", headers=_HEADERS)
