"""Contents of pages, made by hand."""

from __future__ import annotations

import json
import re
from typing import Any

from spiritlevel import page
from spiritlevel.analyses.comparison import compare
from spiritlevel.page.content import PageContent
from spiritlevel.results import Report


def compared(a: Report, b: Report) -> PageContent:
    return page.of_comparison(compare({"a.pt": a, "b.pt": b}))


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))
