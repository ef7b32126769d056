"""`mnemoscope serve`: serves the pages of an atlas until Ctrl-C."""

import os
import sys
from threading import Thread
from typing import Annotated

import typer

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.runner import emit
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.mining_options import AUTO
from mnemoscope.foundation.options.model_options import AS_USUAL, ModelOptions


def serve(
    atlas: arg.AtlasFolder,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="The model that was mined: for traces, changes and audits."),
    ] = None,
    force_model: Annotated[
        bool, typer.Option("--force-model", help="Use a model that is not the one mined; every page says so.")
    ] = False,
    other: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A second model: a page shows what differs on a prompt.")
    ] = None,
    other_adapter: Annotated[
        str | None, typer.Option(metavar="ID|FOLDER", help="The second is MODEL with this PEFT adapter.")
    ] = None,
    device: arg.Device = AUTO,
    *,
    opening: ModelOptions,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Any but this machine's own address needs an access token, which is generated."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", help="0: any free port.")] = 8765,
    annotations: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The file of judgements.", show_default="ATLAS/annotations.sqlite"),
    ] = None,
    root_path: Annotated[
        str, typer.Option(metavar="PATH", help="The path under which a proxy shows the pages.", show_default=False)
    ] = "",
    public_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where readers find the pages behind a proxy: https://HOST/PATH."),
    ] = None,
    trust_proxy: Annotated[
        bool, typer.Option("--trust-proxy", help="Trust the path that a proxy sends (X-Forwarded-Prefix).")
    ] = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the pages in a browser, if there is one here.")] = False,
    json: arg.Json = False,
) -> None:
    """Serve an atlas as web pages: browse, search, judge.

    With a model also: trace, intervene, audit. Serves until Ctrl-C, to this machine alone unless --host says otherwise;
    then the address that is printed carries an access token. Browsing needs no model.

    Example: mnemoscope serve atlas --model gpt2
    """
    if not 0 <= port <= 65_535:
        raise OptionError(f"--port {port} is impossible; it must be 0 to 65535")
    if force_model and model is None:
        raise OptionError("--force-model needs --model; name the model to use")
    if other is not None and other_adapter is not None:
        raise OptionError("--other and --other-adapter both name the second model; give one of them")
    if (other is not None or other_adapter is not None) and model is None:
        raise OptionError(f"--other{'-adapter' if other is None else ''} needs --model; name the model to compare with")
    if opening != AS_USUAL and model is None:
        raise OptionError(f"{opening.words()[0]} needs --model; name the model to use")
    from mnemoscope.web.settings import Settings, listen

    settings = Settings(
        atlas,
        model,
        force_model,
        host,
        port,
        annotations=annotations,
        device=device,
        opening=opening,
        root_path=root_path,
        public_url=public_url,
        trust_proxy=trust_proxy,
        other=other,
        other_adapter=other_adapter,
    )
    listen(settings).close()  # a wrong address is told before the pages are loaded
    arg.check_mined(atlas, model, opening)
    from mnemoscope.web.serving import serve as run

    def ready(settings: Settings) -> None:
        if open_:
            _open_browser(settings.url)
        if json:
            place = {"url": settings.url, "host": settings.host, "port": settings.port, "token": settings.token}
            emit({**place, "atlas": str(settings.atlas), "model": settings.model, "annotations": annotations})
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
