"""What the report of a run shows; and names that strangers chose, in every page: shown as text.

By the parser of Python's library and by a real browser.
"""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from app.tests.browser import needs_browser
from app.tests.conftest import SMALL, csv_rows, finding, refused, run_command
from robustdml.audit_report.findings import read_findings, write_findings
from robustdml.config import TrainingConfig
from robustdml.errors import OBEYED, in_one_line
from robustdml.filters.options import FilterOptions
from robustdml.methods import METHODS
from robustdml.reports.html import policy
from robustdml.reports.run_report import render_run
from robustdml.retrieval import retrieval_by_query
from robustdml.train import train

FAST = TrainingConfig(epochs=3, batch_size=32, embedding_size=8)

# Each would leave an element that calls itself stranger, or have a script rename the page.
NAMES = (
    "<img src=x class=stranger onerror=\"document.title='taken'\">",
    "</script><script class=stranger>document.title='taken'</script>",
    "--><svg class=stranger onload=document.title='taken'>",
    "\"' class=stranger onmouseover=document.title='taken' x='",
    "</title></style></textarea><a class=stranger href=javascript:1>",
    "${body} $title {0} %s \\u003cb class=stranger> &lt;b class=stranger&gt;",
    "line one\nline two\r\x1b[2J\x07\u2028\u202egnp.exe\u2066",
    "caf\udce9",
    "__proto__",
    "=cmd|' /C calc'!A0",
)
FILE = "<b class=stranger>$&'\"|`{x}"  # A name that a disk takes.
VOID = ("br", "col", "img", "input", "link", "meta", "wbr")  # Elements without an end


class Elements(HTMLParser):
    """What a browser would take for elements, each ended in its turn, and the texts beside them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        self.open += [tag] * (tag not in VOID)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    @property
    def images(self):
        return [attributes for tag, attributes in self.found if tag == "img"]


def check_page(text: str, scripts: int = 0) -> Elements:
    elements = Elements(text)
    assert not re.search(OBEYED, text.replace("\n", ""))
    assert elements.open == []
    for tag, attributes in elements.found:
        assert attributes.get("class") != "stranger" and not any(name.startswith("on") for name in attributes), tag
        assert not str(attributes.get("src", "data:")).startswith("x") and "href" not in attributes
    assert sum(tag == "script" for tag, _ in elements.found) == scripts
    (rule,) = (one["content"] for tag, one in elements.found if "http-equiv" in one)
    assert rule.startswith("default-src 'none';") and ("script-src 'none'" in rule) == (scripts == 0)
    return elements


def save(path):
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(NAMES)), 14)
    X = (3 * np.eye(len(NAMES), 16)[labels] + 0.5 * random.normal(size=(len(labels), 16))).astype(np.float32)
    X[1] = X[15]  # A pair of duplicates under two labels.
    labels[::13] = (labels[::13] + 1) % len(NAMES)
    paths = [f"{name} {number}" for number, name in enumerate(NAMES * 14)]
    paths[0] = "__proto__"
    np.savez(path, features=X, labels=labels, class_names=np.array(NAMES), paths=np.array(paths))
    return paths


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    root = tmp_path_factory.mktemp("audited")
    (root / FILE).mkdir()
    source = root / FILE / "features.npz"
    paths = save(source)
    run_command("audit", source, "--as-they-are", "--out", root / "audit")
    return root / "audit", paths


def test_the_page_of_an_audit(audited):
    out, paths = audited
    elements = check_page((out / "audit.html").read_text(), scripts=2)
    for name in NAMES:
        assert in_one_line(name) in elements.text, name
    # What programs read has the names as they are: no sign is put before one that a table would take for a formula.
    findings = read_findings(out / "labels.csv")
    assert [one.sample for one in findings] == paths
    assert {one.label for one in findings} == set(NAMES)


def test_decisions_find_their_samples_again(audited, tmp_path):
    """As the page's script writes them, and as a browser writes what is not UTF-8."""
    out, paths = audited
    chosen = [path for path in paths if "\udce9" in path or "__proto__" in path or "\n" in path]
    assert len(chosen) > 20
    quoted = ('"' + path.replace('"', '""').replace("\udce9", "\ufffd") + '"' for path in chosen)
    text = "sample,class,decision,label\n" + "".join(f'{path},"","right",""\n' for path in quoted)
    (tmp_path / "decisions.csv").write_bytes(text.encode())
    run_command("apply", out / "labels.csv", "--decisions", "decisions.csv", "--to", "clean.csv")
    assert set(chosen) <= {row["path"] for row in csv_rows(tmp_path / "clean.csv")}
    # Where two names differ in such bytes alone, nobody knows which was meant.
    write_findings(tmp_path / "two.csv", [finding(f"caf{byte}") for byte in "\udce8\udce9"])
    (tmp_path / "decisions.csv").write_text("sample,class,decision,label\ncaf\ufffd,,right,\n", encoding="utf-8")
    said = refused("apply", "two.csv", "--decisions", "decisions.csv", "--to", "again.csv")
    assert "may be any of" in said


def test_the_report_of_a_run(tmp_path):
    source = tmp_path / f"{FILE}.npz"
    save(source)
    out = tmp_path / f"{FILE} out"
    settings = ["--epochs", "1", "--batch-size", "32", "--device", "cpu", "--noise", "symmetric:0.2"]
    run_command("train", "--data", source, *settings, "--out", out)
    assert FILE in check_page((out / "report.html").read_text()).text
    run_command("train", "--out", out, "--resume", "--epochs", "1")


def test_the_rule_lets_the_page_s_own_script_run_and_no_other():
    assert policy("a()") != policy("b()")
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]{44}'", policy("a()"))


@needs_browser
def test_in_a_real_browser(chromium, audited, tmp_path):
    page = audited[0] / "audit.html"
    check_rendered(chromium, page, "Labels of ")
    # The page's own script has run, under the rule that no other may.
    assert len(chromium.find(".card")) > 5
    # The rule holds by itself, too: a script that got into a page does not run.
    hole = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text().replace("</body>", f"{hole}</body>"))
    check_rendered(chromium, broken, "Labels of ")


def check_rendered(chromium, page, title):
    chromium.open(page)
    assert chromium.find(".stranger") == []
    assert chromium.run("return document.title").startswith(title)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(replace(FAST, method="proxy-anchor"), marks=pytest.mark.nightly),
        replace(FAST, averaging=1.0, filter=replace(METHODS["robust"].filter, on_trial=False)),
        replace(FAST, averaging=1.0, filter=FilterOptions("audit")),
        replace(FAST, method="smooth-proxy-anchor"),
    ],
)
def test_reports_show_what_the_run_has(noisy, clusters, config):
    """Of labels of a user's own, of which some may be wrong, no share of right ones is told.

    An averaging of 1 takes the trained model, so that every run goes through all its epochs.
    """
    wrong = "252 training samples of 12 classes, 72 of them with a wrong label (noise symmetric:0.3)"
    filtered = config.filter_options.kind != "none"
    for data, told in ((noisy, wrong), (clusters, "252 training samples of 12 classes, labels as they are; seed 0")):
        result = train(config, data, device="cpu")
        page = render_run(result, data)
        images = Elements(page).images
        assert all(image["src"].startswith("data:image/svg+xml;base64,") for image in images)
        curves = {"Recall@1 against the epoch.", "Loss against the epoch."}
        assert {image["alt"] for image in images} == {*curves, "Map of the embeddings."}
        assert f"<td>{result.summary['precision_at_1']:.3f}</td>" in page and told in page
        assert ("with a wrong label" in page) == (data is noisy)
        assert ("kept by the filter" in page) == ("filter_kept" in result.summary) == filtered
        known = filtered and data is noisy
        assert ("right labels among the kept" in page) == ("filter_precision" in result.summary) == known
        assert not re.search(r"https?://(?!www\.w3\.org)", page)


def test_the_test_part_is_told(noisy):
    classes = noisy.test.labels.copy()
    classes[0] = classes.max() + 1
    names = tuple(map(str, range(classes.max() + 1)))
    alone = replace(noisy, test=replace(noisy.test, labels=classes, class_names=names))
    found = train(replace(FAST, epochs=1), alone, device="cpu")
    assert found.summary["test"] == {"samples": 123, "classes": 10, "alone": 1, "trained_on": False}
    told = "Tested on 123 samples of 10 other classes, without 1 that are alone in their class."
    assert told in render_run(found, alone)
    names = (*noisy.train.class_names[:3], *names[3:])
    some = replace(alone, test=replace(alone.test, class_names=names))
    found = train(replace(FAST, epochs=1), some, device="cpu")
    test, shown = found.summary["test"], render_run(found, some)
    embeddings = found.model.embed(some.test.inputs).numpy()
    unseen = retrieval_by_query(embeddings, some.test.labels, among=np.flatnonzero(some.test.labels > 2))
    assert test["trained_on"] == 3 and test["unseen"]["precision_at_1"] == pytest.approx(np.nanmean(unseen, axis=0)[0])
    assert "Tested on 123 samples of 10 classes, 3 of them trained on, without 1" in shown
    recall = f"of samples of the others Recall@1 is {test['unseen']['precision_at_1']:.3f} and MAP@R is "
    assert f"3 of 10 test classes were trained on, which raises the figures; {recall}" in shown
    assert "Tested on the classes that it was trained on" not in shown
    found.summary["test"] = {**test, "classes": 1}
    assert "of one class, so that whatever is found is right" in render_run(found, alone)


def test_training_without_a_folder_keeps_the_run_and_shows_images(photos, tmp_path):
    for number in (1, 2):
        text = run_command("train", "--data", photos, *SMALL, "--filter", "prism-average", "--noise-rate", "0").out
        assert f"robustdml-run-{number}/report.html" in text and f"robustdml-run-{number}/model.pt" in text
        assert "labels of the test samples are used as they are" in " ".join(text.split())
    page = (tmp_path / "robustdml-run-2" / "report.html").read_text()
    assert "Loss against the epoch" in page and "The most doubtful labels" in page
    # Six test samples with five that were found, and training samples that were in a batch.
    assert 36 < len(re.findall('<img src="data:image/jpeg', page)) <= 60
