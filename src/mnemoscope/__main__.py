"""`python -m mnemoscope`: the same as the command `mnemoscope`."""

import sys

from mnemoscope.cli import main

sys.exit(main())
