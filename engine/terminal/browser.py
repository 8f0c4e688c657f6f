"""Opens an address for a person who sits in front of a display, and for nobody else."""

import os
import sys
import threading
import webbrowser
from collections.abc import Mapping
from typing import TextIO


def open_for_person(address: str, stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """In the background, because a browser may take its time. False if nobody would see it."""
    browser = _browser(environment) if stream.isatty() else None
    if browser is None:
        return False
    threading.Thread(target=browser.open, args=(address,), daemon=True).start()
    return True


def _browser(environment: Mapping[str, str]) -> webbrowser.BaseBrowser | None:
    """The one that was chosen, or one with a window: a text browser would take the terminal over."""
    is_chosen = bool(environment.get("BROWSER"))
    has_display = sys.platform == "darwin" or environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY")
    if not is_chosen and not has_display:
        return None
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return None
    return found if is_chosen or type(found) is not webbrowser.GenericBrowser else None
