"""``python -m specbench.scoring``, as runs of specbench 0.1 say it: :mod:`specbench.evals` by its old name."""

import sys

from specbench.evals.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
