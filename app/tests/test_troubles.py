"""What happens to a command in the middle of its work: a folder that is deleted, bits that flip in its tables."""

import random
import shutil
import socket
from datetime import timedelta

import pytest

from app.tests.conftest import finding, make_clusters, refused
from robustdml import world
from robustdml.audit_report.findings import read_findings, write_findings
from robustdml.cli import main
from robustdml.errors import UsageError
from robustdml.settings import SettingsFile


@pytest.mark.parametrize("made_again", [False, True])
def test_a_folder_that_is_deleted_during_training(made_again, tmp_path, features, monkeypatch, capsys):
    """The run is written anew where there is a place for it, or ends with the name of the file."""
    out = tmp_path / "all" / "run"
    out.parent.mkdir()

    def strike(recorder, step, steps, loss):
        if step == 2 and out.exists():
            shutil.rmtree(out.parent)
            if not made_again:
                out.parent.write_text("a file")

    monkeypatch.setattr(SettingsFile, "step", strike)
    command = ("train", "--data", features, "--method", "contrastive", "--epochs", "2", "--batch-size", "32")
    status = main([*command, "--device", "cpu", "--out", str(out)])
    told = capsys.readouterr().err.splitlines()
    if made_again:
        assert status == 0 and (out / "model.pt").exists(), told
    else:
        assert status == 2 and str(out.parent) in told[-1] and not any("Traceback" in line for line in told)


def test_flipped_bits_of_a_table_of_findings(tmp_path):
    """Each makes another text or one sentence, and never another kind of error."""
    chance, path = random.Random(0), tmp_path / "labels.csv"
    names = make_clusters().train.class_names
    write_findings(path, [finding(f"a{number}.png", names[number % 3]) for number in range(20)])
    whole, told = path.read_bytes(), set()
    for _ in range(400):
        content = bytearray(whole)
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        try:
            assert len(read_findings(path)) <= 21
        except UsageError as error:
            told.add(str(error))
    assert told and not any("\n" in one for one in told)


@pytest.mark.parametrize("rank", [0, 1])
def test_processes_that_do_not_meet(rank, features, monkeypatch):
    """The others have ended, or count other numbers of processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"WORLD_SIZE": 3, "RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(world, "TIMEOUT", timedelta(seconds=2))
    told = refused("train", "--data", features, "--method", "contrastive", "--device", "cpu", "--out", "run")
    assert "another process has failed or ended; its messages, or its launcher's, say why: " in told.splitlines()[-1]
    assert "Traceback" not in told
