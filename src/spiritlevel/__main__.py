"""``python -m spiritlevel``: the command line."""

import sys

from spiritlevel.cli import main

if __name__ == "__main__":
    sys.exit(main())
