"""``python -m spiritlevel``: the command line."""

import os
import sys

if __name__ == "__main__":
    # Python puts the current directory first, where a file of the user's could stand in for one of Python's own.
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
        sys.path.append(sys.path.pop(0))
    from spiritlevel.cli import main

    sys.exit(main())
