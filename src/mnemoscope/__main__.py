"""Where the command `mnemoscope`, and `python -m mnemoscope`, begin.

Imports nothing of size before it can answer Ctrl-C, SIGTERM and SIGUSR1: the imports of the verbs are where the first
moments go.
"""

import signal
import sys
import time
from types import FrameType

_pressed = [float("-inf")]


def _press(_number: int, _frame: FrameType | None) -> None:
    """Ctrl-C, but within a second not once more: the line that answers it is being written."""
    if time.monotonic() - _pressed[0] > 1:
        _pressed[0] = time.monotonic()
        raise KeyboardInterrupt


def main() -> int:
    """Runs the command line on `sys.argv` and returns its exit code."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _press)
        from mnemoscope.foundation.progress import StopSignal, end_at_signals

        with end_at_signals():
            try:
                from mnemoscope.cli import main as run

                return run()
            except StopSignal as stop:
                print(f"mnemoscope: {stop}", file=sys.stderr, flush=True)
                return int(stop.code or 0)
    except KeyboardInterrupt:
        # Within a verb the frame says this, with --json and --debug; here there is no verb yet.
        print("mnemoscope: stopped by Ctrl-C", file=sys.stderr, flush=True)
        return 130
    finally:
        if signal.getsignal(signal.SIGINT) is _press:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
