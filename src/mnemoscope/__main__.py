"""Where the command `mnemoscope`, and `python -m mnemoscope`, begin.

Imports nothing of size before it can answer Ctrl-C, SIGTERM and SIGUSR1: the imports of the verbs are where the first
moments go.
"""

import sys


def main() -> int:
    """Runs the command line on `sys.argv` and returns its exit code."""
    try:
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


if __name__ == "__main__":
    sys.exit(main())
