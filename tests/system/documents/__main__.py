# SPDX-License-Identifier: Apache-2.0
"""python -m tests.system.documents FOLDER [--json FILE] [--only ID]...

Runs the blocks of the documents in FOLDER (README.md). Exit code 0 if all that
are run passed and each document is the one of the manifest, 1 if not, 2 for
arguments that mean nothing.
"""

import argparse
import json
import sys

from tests.system.documents import manifest
from tests.system.documents import runner


def _line(cells, widths):
    return "  ".join(cell.ljust(width)
                     for cell, width in zip(cells, widths)).rstrip()


def table(rows):
    """The rows as text for people, and below it what went wrong."""
    head = ("document", "lines", "kind", "result", "seconds")
    cells = [(row["document"], "{}–{}".format(*row["lines"]), row["kind"],
              row["result"],
              "" if row["seconds"] is None else f"{row['seconds']:.1f}")
             for row in rows]
    widths = [max(len(line[at]) for line in [head, *cells])
              for at in range(len(head))]
    lines = [_line(line, widths) for line in [head, *cells]]
    for row in rows:
        if row["result"] in runner.BAD:
            lines += ["", f"{row['id']} {row['result']}: {row['error']}"]
    counts = {}
    for row in rows:
        counts[row["result"]] = counts.get(row["result"], 0) + 1
    lines += ["", ", ".join(f"{count} {result}"
                            for result, count in counts.items())]
    return "\n".join(lines)


def main(argv=None, documents=manifest.DOCUMENTS):
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.documents",
        description="Runs the code blocks of documents on a simulated GPU.")
    parser.add_argument("folder", help="where the documents are")
    parser.add_argument("--json", metavar="FILE", help="the rows, too")
    parser.add_argument(
        "--only", action="append", metavar="ID",
        help="a document, or DOCUMENT:FIRST_LINE of a block")
    args = parser.parse_args(argv)
    known = {document.id_of(block) for document in documents
             for block in document.blocks}
    names = {document.name for document in documents}
    for asked in args.only or ():
        if asked not in known | names:
            parser.error(f"there is no {asked!r}; the documents are "
                         + ", ".join(sorted(names)))
    rows = []
    for document in documents:
        only = None
        if args.only and document.name not in args.only:
            only = {asked for asked in args.only
                    if asked.startswith(document.name + ":")}
            if not only:
                continue
        rows += runner.run_document(document, args.folder, only)
    print(table(rows))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as stream:
            json.dump(rows, stream, indent=1)
    return int(any(row["result"] in runner.BAD for row in rows))


if __name__ == "__main__":
    sys.exit(main())
