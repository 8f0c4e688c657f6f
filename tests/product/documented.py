"""Examples that the README shows."""

import re

from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()
SQL = re.findall(r"-- (.+?)\n(SELECT.+?);", README.split("```sql")[1].split("```")[0], re.DOTALL)
