"""`/docs`: the API description as a page that works offline, with Swagger UI from an installed package."""

from importlib.resources import files
from pathlib import Path
from typing import Final

from fastapi import APIRouter, HTTPException
from starlette.responses import FileResponse, Response

router = APIRouter(include_in_schema=False)
_STATIC: Final = Path(__file__).parents[2] / "static"
_ASSETS: Final = Path(str(files("fastapi_offline"))) / "static"
_SERVED: Final = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
# Swagger UI sets style attributes and has its icons in data URLs.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@router.get("/docs")
async def page() -> Response:
    """HTML page."""
    return FileResponse(_STATIC / "docs.html", media_type="text/html", headers={"Content-Security-Policy": _POLICY})


@router.get("/docs/page.js")
async def script() -> Response:
    """Script that loads the API description."""
    return FileResponse(_STATIC / "docs.js", media_type="text/javascript")


@router.get("/docs/assets/{name}")
async def asset(name: str) -> Response:
    """Script or style sheet of Swagger UI."""
    if name not in _SERVED:
        raise HTTPException(404)
    return FileResponse(_ASSETS / name, media_type=_SERVED[name], headers={"Cache-Control": "max-age=86400"})
