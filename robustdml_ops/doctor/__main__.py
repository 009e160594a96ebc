"""``python -m robustdml_ops.doctor [--json]``."""

import sys

from robustdml_ops.doctor import main

sys.exit(main(sys.argv[1:]))
