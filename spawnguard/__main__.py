"""`python -m spawnguard`."""

import sys

from spawnguard.cli import main

sys.exit(main())
