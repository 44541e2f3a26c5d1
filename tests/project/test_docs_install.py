"""No text says to install ingestd from a package index, because no index has it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
FROM_INDEX = re.compile(r"""pip install(?:\s+-\S+)*\s+['"]?ingestd(?![\w./-])""")


def test_no_text_says_to_install_ingestd_from_an_index() -> None:
    assert FROM_INDEX.search("pip install --quiet " + "'ingestd[nats]'")
    assert not FROM_INDEX.search("pip install ./ingestd-1.whl, pip install ingestd-1.whl, pip install '.[nats]'")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [ROOT / name for name in listed.split("\0") if name]
    texts = {file: file.read_text(errors="replace") for file in files if file.is_file()}
    assert len(texts) > 400
    assert [str(file) for file, text in texts.items() if FROM_INDEX.search(text)] == []
