"""``python -m robustdml_ops.doctor [--json]``."""

import sys

from robustdml_ops.doctor import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
