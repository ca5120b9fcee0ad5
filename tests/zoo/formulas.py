#!/usr/bin/env python3
"""The masks of shipped specs against predicates as their sources have them, written here by themselves, on the sizes and tensors of the pictures of docs/zoo.md.

    tests/zoo/formulas.py [ATTNGEN]

q and k count from 0 as in the sources; `first` is the position of query 0, as the specs align the last query with the last key.  The last line is
"N passed, N failed"."""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import zoo  # noqa: E402

ATTNGEN = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ATTNGEN", str(ROOT / "build" / "attngen"))


def clamp(x, low, high):
    return min(max(x, low), high)


def marked(t, i):
    return t["marked"][0][i]


def bigbird(q, k, p, t):
    bq, bk = q // p["size"], k // p["size"]
    return abs(bq - bk) <= 1 or marked(t, q) or marked(t, k) or bk in t["random"][0][bq]


def block_diffusion(q, k, p, t):
    L, n = p["Sk"] // 2, p["block"]
    noised_q, noised_k, bq, bk = q < L, k < L, q % L // n, k % L // n
    return (bq == bk and noised_q == noised_k) or (bq > bk and noised_q and not noised_k) or (bq >= bk and not noised_q and not noised_k)


def morton(i):
    bits = f"{i:016b}"[::-1]
    return int(bits[0::2][::-1], 2), int(bits[1::2][::-1], 2)


def near(q, k, size, length):
    return abs(clamp(q, size // 2, length - 1 - size // 2) - k) <= size // 2


def natten_3d(q, k, p, t):
    plane = p["height"] * p["width"]
    at = lambda i: (i // plane, i % plane // p["width"], i % p["width"])
    sizes = (p["Sk"] // plane, p["height"], p["width"])
    return all(near(a, b, p["size"], n) for a, b, n in zip(at(q), at(k), sizes))


def natten_morton(q, k, p, t):
    return all(near(a, b, p["size"], p["width"]) for a, b in zip(morton(q), morton(k)))


def natten_tiled(q, k, p, t):
    W, T = p["width"], p["tile"]

    def at(i):
        tile, inside = i // (T * T), i % (T * T)
        return tile % (W // T) * T + inside % T, tile // (W // T) * T + inside // T

    return all(near(a, b, p["size"], n) for a, b, n in zip(at(q), at(k), (W, p["Sk"] // W)))


def shared_prefix(q, k, p, t):
    mine = t["doc"][q]
    other = t["prefix"][mine]
    return (k >= t["begin"][mine] and q >= k) or (mine != other and t["begin"][other] <= k < t["end"][other])


def sta_3d(q, k, p, t):
    video, total = p["frames"] * p["rows"] * p["cols"] * p["tile"], p["frames"] * p["rows"] * p["cols"] * p["tile"] + p["text"]
    if q >= video or k >= video:
        return k < total if q >= video else k < total
    at = lambda i: (i // p["tile"] // (p["rows"] * p["cols"]), i // p["tile"] // p["cols"] % p["rows"], i // p["tile"] % p["cols"])
    for a, b, size, tiles in zip(at(q), at(k), (p["t"], p["y"], p["x"]), (p["frames"], p["rows"], p["cols"])):
        left, right = size // 2, size // 2 + size % 2 - 1
        centre = clamp(a, left, tiles - 1 - right)
        if not centre - left <= b <= centre + right:
            return False
    return True


def longnet(q, k, p, t):
    segments = [(p["segment"] * 2**i, 2**i) for i in range(3)]
    return q >= k and any(q // w == k // w and q % r == 0 and k % r == 0 for w, r in segments)  # of head 0


# name: predicate of q, k, the parameters (with Sk and first) and the tensors of the picture
FORMULAS = {
    "bigbird": bigbird,
    "block_causal": lambda q, k, p, t: k // p["frame"] <= q // p["frame"],
    "block_diffusion": block_diffusion,
    "causal": lambda q, k, p, t: q >= k,
    "causal_top_left": lambda q, k, p, t: q - p["first"] >= k,
    "criss_cross": lambda q, k, p, t: q // p["width"] == k // p["width"] or q % p["width"] == k % p["width"],
    "dilated_window": lambda q, k, p, t: abs(q - k) <= p["window"] and abs(q - k) % p["rate"] == 0,
    "document": lambda q, k, p, t: q >= k and t["doc"][0][q] == t["doc"][0][k],
    "document_full": lambda q, k, p, t: t["doc"][0][q] == t["doc"][0][k],
    "document_prefix": lambda q, k, p, t: t["doc"][q] == t["doc"][k] and (k - t["begin"][t["doc"][q]] < p["prefix"] or q >= k),
    "document_starts": lambda q, k, p, t: k >= t["begin"][t["doc"][q]] and q >= k,
    "draft_blocks": lambda q, k, p, t: k < p["prefix"]
    or ((q - p["first"]) // p["block"] == (k - p["prefix"]) // p["block"] and (k - p["prefix"]) % p["block"] <= (q - p["first"]) % p["block"]),
    "flamingo": lambda q, k, p, t: t["reach"][t["image"][k]][0] <= q - p["first"] < t["reach"][t["image"][k]][1],
    "gemma2": lambda q, k, p, t: 0 <= q - k < p["window"],
    "gemma3": lambda q, k, p, t: 0 <= q - k < p["window"],
    "jagged_cross": lambda q, k, p, t: q - p["first"] < t["rows"][0] and k < t["length"][0],
    "left_padding": lambda q, k, p, t: t["padding"][0] <= k <= q,
    "longformer": lambda q, k, p, t: abs(q - k) <= p["window"] or marked(t, q) or marked(t, k),
    "longnet": longnet,
    "modality": lambda q, k, p, t: q >= k or (t["image"][0][q] == t["image"][0][k] != 0),
    "multi_item": lambda q, k, p, t: q >= k and (k < t["prompt"][0] or t["item"][0][q] == t["item"][0][k]),
    "natten_1d": lambda q, k, p, t: near(q, k, p["size"], p["Sk"]),
    "natten_2d": lambda q, k, p, t: near(q // p["width"], k // p["width"], p["size"], p["Sk"] // p["width"]) and near(q % p["width"], k % p["width"], p["size"], p["width"]),
    "natten_3d": natten_3d,
    "natten_morton": natten_morton,
    "natten_tiled": natten_tiled,
    "packed_equal": lambda q, k, p, t: q // p["length"] == k // p["length"],
    "paligemma": lambda q, k, p, t: k < t["length"][0] and (k < t["prefix"][0] or k <= q),
    "permutation": lambda q, k, p, t: t["rank"][0][k] <= t["rank"][0][q],
    "prefix_lm_scalar": lambda q, k, p, t: k < p["prefix"] or q >= k,
    "shared_prefix": shared_prefix,
    "sliding_window": lambda q, k, p, t: 0 <= q - k < p["window"],
    "sparse_fixed": lambda q, k, p, t: q >= k and (q // p["stride"] == k // p["stride"] or k % p["stride"] in range(p["stride"] - p["tail"], p["stride"])),
    "sparse_strided": lambda q, k, p, t: q >= k and (k > q - p["stride"] or (q - k) % p["stride"] == 0),
    "sta_3d": sta_3d,
    "streaming_chunks": lambda q, k, p, t: q // p["chunk"] - p["left"] <= k // p["chunk"] <= q // p["chunk"],
    "svg_temporal": lambda q, k, p, t: q < p["prefix"]
    or k < p["prefix"]
    or abs((q - p["prefix"]) % p["frame"] - (k - p["prefix"]) % p["frame"]) < p["width"] * p["frame"] // p["frames"],
    "tree_decode": lambda q, k, p, t: k < t["prefix"][0] or (k - t["prefix"][0] < p["nodes"] and t["ancestor"][0][q - p["first"]][k - t["prefix"][0]]),
    "vsa": lambda q, k, p, t: k % p["tile"] < t["fill"][k // p["tile"]],
    "window_both": lambda q, k, p, t: abs(q - k) <= p["window"],
    "window_inclusive": lambda q, k, p, t: q >= k and q - k <= p["window"],
    "window_sides": lambda q, k, p, t: -p["left"] <= k - q <= p["right"],
}
LAYER_OF_ALL = {"gemma2": 1, "gemma3": 5}  # the first layer without a window


def parameters(name, rows, columns):
    options, _ = zoo.PICTURES.get(name, ([], {}))
    p = {key: int(value) for key, value in (o.split("=") for o in options if "=" in o)}
    return p | {"Sk": columns, "first": columns - rows}


def check(name):
    """What is wrong, or ""."""
    picture = zoo.pictures(ATTNGEN, name)[0][1]
    tensors = zoo.PICTURES.get(name, ([], {}))[1]
    p = parameters(name, len(picture), len(picture[0]))
    for i, row in enumerate(picture):
        for k, cell in enumerate(row):
            want = FORMULAS[name](i + p["first"], k, p, tensors)
            if (cell == "#") != bool(want):
                return f"query {i}, key {k}: {cell}, but the source says {'seen' if want else 'hidden'}"
    return ""


def main():
    wrong = {name: check(name) for name in FORMULAS}
    for name, layer in LAYER_OF_ALL.items():
        zoo.PICTURES[name] = (["-D", f"layer={layer}"], {})
        FORMULAS[name] = FORMULAS["causal"]
        wrong[f"{name}, layer {layer}"] = check(name)
    for name, text in wrong.items():
        if text:
            print(f"FAILED {name}: {text}")
    failed = sum(map(bool, wrong.values()))
    print(f"{len(wrong) - failed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
