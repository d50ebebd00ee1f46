"""Import the package before pytest looks for doctests in it.

Else pytest imports `mrreg/split.py` a second time, by path, and puts the module in the place of the function of its
name in the package.
"""

import mrreg  # noqa: F401
