"""The code of the pages in apps/guides, which tests run unchanged."""
import os
import pathlib
import re

GUIDES = pathlib.Path(os.environ["DSCKPT_SOURCE"]) / "apps/guides"


def blocks(page, heading=None):
    """The code of a page, or of a section of it, block by block."""
    text = (GUIDES / page).read_text()
    if heading is not None:
        text = re.search(rf"(?ms)^## {re.escape(heading)}.*?(?=^## |\Z)", text)[0]
    return re.findall(r"(?ms)^```\w*\n(.*?)^```", text)
