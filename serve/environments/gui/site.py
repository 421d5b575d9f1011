"""The one site that a task's browser can reach: files of the task's folder, under a made-up origin.

What it does: `Gate` answers every request of a context. `http://task.local/...` comes from the task's folder,
`/_kit/...` from the parts that our pages share; everything else is refused: other hosts, web sockets, paths and links
that lead out of the folder.
What it leaves out: servers with a state of their own; a page keeps its state in the page or in its storage.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Request, Route, WebSocketRoute

ORIGIN = "http://task.local"
PAGES = Path(__file__).parent / "pages"
KIT = PAGES / "_kit"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".woff2": "font/woff2",
}
FILE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Site:
    """The files of one task."""

    folder: Path

    def find(self, url: str) -> Path | None:
        """The file behind a URL, or None: another origin, no such file, or one outside the folder."""
        parts = urlsplit(url)
        if f"{parts.scheme}://{parts.netloc}" != ORIGIN:
            return None
        path = unquote(parts.path).lstrip("/")
        root, path = (KIT, path[5:]) if path.startswith("_kit/") else (self.folder, path)
        if "\0" in path or "\\" in path:
            return None
        root = root.resolve()
        found = (root / path).resolve()
        if found.is_dir():
            found = (found / "index.html").resolve()
        return found if found.is_relative_to(root) and found.is_file() else None


class Gate:
    """Answers all requests of one context: from its site, once it has one; nothing else passes."""

    def __init__(self) -> None:
        self.site: Site | None = None
        self.refused: list[str] = []  # URLs

    async def guard(self, context: "BrowserContext") -> None:
        """Stand between a context and everything it may ask for."""

        async def answer(route: "Route", request: "Request") -> None:
            await self._answer(route, request)

        async def no_socket(socket: "WebSocketRoute") -> None:
            self.refused.append(socket.url)
            await socket.close(code=1008, reason="there is no network here")

        await context.route("**/*", answer)
        await context.route_web_socket("**/*", no_socket)

    async def _answer(self, route: "Route", request: "Request") -> None:
        from playwright.async_api import Error

        found = self.site.find(request.url) if self.site else None
        try:
            if found is not None and found.stat().st_size <= FILE_BYTES:
                await route.fulfill(status=200, content_type=_type(found), body=found.read_bytes())
            elif request.url.startswith(ORIGIN + "/"):
                await route.fulfill(status=404, content_type="text/plain", body="Not found")
            else:
                self.refused.append(request.url)
                if request.is_navigation_request():
                    await route.fulfill(status=204)  # "no content": the window stays where it is
                else:
                    await route.abort("blockedbyclient")
        except Error:
            pass  # the page or the context was closed meanwhile


def _type(path: Path) -> str:
    return TYPES.get(path.suffix.lower(), "application/octet-stream")
