"""``cd tests && python -m graders`` renews the block of docs/concepts/grading.md."""

from graders import PAGE, written

PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
