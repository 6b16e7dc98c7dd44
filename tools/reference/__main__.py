"""``python -m tools.reference``: every table, figure and page that is made from results/reference.

python -m tools.reference            # write what has changed
python -m tools.reference --check    # exit 1 and name each file that would change
python -m tools.reference --html     # a page as well: results/reference/report.html
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.reference import check_all, is_checkout, make_all, publish_all


def main(arguments: list[str] | None = None) -> None:
    """Make or check what is committed in the checkout that is the working directory."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if it is stale")
    parser.add_argument("--html", action="store_true", help="write the page, too")
    options, root = parser.parse_args(arguments), Path.cwd()
    if not is_checkout(root):
        raise SystemExit(f"{root}: expected the root of a checkout, with results/reference")
    if options.check:
        wrong = [f"{place}: not what its sources give" for place in check_all(root)]
        print("\n".join(wrong) or "Nothing would change in results/reference, README.md and docs")
        raise SystemExit(bool(wrong))
    for path in make_all(root):
        print(f"{path}: written")
    if options.html:
        print(f"Page: {publish_all(root)}")


if __name__ == "__main__":
    main()
