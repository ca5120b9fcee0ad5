#!/usr/bin/env python3
"""docs/zoo.md: a table of all shipped specs, from the files in specs/ and the mask pictures of `attngen show --mask`.

    tools/zoo.py [--check] [--attngen build/attngen]

Without --check it writes the page; with it it compares and says what differs.  Python's standard library alone.  A new spec appears by itself, drawn with its
defaults; PICTURES has sizes, parameters and captured tensors for those that need others to be seen in a few lines."""

import argparse
import difflib
import html
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "zoo.md"
SIDE = 24  # tokens of a picture

DOCS = [i // 6 for i in range(SIDE)]
CURVE = [(sum((i >> 2 * n & 1) << n for n in range(3)), sum((i >> 2 * n + 1 & 1) << n for n in range(3))) for i in range(64)]


def flags(*set_):
    return [[i in set_ for i in range(SIDE)]]


# name: (options of show, captured tensors).  Ints and bools as nested lists.
PICTURES = {
    "bigbird": (["-D", "size=3", "-D", "blocks=8"], {"marked": flags(0), "random": [[[5, 2, 2], [7, 3, 3], [0, 6, 6], [1, 1, 5], [2, 2, 7], [0, 2, 2], [1, 3, 3], [4, 0, 0]]]}),
    "block_causal": (["-D", "frame=6"], {}),
    "block_diffusion": (["-D", "block=4"], {}),
    "causal_top_left": (["--sq", "12"], {}),
    "chunked_local": (["-D", "chunk=8"], {}),
    "criss_cross": (["-D", "width=6"], {}),
    "dilated": (["-D", "segment=12", "-D", "rate=3"], {}),
    "dilated_window": (["-D", "window=8", "-D", "rate=3"], {}),
    "document": ([], {"doc": [DOCS]}),
    "document_full": ([], {"doc": [DOCS]}),
    "document_prefix": (["-D", "prefix=3", "-D", "documents=4"], {"doc": DOCS, "begin": [0, 6, 12, 18]}),
    "document_starts": (["-D", "documents=4"], {"doc": DOCS, "begin": [0, 6, 12, 18]}),
    "draft_blocks": (["-D", "prefix=8", "-D", "block=4", "--sq", "16"], {}),
    "evoformer_msa_row": ([], {"keep": [[[i < 18 for i in range(SIDE)]]]}),
    "evoformer_row": ([], {"keep": [[i < 18 for i in range(SIDE)]]}),
    "flamingo": (["-D", "images=3", "--sq", "24", "--sk", "12"], {"image": [i // 4 for i in range(12)], "reach": [[2, 9], [9, 16], [16, 24]]}),
    "gemma2": (["-D", "window=6"], {}),
    "gemma3": (["-D", "window=6"], {}),
    "gpt_oss": (["-D", "window=6"], {}),
    "jagged_cross": (["--sq", "16"], {"rows": [12], "length": [18]}),
    "key_padding": ([], {"length": [18]}),
    "left_padding": ([], {"padding": [6]}),
    "local_global": (["-D", "window=3", "-D", "first=2"], {}),
    "longformer": (["-D", "window=3"], {"marked": flags(0, 13)}),
    "longnet": (["-D", "segment=6"], {}),
    "modality": ([], {"image": [[0] * 3 + [1] * 6 + [0] * 4 + [2] * 6 + [0] * 5]}),
    "moba": (["--sk", "24", "-D", "block=16"], {}),
    "multi_item": ([], {"prompt": [6], "item": [[0] * 6 + [1] * 6 + [2] * 7 + [3] * 5]}),
    "natten_1d": (["-D", "size=7"], {}),
    "natten_2d": (["-D", "width=6", "-D", "size=3"], {}),
    "natten_3d": (["-D", "height=3", "-D", "width=3", "-D", "size=3", "--sk", "36"], {}),
    "natten_morton": (["-D", "width=8", "-D", "size=3", "--sk", "64"], {"place": CURVE}),
    "natten_tiled": (["-D", "width=6", "-D", "tile=2", "-D", "size=3", "--sk", "36"], {}),
    "packed_equal": (["-D", "length=8"], {}),
    "paligemma": ([], {"prefix": [8], "length": [20]}),
    "permutation": ([], {"rank": [[(7 * i + 3) % SIDE for i in range(SIDE)]]}),
    "prefix_lm": ([], {"prefix": [8]}),
    "prefix_lm_scalar": (["-D", "prefix=8"], {}),
    "shared_prefix": (["-D", "documents=4"], {"doc": DOCS, "begin": [0, 6, 12, 18], "end": [6, 12, 18, 24], "prefix": [0, 0, 2, 0]}),
    "sink_window": (["-D", "window=6", "-D", "sinks=2"], {}),
    "sliding_window": (["-D", "window=6"], {}),
    "sparse_fixed": (["-D", "stride=6", "-D", "tail=1"], {}),
    "sparse_strided": (["-D", "stride=6"], {}),
    "sta_3d": (["-D", "tile=2", "-D", "frames=1", "-D", "rows=4", "-D", "cols=4", "-D", "t=1", "-D", "y=3", "-D", "x=2", "-D", "text=3", "--sk", "36"], {}),
    "streaming_chunks": (["-D", "chunk=4", "-D", "left=2"], {}),
    "svg_spatial": (["-D", "prefix=16", "-D", "frame=64", "--sk", "336"], {}),
    "svg_temporal": (["-D", "prefix=4", "-D", "frame=10", "-D", "frames=4", "-D", "width=1", "--sk", "44"], {}),
    "tree_decode": (
        ["-D", "nodes=8", "--sq", "8"],
        {"prefix": [16], "ancestor": [[[j in path for j in range(8)] for path in ({0}, {0, 1}, {0, 2}, {0, 1, 3}, {0, 1, 4}, {0, 2, 5}, {0, 1, 3, 6}, {0, 2, 5, 7})]]},
    ),
    "triangle_attention": ([], {"keep": [[[i < 18 for i in range(SIDE)]]]}),
    "vsa": (["-D", "tile=16", "-D", "tiles=2", "--sk", "24"], {"fill": [12, 8]}),
    "window_both": (["-D", "window=4"], {}),
    "window_inclusive": (["-D", "window=6"], {}),
    "window_sides": (["-D", "left=6", "-D", "right=2"], {}),
}

HEAD = """# The zoo

The specs in `specs/`, made from the files by `tools/zoo.py`: what each is and where it comes from, what it computes, and which keys a query sees. `attngen emit NAME` takes each by its
name, and all go through `attngen check` on both kernel paths.

Rows of a picture are queries, columns keys, from the top left; two rows are one line of text. Pictures are small, so sizes and parameters are not the defaults; with more than 64 tokens a
mark is a square of them, seen at least in part. They are drawn by `attngen show NAME --mask`, and without one every query sees every key.

| spec | what it is | in the file | mask |
|---|---|---|---|
"""


# ---- pictures


def shape_of(x):
    return (len(x), *shape_of(x[0])) if isinstance(x, (list, tuple)) else ()


def flat(x):
    return [y for part in x for y in flat(part)] if isinstance(x, (list, tuple)) else [x]


def write_npy(path, nested):
    values = flat(nested)
    kind = "|b1" if isinstance(values[0], bool) else "<i4"
    dims = "".join(f"{n}, " for n in shape_of(nested))
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({dims}), }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    data = struct.pack(f"<{len(values)}{'?' if kind == '|b1' else 'i'}", *values)
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + data)


def halves(rows):
    """Two rows of #, + and . as one line of half blocks."""
    rows = rows + ["." * len(rows[0])] * (len(rows) % 2)
    mark = {(False, False): "·", (True, False): "▀", (False, True): "▄", (True, True): "█"}
    return ["".join(mark[a != ".", b != "."] for a, b in zip(up, down)) for up, down in zip(rows[::2], rows[1::2])]


def pictures(attngen, name):
    """[(branch or "", lines)]"""
    options, inputs = PICTURES.get(name, ([], {}))
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for tensor, nested in inputs.items():
            path = pathlib.Path(folder) / f"{tensor}.npy"
            write_npy(path, nested)
            files += ["--in", f"{tensor}={path}"]
        size = [] if "--sk" in options else ["--sk", str(SIDE)]
        said = subprocess.run([attngen, "show", name, "--mask", "-a", "sm_90", *size, *options, *files], capture_output=True, text=True)
    if said.returncode:
        raise SystemExit(f"{name}: {said.stderr}")
    blocks = said.stdout.rstrip("\n").split("\n\n")  # head, picture, head, picture, ...
    found = []
    for head, rows in zip(blocks[::2], blocks[1::2]):
        branch = head.split(":")[0].partition(", branch ")[2]
        found.append((branch, rows.split("\n")))
    return found


def mask_cell(attngen, name, text):
    if "mask:" not in text:
        return ""
    cells = []
    for branch, rows in pictures(attngen, name):
        everything = all(set(row) == {"#"} for row in rows)
        title = f"{branch}<br>" if branch else ""
        cells.append(title + ("all" if everything else "<pre>" + "<br>".join(halves(rows)) + "</pre>"))
    return "".join(cells)


# ---- text


def parts(text):
    """(the doc as one line, the lines of the file without its name and doc)"""
    doc, rest, inside = [], [], None
    for line in text.rstrip("\n").split("\n"):
        inside = inside if line.startswith(" ") else line.partition(":")[0]
        if inside == "doc":
            doc.append(line.removeprefix("doc:").strip())
        elif inside != "attention":
            rest.append(line)
    return " ".join(x for x in doc if x not in ("", ">-", "|")).strip('"'), rest


def cell_text(text):
    return html.escape(text, quote=False).replace("|", "&#124;")


def code_cell(text):
    lines = parts(text)[1]
    return "<pre>" + "<br>".join(map(cell_text, lines)) + "</pre>" if lines else ""


def page(attngen):
    rows = []
    for path in sorted((ROOT / "specs").glob("*.yaml")):
        text = path.read_text()
        rows.append(f"| [{path.stem}](../specs/{path.name}) | {cell_text(parts(text)[0])} | {code_cell(text)} | {mask_cell(attngen, path.stem, text)} |\n")
    return HEAD + "".join(rows) + f"\n{len(rows)} specs.\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the page that is there, write nothing")
    parser.add_argument("--attngen", default=os.environ.get("ATTNGEN", str(ROOT / "build" / "attngen")))
    args = parser.parse_args()
    new, old = page(args.attngen), PAGE.read_text() if PAGE.exists() else ""
    if not args.check:
        PAGE.write_text(new)
    elif new != old:
        sys.stdout.writelines(line[:200] + "\n" for line in difflib.unified_diff(old.split("\n"), new.split("\n"), "docs/zoo.md", "from specs/", lineterm="", n=0))
        raise SystemExit("docs/zoo.md is not up to date: run tools/zoo.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
