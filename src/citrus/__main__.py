"""`python -m citrus` is the command `citrus`."""

import sys

from citrus.cli import main

sys.exit(main())
