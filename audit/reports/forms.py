"""The forms in which a report is written, each of which carries its data, and how the data is found in them again. Pure."""

import base64
import json
import re
from collections.abc import Callable, Mapping

from audit.errors import FormatError
from audit.reports import oscal, page
from audit.reports.document import ControlReport

FORMS: Mapping[str, Callable[[ControlReport], bytes]] = {
    "html": page.to_bytes,
    "json": ControlReport.to_bytes,
    "oscal": oscal.to_bytes,
}
FILE_BYTES_MAX = 2**28

_IN_PAGE = re.compile(rb'href="data:application/json;base64,([A-Za-z0-9+/=]+)"')


class ReportFileError(FormatError):
    """The file is not a report of this product."""


def data_in(content: bytes) -> tuple[str, bytes]:
    """The form, and the report as JSON."""
    if len(content) > FILE_BYTES_MAX:
        raise ReportFileError("The file is too large for a report")
    try:
        if content.startswith(b"<!DOCTYPE html>"):
            (line,) = _IN_PAGE.findall(content)
            return "html", base64.b64decode(line, validate=True)
        if content.startswith(b'{"assessment-results"'):
            resources = json.loads(content)["assessment-results"]["back-matter"]["resources"]
            (line,) = [each["base64"]["value"] for each in resources if "base64" in each]
            return "oscal", base64.b64decode(line, validate=True)
    except (ValueError, KeyError, TypeError, RecursionError) as wrong:
        raise ReportFileError("The file does not carry a report's data") from wrong
    return "json", content
