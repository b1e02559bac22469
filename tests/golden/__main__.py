"""Write the golden set anew."""

from tests.golden.files import FOLDER, text
from tests.golden.written import FORMATS

for name, make in FORMATS.items():
    (FOLDER / f"{name}.json").write_text(text(make()), encoding="utf-8")
