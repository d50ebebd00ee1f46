"""Small forms of the architectures that thin networks are tried on, each with a batch of example inputs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Case(NamedTuple):
    """A model and what one training forward takes."""

    model: nn.Module
    inputs: Any


def build(name: str) -> Case:
    """Return the named architecture, the same at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ARCHITECTURES[name]()


def double(case: Case) -> Case:
    """Return it in float64, without dropout where `NoDropout` does not look."""
    for module in case.model.modules():
        if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            module.dropout = 0.0
    return Case(case.model.double().train(), _double(case.inputs))


def _double(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _double(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_double, value))
    return value.double() if value.is_floating_point() else value


def image(size: int = 32, channels: int = 3, batch: int = 2) -> Tensor:
    return torch.randn(batch, channels, size, size)


def words(vocabulary: int = 50, length: int = 7) -> Tensor:
    return torch.randint(3, vocabulary, (2, length))


def mlp() -> Case:
    layers = [nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 4)]
    return Case(nn.Sequential(*layers), torch.randn(8, 12))


def lenet() -> Case:
    features = [nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.PReLU(16), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(256, 24), nn.ReLU(), nn.Linear(24, 20), nn.ReLU(), nn.Linear(20, 10)]
    return Case(nn.Sequential(*features, *head), image(28, 1))


def vgg() -> Case:
    from torchvision.models.vgg import VGG, make_layers

    model = VGG(make_layers([16, "M", 24, "M", 16, "M"], batch_norm=True), num_classes=5, init_weights=False)
    model.avgpool = nn.AdaptiveAvgPool2d(2)
    model.classifier = nn.Sequential(nn.Linear(64, 24), nn.ReLU(True), nn.Dropout(), nn.Linear(24, 5))
    return Case(model, image())


def _resnet(block: str, layers: list[int], **options: Any) -> Callable[[], Case]:
    """Build the first half of a residual network: the other one has the same layers, ten times as large."""

    def make() -> Case:
        from torchvision.models import resnet

        kind: Any = getattr(resnet, block)
        model = resnet.ResNet(kind, [*layers, 1, 1], num_classes=5, **options)
        model.layer3, model.layer4, model.fc = nn.Identity(), nn.Identity(), nn.Linear(128 * kind.expansion, 5)
        return Case(model, image())

    return make


def _timm(name: str, size: int = 64, **options: Any) -> Callable[[], Case]:
    def make() -> Case:
        import timm

        return Case(timm.create_model(name, pretrained=False, num_classes=5, **options), image(size))

    return make


def mobilenet_v2() -> Case:
    from torchvision.models import MobileNetV2

    blocks = [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 1, 2]]  # expansion, channels, number, stride
    return Case(MobileNetV2(5, width_mult=0.5, inverted_residual_setting=blocks), image())


def mobilenet_v3() -> Case:
    from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3

    rows = [(16, 3, 16, 16, True, "RE", 2), (16, 3, 32, 24, False, "RE", 2), (24, 5, 48, 24, True, "HS", 1)]
    return Case(MobileNetV3([InvertedResidualConfig(*row, 1, 1.0) for row in rows], 64, num_classes=5), image())


def efficientnet() -> Case:
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    blocks = [MBConvConfig(1, 3, 1, 32, 16, 1, 1.0, 1.0), MBConvConfig(6, 3, 2, 16, 24, 2, 1.0, 1.0)]
    return Case(EfficientNet(blocks, 0.2, num_classes=5), image())


def vit() -> Case:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(32, 8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=48, num_classes=5)
    nn.init.normal_(model.heads[-1].weight)
    return Case(model, image())


def swin() -> Case:
    from torchvision.models import SwinTransformer

    model = SwinTransformer([2, 2], 24, [2, 2], [2, 4], [4, 4], num_classes=5, stochastic_depth_prob=0.0)
    return Case(model, image())


def convnext() -> Case:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    blocks = [CNBlockConfig(16, 24, 1), CNBlockConfig(24, None, 1)]
    return Case(ConvNeXt(blocks, num_classes=5), image(64))


def encoder() -> Case:
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True)
    return Case(nn.TransformerEncoder(layer, 2), torch.randn(2, 7, 32))


def decoder() -> Case:
    layer = nn.TransformerDecoderLayer(32, 4, 48)
    return Case(nn.TransformerDecoder(layer, 2), (torch.randn(7, 2, 32), torch.randn(5, 2, 32)))


SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 50,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _transformer(model: str, config: str, **options: Any) -> Callable[[], Case]:
    def make() -> Case:
        import transformers

        settings = getattr(transformers, config)(**options)
        inputs = {"pixel_values": image()} if "image_size" in options else {"input_ids": words()}
        if model.startswith("T5"):
            inputs["decoder_input_ids"] = words()
        return Case(getattr(transformers, model)(settings), inputs)

    return make


ARCHITECTURES: dict[str, Callable[[], Case]] = {
    "mlp": mlp,
    "lenet": lenet,
    "vgg": vgg,
    "resnet18": _resnet("BasicBlock", [2, 1]),
    "resnet50": _resnet("Bottleneck", [2, 1]),
    "resnext": _resnet("Bottleneck", [1, 1], groups=4, width_per_group=16),
    "mobilenet_v2": mobilenet_v2,
    "mobilenet_v3": mobilenet_v3,
    "efficientnet": efficientnet,
    "efficientnet_timm": _timm("test_efficientnet", 32),
    "vit": vit,
    "vit_timm": _timm("vit_tiny_patch16_224", 32, img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4),
    "swin": swin,
    "swin_timm": _timm(
        "swin_tiny_patch4_window7_224", 32, img_size=32, window_size=4, embed_dim=24, depths=(2, 2), num_heads=(2, 4)
    ),
    "convnext": convnext,
    "encoder": encoder,
    "decoder": decoder,
    "bert": _transformer("BertForSequenceClassification", "BertConfig", **SIZES),
    "distilbert": _transformer(
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=48,
        vocab_size=50,
    ),
    "gpt2": _transformer(
        "GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=2, n_head=4, vocab_size=50, n_positions=32
    ),
    "llama": _transformer("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2, **SIZES),
    "vit_hf": _transformer(
        "ViTForImageClassification",
        "ViTConfig",
        image_size=32,
        patch_size=8,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
    ),
    "t5": _transformer(
        "T5ForConditionalGeneration",
        "T5Config",
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        vocab_size=50,
        decoder_start_token_id=0,
    ),
    "phi3": _transformer("Phi3ForCausalLM", "Phi3Config", num_key_value_heads=2, **SIZES),
}
