"""Functions of Python's standard library: a sample is a function's source, its class the module.

Words of names, comments and strings become vectors by their weights (TF-IDF), and of these the principal directions of
the training functions. Sizes follow the version of Python.
"""

import ast
import re
import sysconfig
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from experiments.data.splits import divide
from robustdml.data.dataset import RetrievalData, Split
from robustdml.data.named import NamedData

SMALLEST_CLASS, LARGEST_CLASS = 10, 25
NUM_FEATURES = 96
_FEWEST_LINES = 4
_WORD = re.compile(r"[A-Z]?[a-z]{2,}|[A-Z]{2,}")
_SEED = 0


def load_code(name: str = "code") -> RetrievalData:
    """Functions as vectors, with their modules as classes."""
    texts = divide(name, _functions())
    weights = TfidfVectorizer(tokenizer=words, token_pattern=None, lowercase=False, min_df=2, sublinear_tf=True)
    directions = TruncatedSVD(NUM_FEATURES, random_state=_SEED)
    train = directions.fit_transform(weights.fit_transform(texts.train.inputs))
    test = directions.transform(weights.transform(texts.test.inputs))
    first, second = (
        Split(rows.astype(np.float32), split.labels, split.class_names)
        for rows, split in ((train, texts.train), (test, texts.test))
    )
    return RetrievalData(name, first, second)


def words(source: str) -> list[str]:
    """Words of a source in lower case, names cut at capitals and underscores.

    Examples
    --------
    >>> words("def readLine(self_text):")
    ['def', 'read', 'line', 'self', 'text']
    """
    return [word.lower() for word in _WORD.findall(source)]


def _functions() -> Split:
    random = np.random.default_rng(_SEED)
    texts: list[str] = []
    labels: list[int] = []
    names: list[str] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
        found = ["\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in nodes]
        found = [text for text in found if text.count("\n") >= _FEWEST_LINES]
        if len(found) < SMALLEST_CLASS:
            continue
        kept = np.sort(random.permutation(len(found))[:LARGEST_CLASS])
        texts += [found[place] for place in kept]
        labels += [len(names)] * len(kept)
        names.append(path.stem)
    return Split(np.array(texts), np.array(labels, dtype=np.int64), tuple(names))


NAMED = {name: NamedData("code", partial(load_code, name)) for name in ("code", "code-validation")}
