"""`mnemoscope serve`: serves the pages of an atlas until Ctrl-C."""

import os
import sys
from threading import Thread

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.runner import emit
from mnemoscope.foundation.options.declared import DeclaredOptions, option
from mnemoscope.web.settings import Settings, listen


class ServeOptions(DeclaredOptions):
    settings: Settings
    open: bool = option(False, "Open the pages in a browser, if there is one here.")


def serve(options: ServeOptions, *, json: bool) -> None:
    """Serve an atlas as web pages: browse, search, judge.

    With a model also: trace, intervene, audit. Serves until Ctrl-C, to this machine alone unless --host says otherwise;
    then the address that is printed carries an access token. Browsing needs no model.

    Example: mnemoscope serve atlas --model gpt2
    """
    settings = options.settings
    listen(settings).close()  # a wrong address is told before the pages are loaded
    arg.check_mined(settings.atlas, settings.model, settings.opening)
    from mnemoscope.web.serving import serve as run

    def ready(settings: Settings) -> None:
        if options.open:
            _open_browser(settings.url)
        if json:
            place = {"url": settings.url, "host": settings.host, "port": settings.port, "token": settings.token}
            emit({**place, "atlas": str(settings.atlas), "model": settings.model, "annotations": settings.annotations})
            return
        print(f"open {settings.url} in a browser; Ctrl-C ends it", flush=True)

    run(settings, ready=ready)


def _open_browser(url: str) -> None:
    """Opens the address beside the server. Does nothing without a display: a text browser would take over the
    terminal.
    """
    if sys.platform != "darwin" and not any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")):
        print("no browser is opened: none can be shown here", file=sys.stderr)
        return
    import webbrowser

    Thread(target=webbrowser.open, args=(url,), daemon=True).start()
