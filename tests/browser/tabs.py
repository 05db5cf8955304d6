"""Tabs of the browser that notice every error of the page."""

from collections.abc import Callable

from playwright.sync_api import ConsoleMessage, Page, Request

__all__ = ["DESK", "PHONE", "OpenTab", "Tab"]

TIMEOUT_MS = 20_000
PHONE, DESK = 390, 1280


class Tab:
    """A tab of the browser with what went wrong in it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.faults: list[str] = []
        self.offline = False
        """Whether failed requests are expected."""
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", self._check)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not (self.offline and "Failed to load" in message.text):
            self.faults.append(f"{message.type}: {message.text}")

    def _check(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:", "about:", "blob:")):
            self.faults.append(f"request to {request.url}")

    def go(self, route: str = "") -> Page:
        """Opens a route of the page, and waits until it has loaded."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}/#/{route}")
        self.page.wait_for_selector("main .page > :not(.loading)")
        self.page.wait_for_selector(".loading", state="detached")
        return self.page

    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


OpenTab = Callable[..., Tab]
