"""``robustdml search``: the samples of a gallery that are most similar to each query."""

import argparse
import json
from pathlib import Path

import torch

from robustdml.cache import write_text
from robustdml.command_line import path
from robustdml.commands.embed import (
    add_embedding_arguments,
    add_model_arguments,
    embed_source,
    open_model,
    same_source,
)
from robustdml.errors import UsageError
from robustdml.progress import progress_bar
from robustdml.reports.left_out import say_left_out
from robustdml.reports.search_page import picture_of, render_found
from robustdml_ops.ops import nearest

PAGE, FOUND = "search.html", "search.json"
# Queries in the page; all are in the file.
MOST_SHOWN = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("query", metavar="QUERY", help="an image, or whatever robustdml embed takes")
    parser.add_argument(
        "--in", dest="gallery", required=True, metavar="GALLERY", help="what is searched, given as QUERY"
    )
    parser.add_argument("-k", type=int, default=8, help="how many to find")
    parser.add_argument("--out", type=path, default=Path("search"), help=f"folder for {PAGE} and {FOUND}")
    add_embedding_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.k < 1:
        raise UsageError(f"-k {arguments.k}: expected at least 1")
    out: Path = arguments.out
    with progress_bar("search") as report:
        report("reading the model", 0, 0)
        embedder = open_model(arguments, arguments.device)
        queries = gallery = embed_source(embedder, arguments.query, arguments, report)
        if not same_source(arguments.gallery, arguments.query):
            gallery = embed_source(embedder, arguments.gallery, arguments, report)
        report("searching", 0, 0)
        rows, others = (torch.from_numpy(one.embeddings).to(embedder.device) for one in (queries, gallery))
        among_themselves = gallery is queries
        if among_themselves and len(others) < 2:
            raise UsageError(
                f"{gallery.samples.name}: one sample, searched in itself, finds nothing; give another gallery"
            )
        most = len(others) - among_themselves
        similar = nearest(rows, others, min(arguments.k, most), exclude_self=among_themselves)
        places, names = similar.indices.tolist(), gallery.names
        found = [
            [
                {"sample": names[place], "class": gallery.class_of(place), "similarity": round(cosine, 6)}
                for cosine, place in zip(cosines, similar_to, strict=True)
            ]
            for cosines, similar_to in zip(similar.values.tolist(), places, strict=True)
        ]
        listed = [
            {"query": name, "class": queries.class_of(number), "found": found[number]}
            for number, name in enumerate(queries.names)
        ]
        write_text(out / FOUND, json.dumps(listed, indent=2) + "\n")
        report("pictures", 0, 0)
        shown = []
        for number, name in enumerate(queries.names[:MOST_SHOWN]):
            hits = [
                (
                    picture_of(gallery.samples, gallery.rows[place]),
                    hit["sample"],
                    f"{hit['similarity']:.3f} {hit['class'] or ''}".strip(),
                )
                for place, hit in zip(places[number], found[number], strict=True)
            ]
            searched = f"searched {queries.class_of(number) or ''}".strip()
            shown.append([(picture_of(queries.samples, queries.rows[number]), name, searched), *hits])
        below = f"The {similar.indices.shape[1]} most similar of {most:,}, by the cosine. All are in {FOUND}."
        write_text(out / PAGE, render_found(f"Found in {gallery.samples.name}", below, shown))
    say_left_out("search", list(dict.fromkeys([*queries.left_out, *gallery.left_out])))
    print(f"{out / PAGE}: {len(listed):,} queries in {len(others):,} samples")
    return 0
