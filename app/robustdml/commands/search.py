"""``robustdml search``: the samples of a gallery that are most similar to each query."""

import argparse
import json
from collections import Counter
from itertools import compress
from pathlib import Path
from typing import Any

import torch

from robustdml.cache import check_writable, write_text
from robustdml.command_line import add_json_argument, add_size_limit, path, print_json, say_left_out
from robustdml.commands.embed import add_embedding_arguments, add_model_arguments, embed_source, open_model, same_source
from robustdml.data.image_files import shown
from robustdml.errors import UsageError, counted, say
from robustdml.progress import progress_bar
from robustdml.reports.html import as_text, figure, page, picture, searched
from robustdml.trained.embedding import Embedded
from robustdml_ops.ops import nearest

PAGE, FOUND = "search.html", "search.json"
# Queries in the page; all are in the file. Side of its pictures in pixels.
MOST_SHOWN, THUMBNAIL = 200, 128


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("query", metavar="QUERY", help="an image, or whatever robustdml embed takes")
    parser.add_argument(
        "--in", dest="gallery", required=True, metavar="GALLERY", help="what is searched, given as QUERY"
    )
    parser.add_argument("-k", type=int, default=8, help="how many to find")
    parser.add_argument("--out", type=path, default=Path("search"), help=f"folder for {PAGE} and {FOUND}")
    add_json_argument(parser)
    add_embedding_arguments(parser)
    add_size_limit(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.k < 1:
        raise UsageError(f"-k {arguments.k}: expected at least 1")
    out: Path = arguments.out
    check_writable(out)
    with progress_bar("search") as on_progress:
        embedder = open_model(arguments, on_progress, arguments.device)
        queries = gallery = embed_source(embedder, arguments.query, arguments, on_progress)
        if not same_source(arguments.gallery, arguments.query):
            gallery = embed_source(embedder, arguments.gallery, arguments, on_progress)
        on_progress("searching", 0, 0)
        rows, others = (torch.from_numpy(one.embeddings).to(embedder.device) for one in (queries, gallery))
        among_themselves = gallery is queries
        if among_themselves and len(others) < 2:
            raise UsageError(f"{gallery.samples.source}: one sample finds nothing in itself; give another gallery")
        most, names = len(others) - among_themselves, gallery.names
        own, there = ([_identity(one) for one in each.samples.files] for each in (queries, gallery))
        # A query may be in the gallery under other paths, by links.
        spare = max(Counter(there).values(), default=0) if not among_themselves and {*own} & {*there} else 0
        similar = nearest(rows, others, min(arguments.k + spare, most), exclude_self=among_themselves)
        places, cosines = similar.indices.tolist(), similar.values.tolist()
        if spare:
            other = [[there[one] != mine for one in row] for row, mine in zip(places, own, strict=True)]
            places, cosines = (
                [list(compress(row, keep))[: arguments.k] for row, keep in zip(table, other, strict=True)]
                for table in (places, cosines)
            )
        listed: list[dict[str, Any]] = []
        for number, query in enumerate(queries.names):
            found = [
                {"sample": names[place], "class": gallery.class_of(place), "similarity": round(cosine, 6)}
                for cosine, place in zip(cosines[number], places[number], strict=True)
            ]
            listed.append({"query": query, "class": queries.class_of(number), "found": found})
        write_text(out / FOUND, json.dumps(listed, indent=2) + "\n")
        on_progress("pictures", 0, 0)
        title = f"Found in {gallery.samples.source}"
        below = f"The {min(arguments.k, most)} most similar of {most:,}, by the cosine. All are in {FOUND}."
        sections = [f"<h1>{as_text(title)}</h1><p>{below}</p>"]
        of_queries = _pictures(queries, list(range(len(listed[:MOST_SHOWN]))))
        of_gallery = _pictures(gallery, [place for row in places[:MOST_SHOWN] for place in row])
        for number, one in enumerate(listed[:MOST_SHOWN]):
            figures = [_figure(queries, number, of_queries, one["query"], "searched")]
            for place, hit in zip(places[number], one["found"], strict=True):
                figures.append(_figure(gallery, place, of_gallery, hit["sample"], f"{hit['similarity']:.3f}"))
            sections.append(searched(figures))
        write_text(out / PAGE, page(title, "\n".join(sections)))
    left_out = list(dict.fromkeys([*queries.samples.left_out, *gallery.samples.left_out]))
    say_left_out("search", left_out, [*queries.samples.notes, *gallery.samples.notes])
    if arguments.json:
        files = {"page": str(out / PAGE), "file": str(out / FOUND)}
        print_json({"queries": listed, "gallery_samples": len(others), "left_out": left_out, **files})
        return 0
    say(f"{out / PAGE}: {counted(len(listed), 'query', 'queries')} in {counted(len(others), 'sample')}")
    return 0


def _identity(file: Path) -> tuple[int, int] | Path:
    """Identity of a file, the same for every path to it."""
    status = file.stat()
    return (status.st_dev, status.st_ino) if status.st_ino else file.resolve()


def _pictures(embedded: Embedded, places: list[int]) -> dict[int, str]:
    """Pictures of samples; none of features, and of a file that is gone."""
    if not embedded.samples.is_images:
        return {}
    wanted = sorted({*places})
    found = zip(wanted, shown(embedded.samples.inputs, wanted, THUMBNAIL), strict=True)
    return {place: picture(pixels) for place, pixels in found if pixels is not None}


def _figure(embedded: Embedded, place: int, pictures: dict[int, str], name: str, said: str) -> str:
    """Show a sample with its class and its file."""
    told = f"{said} {embedded.class_of(place) or ''}".strip()
    return figure(pictures.get(place, ""), name, f"{told} · {Path(name).name}")
