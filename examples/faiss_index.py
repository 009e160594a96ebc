"""The embeddings of a run in a FAISS index: python faiss_index.py RUN GALLERY_FOLDER QUERY_IMAGE."""

import sys
from pathlib import Path

import faiss

from robustdml import load_embedder

run, gallery, query = sys.argv[1:]
embedder = load_embedder(run)
files = sorted(str(file) for file in Path(gallery).rglob("*") if file.suffix.lower() in (".jpg", ".jpeg", ".png"))
index = faiss.IndexFlatIP(embedder.embedding_size)  # rows of length 1: the inner product is the cosine
index.add(embedder.embed(files).numpy())
cosines, rows = index.search(embedder.embed(query).numpy(), min(8, len(files)))
for cosine, row in zip(cosines[0], rows[0], strict=True):
    print(f"{cosine:.3f} {files[row]}")
