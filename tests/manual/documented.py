"""Examples that the README and the manual show."""

import re

from tests.conftest import ROOT

DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
PAGES = {
    str(file.relative_to(ROOT)): file.read_text()
    for file in sorted(
        [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *DOCS.glob("*/*.md"), ROOT / "docusaurus" / "README.md"]
    )
}
SQL = re.findall(
    r"-- (.+?)\n(SELECT.+?);",
    PAGES["docs/how-to/ask-the-log.md"].split("```sql")[1].split("```")[0],
    re.DOTALL,
)
