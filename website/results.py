"""Tables of the documentation by their names, made from stored results: ``bench/results``, ``experiments/results``."""

from collections.abc import Callable, Iterable
from statistics import fmean

from website import bench_tables, gpu_tables, host_tables, readme, recipe_tables, related_tables
from website.tables import mean, score, stored, table

BASELINE, FEW, DRAWN = "Untouched features", "few-classes", "drawn-kinds"


def cells(metric: str, method: str, name: str = "suite") -> dict[tuple[str, str], float]:
    """Means of the suite, or another study, by data set and noise."""
    found = {}
    for data, results in stored(name)["results"].items():
        values = zip(results["noises"], results[metric][method], strict=True)
        found |= {(data, noise): mean(value) for noise, value in values if value is not None}
    return found


def below_untouched(metric: str, method: str, name: str = "suite") -> int:
    """In how many cells a method ends more than a point below the untouched features."""
    start = cells(metric, BASELINE, name)
    return sum(value < start[cell] - 0.01 - 1e-9 for cell, value in cells(metric, method, name).items())


def behind_best(metric: str, method: str) -> int:
    """In how many cells of the suite a method ends more than a point below the best of all others that train."""
    found = {m: cells(metric, m) for m in stored("suite")["ranks"]["MAP@R"]}
    best = {cell: max(found[m][cell] for m in found if m != method and cell in found[m]) for cell in found[method]}
    return sum(value < best[cell] - 0.01 - 1e-9 for cell, value in found[method].items())


def suite() -> str:
    """Methods of the suite: means, rank, how often they do harm, and how often another is better."""
    ranks = stored("suite")["ranks"]["MAP@R"]
    methods = sorted(ranks, key=lambda method: ranks[method]["rank"][0])
    rows, metrics = [], ("Recall@1", "MAP@R")
    for method in [BASELINE, *methods]:
        means = [f"{fmean(cells(metric, method).values()):.3f}" for metric in metrics]
        rest = ["", "", ""]
        if method in ranks:
            rank, low, high = ranks[method]["rank"]
            counts = [(below_untouched(metric, method), behind_best(metric, method)) for metric in metrics]
            harm, behind = (", ".join(map(str, count)) for count in zip(*counts, strict=True))
            rest = [f"{rank:.1f} [{low:.1f}, {high:.1f}]", harm, behind]
        rows.append([method, *means, *rest])
    count = len(cells("MAP@R", BASELINE))
    titles = ["method", "mean Recall@1", "mean MAP@R", "average rank by MAP@R [95 %]"]
    harm = f"cells of {count} more than a point below the untouched features, Recall@1, MAP@R"
    return table([*titles, harm, "below the best of all other methods"], rows)


def wrong_test_labels() -> str:
    """Rank of `robust` by wrong test labels, and how often it is below the untouched features."""
    rows = []
    for metric, found in stored("suite")["wrong_test_labels"].items():
        ranks = {method: one["rank"] for method, one in found["ranks"].items()}
        others = ((rank[0], method) for method, rank in ranks.items() if method != "Robust")
        rank, low, high = ranks["Robust"]
        best, name = min(others)
        rows.append([metric, f"{rank:.1f} [{low:.1f}, {high:.1f}]", f"{best:.1f} ({name})", str(found["below"])])
    titles = ["", "average rank of robust [95 %]", "of the best other method"]
    return table([*titles, "cells of robust more than a point below the untouched features"], rows)


def robustness() -> str:
    """README's sentence on the suite."""
    means = {m: f"{fmean(cells('MAP@R', m).values()):.3f}" for m in (BASELINE, "Contrastive", "Robust")}
    below = max(below_untouched(metric, "Robust") for metric in ("Recall@1", "MAP@R"))
    return (
        f"With none to half of the labels wrong, on {len(stored('suite')['results'])} data sets (frozen features, "
        f"unseen classes, {stored('suite')['seeds']} seeds), mean MAP@R is {means[BASELINE]} for the untouched "
        f"features, {means['Contrastive']} for the contrastive loss, and **{means['Robust']}** for `robust`, the "
        f"default method of `robustdml train`. It ends more than a point below the untouched features in {below} of "
        f"{len(cells('MAP@R', 'Robust'))} cases (set × rate of wrong labels)."
    )


def by_data() -> str:
    """Each data set of the suite: `robust`, untouched features, the best other method, and the time of trials."""
    rows, times = [], stored("suite")["seconds"]
    for data, results in stored("suite")["results"].items():
        scores = {
            method: fmean(mean(v) for v in values if v is not None) for method, values in results["MAP@R"].items()
        }
        other = max((m for m in scores if m not in (BASELINE, "Robust")), key=lambda method: scores[method])
        found = [*(f"{scores[m]:.3f}" for m in (BASELINE, "Robust")), f"{scores[other]:.3f} ({other})"]
        rows.append([f"`{data}`", *found, f"{times[data]['Robust'] / times[data]['Contrastive']:.1f}×"])
    titles = ["MAP@R, mean of the noises", "untouched features", "robust", "best other method"]
    return table([*titles, "seconds of robust, of the contrastive loss"], rows)


def below() -> str:
    """Where `robust` ends more than a point below the untouched features."""
    rows = []
    for metric in ("Recall@1", "MAP@R"):
        start, end = cells(metric, BASELINE), cells(metric, "Robust")
        worse = [cell for cell in end if end[cell] < start[cell] - 0.01 - 1e-9]
        rows += [
            [f"`{data}`", noise, metric, f"{start[data, noise]:.3f}", f"{end[data, noise]:.3f}"]
            for data, noise in worse
        ]
    return table(["data set", "wrong labels", "metric", "untouched features", "robust"], rows or [["none", *["–"] * 4]])


def harm(name: str) -> str:
    """A study of many sets: means, and how often a method does harm."""
    rows, metrics = [], ("Recall@1", "MAP@R")
    for method in next(iter(stored(name)["results"].values()))["MAP@R"]:
        means = [f"{fmean(cells(metric, method, name).values()):.3f}" for metric in metrics]
        below = ", ".join(str(below_untouched(m, method, name)) for m in metrics)
        ends = ((cells(m, method, name), cells(m, BASELINE, name)) for m in metrics)
        worst = (100 * min(end[cell] - start[cell] for cell in end) for end, start in ends)
        rows.append([method, *means, below, ", ".join(f"{points:+.1f}" for points in worst)])
    count = len(cells("MAP@R", BASELINE, name))
    return table(["", *metrics, f"cells of {count} more than a point below the untouched features", "at worst"], rows)


def study(name: str, data: str, metric: str, *, methods: Iterable[str] | None = None) -> str:
    """A table of one data set of a study, methods by noises."""
    results = stored(name)["results"][data]
    rows = [[m, *map(score, results[metric][m])] for m in methods or results[metric]]
    return table([f"{metric}, `{data}`", *results["noises"]], rows)


def suite_study(data: str) -> str:
    """One data set of the suite, MAP@R."""
    return study("suite", data, "MAP@R")


def structured_noise() -> str:
    """`robust` with its choice of a filter, and with either of them alone, on Glyphs."""
    alone = ("Robust, the audit alone", "Robust, PRISM in place of the audit")
    return study("glyphs", "glyphs", "MAP@R", methods=("Robust", *alone))


def structured_noise_elsewhere() -> str:
    """`robust` with its choice of a filter and with the audit alone, by data set."""
    results = {data: found["MAP@R"] for data, found in stored("structured-noise")["results"].items()}
    methods = list(next(iter(results.values())))
    rows = [[f"`{data}`", *(score(row[m][0]) for m in methods)] for data, row in results.items()]
    return table(["MAP@R", *methods], rows)


def finetuned() -> str:
    """Recall@1 and MAP@R where whole networks train."""
    results = stored("finetuned")["results"]
    methods = sorted(results["glyphs"]["Recall@1"], key=lambda m: -mean(results["glyphs"]["Recall@1"][m][0]))
    columns = [(data, metric) for data in results for metric in ("Recall@1", "MAP@R")]
    rows = [[m, *(score(results[data][metric][m][0]) for data, metric in columns)] for m in methods]
    return table(["half of the labels wrong", *(f"`{data}`, {metric}" for data, metric in columns)], rows)


def audit() -> str:
    """The audit of learnt embeddings beside the auditor and cleanlab on Glyphs as its backbone sees them, by noise."""
    titles = {"robustdml audit": "`robustdml audit`, F1", "LabelAuditor": "`LabelAuditor` without learning, F1"}
    titles |= {stored("audit")["cleanlab"]: "cleanlab, F1"}
    titles |= {"precision": "precision", "recall": "recall", "ece": "ECE", "called wrong": "right ones called wrong"}
    results = stored("audit")["results"]
    noises = [noise for noise in results if noise != "none"]  # Without wrong labels there is no F1
    rows = [[f"`{noise}`", *(score(results[noise][column]) for column in titles)] for noise in noises]
    return table(["wrong labels", *titles.values()], rows)


def audit_kinds() -> str:
    """The auditor beside cleanlab's form chosen beforehand, by kind of data."""
    rows = []
    for kind, found in stored("audit-kinds")["results"].items():
        figures = [f"{found['at or above']} of {found['cells']}", f"{found['ece at most 0.05']:.0%}"]
        figures.append(f"{found['interval holds']:.0%}")
        columns = ("f1", "cleanlab f1", "auc", "cleanlab auc", "ece")
        rows.append(
            [kind, *(score(found[column]) for column in columns), *figures, f"{found['called wrong, clean']:.1%}"]
        )
    titles = ["kind", "F1", "cleanlab, F1", "AUC", "cleanlab, AUC", "ECE, median", "F1 at or above cleanlab's"]
    titles += ["ECE at most 0.05", "interval holds the share", "right labels called wrong, none wrong, worst set"]
    return table(titles, rows)


def audit_diverse() -> str:
    """The auditor and the command beside cleanlab and neighbours, on data sets of diverse classes."""
    forms = ("cleanlab, logistic regression of scaled columns, prune_by_noise_rate",
             "cleanlab, logistic regression, prune_by_noise_rate", "5 neighbours")  # fmt: skip
    rows = []
    for kind, tools in stored("audit-diverse")["results"].items():
        for tool, found in tools.items():
            precise = f"{found['precise']} of {found['calling']}" if found["calling"] else "none called"
            holds = "–" if found["holds"] is None else f"{found['holds']:.0%}"
            figures = [score(found[column]) for column in ("ap", *forms)]
            figures += [f"{found['at or above']} of {found['cells']}", precise, f"{found['found']:.0%}"]
            figures += [f"{found['called wrong, clean']:.1%}", f"{found['told']:.0%}", holds]
            rows.append([kind, f"`{tool}`", *figures])
    titles = ["kind", "tool", "AP", "cleanlab, scaled columns", "cleanlab, C = 3", "5 neighbours"]
    titles += ["AP at or above all three", "precision of `wrong` at least 0.8", "wrong labels called wrong"]
    return table(
        [*titles, "right ones called wrong, none wrong, worst set", "share is told", "interval holds it"], rows
    )


def audit_checked() -> str:
    """The auditor's errors after some labels were checked."""
    rows = []
    for found in stored("audit-checked")["results"]:
        figures = [score(found["ece"]), f"{found['ece at most 0.05']:.0%}", f"{100 * found['share error']:.1f} points"]
        figures += [f"{found['holds']:.0%}", f"{100 * found['width']:.0f} points"]
        rows.append([str(found["checked"]), found["which"], *figures])
    titles = ["labels checked", "which", "ECE, median", "at most 0.05", "error of the share", "interval holds it"]
    return table([*titles, "its width"], rows)


def audit_calibration() -> str:
    """The auditor's errors of calibration on the choosing sets, by what is known of the truth."""
    rows = [
        [known, score(found["median"]), score(found["mean"]), f"{found['at most 0.05']:.0%}"]
        for known, found in stored("audit-calibration")["results"].items()
    ]
    return table(["probabilities", "ECE, median", "mean", "at most 0.05"], rows)


def audit_training() -> str:
    """Training after an audit."""
    return study("audit-training", "glyphs", "MAP@R")


def audit_classes() -> str:
    """Precision and recall of planted classes and copies, means over the seeds."""
    titles = {"one": "two classes that are one", "two": "a class that is two", "copies": "copies in train and test"}
    rows = (
        [data, title, *(score(fmean(column)) for column in zip(*found[name], strict=True))]
        for data, found in stored("audit-classes")["results"].items()
        for name, title in titles.items()
    )
    return table(["data", "planted", "precision", "recall"], rows)


def procsim_gain() -> str:
    """ProcSim's gain by how well its detector tells the labels."""
    rows = stored("procsim")["gain"]["rows"]
    return table(rows[0], (row.values() for row in rows))


def claims() -> str:
    """The papers' claims on Glyphs."""
    rows = stored("glyphs")["claims"]
    return table(rows[0], (row.values() for row in rows))


def data_sets() -> str:
    """Sizes of the named data sets, and what their untouched features reach."""
    rows = []
    for data, facts in stored("data")["data"].items():
        parts = [f"{facts[part]['classes']:,} × {facts[part]['samples']:,}" for part in ("training", "test")]
        least, most = facts["of a class"]
        start = [f"{facts[metric]:.3f}" for metric in ("Recall@1", "MAP@R")]
        rows.append([f"`{data}`", facts["kind"], *parts, f"{least}–{most}", f"{facts['features']:,}", *start])
    titles = ["data set", "kind", "training: classes × samples", "test", "a class", "features", "Recall@1", "MAP@R"]
    return table(titles, rows)


def components() -> str:
    """What each part of `robust` is worth: means over the data sets with right labels and with half of them wrong."""
    found = stored("robust-components")["results"].values()
    columns = [(place, metric) for place in range(2) for metric in ("Recall@1", "MAP@R")]

    def values(method: str, place: int, metric: str) -> list[float]:
        return [mean(results[metric][method][place]) for results in found]

    rows = []
    for method in next(iter(found))["MAP@R"]:
        means = [f"{fmean(values(method, *column)):.3f}" for column in columns]
        both = [
            (one, start) for c in columns for one, start in zip(values(method, *c), values(BASELINE, *c), strict=True)
        ]
        rows.append([method, *means, str(sum(one < start - 0.01 - 1e-9 for one, start in both))])
    titles = [f"{metric}, {labels}" for labels in ("right labels", "half wrong") for metric in ("Recall@1", "MAP@R")]
    return table(["", *titles, f"of {4 * len(found)} figures more than a point below the untouched features"], rows)


def printed(key: str) -> str:
    """A table of PRISM's studies, as it was printed."""
    titles, *rows = stored("prism")[key]["table"]
    return table(titles, rows)


def proxy_types() -> str:
    """Recall@1 with proxies of each type."""
    rows = []
    for data, losses in stored("bfloat16-proxies")["results"].items():
        for loss, types in losses.items():
            for proxies, found in types.items():
                difference, error = (100 * value for value in found["difference"])
                against = "–" if proxies == "float32" else f"{difference:+.2f} ± {error:.2f}"
                rows.append([f"`{data}`", loss, proxies, score(found["Recall@1"]), against])
    return table(["data set", "loss", "proxies", "Recall@1", "to float32, points"], rows)


def many_identities() -> str:
    """Recall@1 and TAR at FAR 1e-4 of ways to train on very many identities, and seconds of the processor."""
    found: dict[tuple[int, str, str], list[dict[str, float]]] = {}
    for run in stored("many-identities")["runs"]:
        found.setdefault((run["classes"], run["noise"], run["way"]), []).append(run)
    rows = []
    for (classes, noise, way), runs in found.items():

        def value(name: str, digits: int, runs: list[dict[str, float]] = runs) -> str:
            return f"{fmean(run[name] for run in runs):.{digits}f}" if name in runs[0] else "–"

        found_values = [value("Recall@1", 3), value("TAR at FAR 1e-4", 3), value("kept", 2), value("kept, right", 2)]
        found_values.append(value("surest, right", 2))
        rows.append([f"{classes:,}", noise, way, *found_values, value("seconds", 0), str(len(runs))])
    titles = ["classes", "labels", "training", "Recall@1", "TAR at FAR 1e-4"]
    titles += ["kept", "of it right", "of the surest 60 % right", "seconds", "seeds"]
    return table(titles, rows)


TABLES: dict[str, Callable[[], str]] = {
    "speed": readme.speed,
    "steps": bench_tables.steps,
    "small-steps": lambda: bench_tables.steps(bench_tables.SMALL),
    "without-avx512": lambda: bench_tables.steps(bench_tables.WITHOUT_AVX512, bench_tables.OLDER),
    "host-cpu": host_tables.on_cpu,
    "host-gpu": host_tables.on_gpu,
    "options": bench_tables.options,
    "functions": bench_tables.functions,
    "memory": bench_tables.memory,
    "gpu-steps": gpu_tables.steps,
    "gpu-softmax": gpu_tables.softmax,
    "gpu-scaling": gpu_tables.scaling,
    "gpu-predicted": gpu_tables.predicted,
    "many-cores": bench_tables.many_cores,
    "crowd": bench_tables.crowd,
    "many-identities": many_identities,
    "proxy-bytes": bench_tables.proxy_bytes,
    "proxy-types": proxy_types,
    "suite": suite,
    "wrong-test-labels": wrong_test_labels,
    "by-data": by_data,
    "below": below,
    "few-classes": lambda: harm(FEW),
    "drawn-kinds": lambda: harm(DRAWN),
    "small-classes": lambda: harm("small-classes"),
    "structured-noise": structured_noise,
    "structured-noise-elsewhere": structured_noise_elsewhere,
    "right-labels": lambda: study("glyphs", "glyphs", "Recall@1", methods=_plain()),
    "twos": lambda: suite_study("mixture-twos"),
    "overlap": lambda: suite_study("vowel"),
    "finetuned": finetuned,
    "negatives": lambda: study("negatives", "glyphs-large", "MAP@R"),
    "negatives-hanzi-small": lambda: study("negatives", "hanzi-small", "MAP@R"),
    "negatives-hanzi": lambda: study("negatives", "hanzi", "MAP@R"),
    "contrastive-hanzi-small": lambda: study("contrastive", "hanzi-small", "MAP@R"),
    "contrastive-glosses": lambda: study("contrastive", "glosses", "MAP@R"),
    "wrong-pairs-hanzi-small": lambda: study("wrong-pairs", "hanzi-small", "MAP@R"),
    "wrong-pairs-glosses": lambda: study("wrong-pairs", "glosses", "MAP@R"),
    "audit": audit,
    "audit-kinds": audit_kinds,
    "audit-checked": audit_checked,
    "audit-diverse": audit_diverse,
    "audit-calibration": audit_calibration,
    "audit-training": audit_training,
    "audit-classes": audit_classes,
    "sampled-steps": related_tables.sampled_steps,
    "related-steps": related_tables.related_steps,
    "micro-batches": related_tables.micro_batches,
    "class-memory": recipe_tables.class_memory,
    "photographs-found": recipe_tables.photographs_found,
    "photographs-trained": recipe_tables.photographs_trained,
    "procsim-gain": procsim_gain,
    "claims": claims,
    "data-sets": data_sets,
    "components": components,
    "prism-cut": lambda: printed("cut"),
    "prism-small-classes": lambda: printed("small classes"),
    "prism-own-copies": lambda: printed("own copies"),
    "prism-thresholds": lambda: printed("thresholds"),
}


def _plain() -> list[str]:
    """Methods of Glyphs without a filter that is told the rate."""
    return [
        method
        for method in stored("glyphs")["results"]["glyphs"]["Recall@1"]
        if " + " not in method and "," not in method
    ]
