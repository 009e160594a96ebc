"""``python -m robustdml_ops.doctor``."""

import sys

from robustdml_ops.doctor.command import main

sys.exit(main(sys.argv[1:]))
