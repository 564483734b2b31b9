#!/usr/bin/python@PYTHON@ -IS
# Started by /usr/bin/vitald. Libraries come only from this folder and from the interpreter: no
# environment variables, no user or site packages, no .pth files. The name of this file becomes the
# name of the process.
import sys

own = __file__.rpartition("/bin/")[0]
sys.path[:0] = [own, own.rpartition("/")[0] + "/common"]

from vitald.cli import main  # noqa: E402 - needs the path set above

sys.exit(main())
