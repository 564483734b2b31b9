#!/usr/bin/python@PYTHON@ -IS
# Started by /usr/bin/vitald. Its libraries come from here and from the interpreter, and from
# nowhere else: no variable, no user's or site's folder, no .pth file. The name of this file is the
# name of the process.
import sys

own = __file__.rpartition("/bin/")[0]
sys.path[:0] = [own, own.rpartition("/")[0] + "/common"]

from vitald.cli import main  # noqa: E402 - found by the line above

sys.exit(main())
