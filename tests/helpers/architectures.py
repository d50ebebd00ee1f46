"""Small forms of published models, with random weights and no downloads; docs/coverage.md has a row for each."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Case(NamedTuple):
    """A model and what one training forward takes."""

    model: nn.Module
    inputs: Any


def build(name: str) -> Case:
    """Return the named model, the same at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MODELS[name]()


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


def image(size: int = 32, channels: int = 3) -> Tensor:
    return torch.randn(2, channels, size, size)


def words() -> Tensor:
    return torch.randint(3, 50, (2, 7))


def mlp() -> Case:
    layers = [nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 4)]
    return Case(nn.Sequential(*layers), torch.randn(8, 12))


def lenet() -> Case:
    features = [nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.PReLU(16), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(256, 24), nn.ReLU(), nn.Linear(24, 20), nn.ReLU(), nn.Linear(20, 10)]
    return Case(nn.Sequential(*features, *head), image(28, 1))


def encoder() -> Case:
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True)
    return Case(nn.TransformerEncoder(layer, 2), torch.randn(2, 7, 32))


def decoder() -> Case:
    layer = nn.TransformerDecoderLayer(32, 4, 48)
    return Case(nn.TransformerDecoder(layer, 2), (torch.randn(7, 2, 32), torch.randn(5, 2, 32)))


class Tagger(nn.Module):
    """A recurrent network over words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(50, 12), nn.LSTM(12, 16, num_layers=2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(32, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.rnn(self.embed(ids))[0])  # type: ignore[no-any-return]


class UNet(nn.Module):
    """Skips from the way down are concatenated on the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.deep = self._block(3, 8), self._block(8, 16), self._block(16, 24)
        self.up2, self.up1 = nn.ConvTranspose2d(24, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.three, self.four, self.out = self._block(32, 16), self._block(16, 8), nn.Conv2d(8, 2, 1)

    def _block(self, made: int, wanted: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(made, wanted, 3, padding=1), nn.BatchNorm2d(wanted), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        one = self.one(x)
        two = self.two(nn.functional.max_pool2d(one, 2))
        deep = self.up2(self.deep(nn.functional.max_pool2d(two, 2)))
        deep = self.up1(self.three(torch.cat([two, deep], 1)))
        return self.out(self.four(torch.cat([one, deep], 1)))  # type: ignore[no-any-return]


def _torchvision(make: Callable[[Any], nn.Module], size: int = 32) -> Callable[[], Case]:
    return lambda: Case(make(import_module("torchvision.models")), image(size))


def _vgg(models: Any) -> nn.Module:
    model: Any = models.VGG(models.vgg.make_layers([16, "M", 24, "M", 16, "M"], True), 5, init_weights=False)
    model.avgpool = nn.AdaptiveAvgPool2d(2)
    model.classifier = nn.Sequential(nn.Linear(64, 24), nn.ReLU(True), nn.Dropout(), nn.Linear(24, 5))
    return model  # type: ignore[no-any-return]


def _resnet(block: str, layers: list[int], **options: Any) -> Callable[[Any], nn.Module]:
    """Build the first half of a residual network: the other one has the same layers, ten times as large."""

    def make(models: Any) -> nn.Module:
        kind = getattr(models.resnet, block)
        model: Any = models.ResNet(kind, [*layers, 1, 1], num_classes=5, **options)
        model.layer3, model.layer4, model.fc = nn.Identity(), nn.Identity(), nn.Linear(128 * kind.expansion, 5)
        return model  # type: ignore[no-any-return]

    return make


def _mobilenet_v2(models: Any) -> Any:
    blocks = [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 1, 2]]  # expansion, channels, number, stride
    return models.MobileNetV2(5, width_mult=0.5, inverted_residual_setting=blocks)


def _mobilenet_v3(models: Any) -> Any:
    rows = [(16, 3, 16, 16, True, "RE", 2), (16, 3, 32, 24, False, "RE", 2), (24, 5, 48, 24, True, "HS", 1)]
    blocks = [models.mobilenetv3.InvertedResidualConfig(*row, 1, 1.0) for row in rows]
    return models.MobileNetV3(blocks, 64, num_classes=5)


def _efficientnet(models: Any) -> Any:
    rows = [(1, 3, 1, 32, 16, 1, 1.0, 1.0), (6, 3, 2, 16, 24, 2, 1.0, 1.0)]
    return models.EfficientNet([models.efficientnet.MBConvConfig(*row) for row in rows], 0.2, num_classes=5)


def _vit(models: Any) -> Any:
    model = models.VisionTransformer(32, 8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=48, num_classes=5)
    nn.init.normal_(model.heads[-1].weight)
    return model


def _convnext(models: Any) -> Any:
    kind = models.convnext.CNBlockConfig
    return models.ConvNeXt([kind(16, 24, 1), kind(24, None, 1)], num_classes=5)


def _timm(name: str, size: int = 64, **options: Any) -> Callable[[], Case]:
    """Build a model of timm by its name, or by the path of its class."""

    def make() -> Case:
        path, _, kind = name.rpartition(".")
        made = getattr(import_module(f"timm.models.{path}"), kind) if path else partial(_create, name)
        return Case(made(num_classes=5, **options), image(size))

    return make


def _create(name: str, **options: Any) -> Any:
    import timm

    return timm.create_model(name, pretrained=False, **options)


SMALL_VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
FOUR: dict[str, Any] = {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}
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
    "use_cache": False,
}


def _hugging_face(model: str, inputs: Callable[[], Any] = words, **options: Any) -> Callable[[], Case]:
    """Build a model from its configuration, with the sizes of `SIZES` where that knows them."""

    def make() -> Case:
        import transformers

        kind: Any = getattr(transformers, model)
        given = inputs()
        given = given if isinstance(given, dict) else {"input_ids": given}
        return Case(kind(kind.config_class(**SIZES | options)), given)

    return make


def _pairs() -> dict[str, Tensor]:
    return {"input_ids": words(), "decoder_input_ids": words()}


def _lora() -> Case:
    import peft

    model, inputs = MODELS["gpt2"]()
    config = peft.LoraConfig(r=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    return Case(peft.get_peft_model(model, config), inputs)


PIXELS: Any = {"inputs": lambda: {"pixel_values": image()}, "image_size": 32, "patch_size": 8}
T5 = {"num_layers": 2, "num_heads": 4, "d_model": 32}  # before a configuration takes other numbers from these
BART = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 1), ("attention_heads", 4))}

MODELS: dict[str, Callable[[], Case]] = {
    "mlp": mlp,
    "lenet": lenet,
    "vgg": _torchvision(_vgg),
    "resnet18": _torchvision(_resnet("BasicBlock", [2, 1])),
    "resnet50": _torchvision(_resnet("Bottleneck", [2, 1])),
    "resnext": _torchvision(_resnet("Bottleneck", [1, 1], groups=4, width_per_group=16)),
    "mobilenet_v2": _torchvision(_mobilenet_v2),
    "mobilenet_v3": _torchvision(_mobilenet_v3),
    "efficientnet": _torchvision(_efficientnet),
    "vit": _torchvision(_vit),
    "vit_timm": _timm("vit_tiny_patch16_224", 32, **SMALL_VIT),
    "swin": _torchvision(
        lambda m: m.SwinTransformer([2, 2], 24, [2, 2], [2, 4], [4, 4], num_classes=5, stochastic_depth_prob=0.0)
    ),
    "swin_timm": _timm(
        "swin_tiny_patch4_window7_224", 32, img_size=32, window_size=4, embed_dim=24, depths=(2, 2), num_heads=(2, 4)
    ),
    "convnext": _torchvision(_convnext, 64),
    "encoder": encoder,
    "decoder": decoder,
    "bert": _hugging_face("BertForSequenceClassification"),
    "roberta": _hugging_face("RobertaForSequenceClassification"),
    "distilbert": _hugging_face("DistilBertForSequenceClassification", hidden_dim=48),
    "gpt2": _hugging_face("GPT2LMHeadModel"),
    "llama": _hugging_face("LlamaForCausalLM", num_key_value_heads=2),
    "qwen2": _hugging_face("Qwen2ForCausalLM", num_key_value_heads=2),
    "t5": _hugging_face("T5ForConditionalGeneration", _pairs, d_kv=8, d_ff=48, decoder_start_token_id=0, **T5),
    "phi3": _hugging_face("Phi3ForCausalLM", num_key_value_heads=2),
    "lstm": lambda: Case(Tagger(), words()),
    "unet": lambda: Case(UNet(), image(16)),
    "gpt2_lora": _lora,
    "densenet": _torchvision(lambda m: m.DenseNet(8, (2, 2), 16, num_classes=5), 64),
    "squeezenet": _torchvision(lambda m: m.squeezenet1_1(num_classes=5), 64),
    "mixer": _timm("mlp_mixer.MlpMixer", img_size=64, num_blocks=2, embed_dim=32),
    "beit": _timm("beit_base_patch16_224", 32, **SMALL_VIT),
    "eva": _timm("eva02_tiny_patch14_224", 32, **SMALL_VIT),
    "cait": _timm("cait_xxs24_224", 32, **SMALL_VIT),
    "convit": _timm("convit_tiny", 32, img_size=32, patch_size=8, embed_dim=8, depth=2, num_heads=4),
    "convmixer": _timm("convmixer.ConvMixer", 32, dim=16, depth=2, kernel_size=3, patch_size=4),
    "poolformer": _timm("metaformer.MetaFormer", **FOUR),
    "convnext_v2": _timm("convnextv2_atto", **FOUR),
    "inception_next": _timm("inception_next_atto", depths=(1, 1, 1, 1), dims=(16, 16, 32, 32)),
    "pvt_v2": _timm("pvt_v2_b0", depths=(1, 1, 1, 1), embed_dims=(16, 16, 24, 32), num_heads=(1, 2, 2, 4)),
    "albert": _hugging_face("AlbertForSequenceClassification", embedding_size=16),
    "electra": _hugging_face("ElectraForSequenceClassification", embedding_size=16),
    "deberta_v2": _hugging_face(
        "DebertaV2ForSequenceClassification", relative_attention=True, pos_att_type=["p2c", "c2p"]
    ),
    "mpnet": _hugging_face("MPNetForSequenceClassification"),
    "opt": _hugging_face("OPTForCausalLM", ffn_dim=48, word_embed_proj_dim=32),
    "gpt_neox": _hugging_face("GPTNeoXForCausalLM"),
    "gpt_neo": _hugging_face("GPTNeoForCausalLM", num_layers=2, num_heads=4, attention_types=[[["global"], 2]]),
    "phi": _hugging_face("PhiForCausalLM"),
    "gptj": _hugging_face("GPTJForCausalLM", n_embd=32, n_layer=2, n_head=4, rotary_dim=4),
    "bloom": _hugging_face("BloomForCausalLM", n_layer=2, n_head=4),
    "falcon": _hugging_face("FalconForCausalLM"),
    "mistral": _hugging_face("MistralForCausalLM", num_key_value_heads=2),
    "gemma": _hugging_face("GemmaForCausalLM", num_key_value_heads=2, head_dim=8),
    "mixtral": _hugging_face(
        "MixtralForCausalLM", num_key_value_heads=2, num_local_experts=2, experts_implementation="eager"
    ),
    "mamba": _hugging_face("MambaForCausalLM", state_size=4),
    "bart": _hugging_face(
        "BartForConditionalGeneration",
        _pairs,
        d_model=32,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        decoder_start_token_id=0,
        **BART,
    ),
    "wav2vec2": _hugging_face(
        "Wav2Vec2ForSequenceClassification",
        lambda: {"input_values": torch.randn(2, 400)},
        conv_dim=(16, 16),
        conv_kernel=(10, 3),
        conv_stride=(5, 2),
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2,
        classifier_proj_size=16,
        mask_time_prob=0.0,
    ),
    "clip": _hugging_face("CLIPVisionModel", **PIXELS),
    "siglip": _hugging_face("SiglipVisionModel", **PIXELS),
    "vit_hf": _hugging_face("ViTForImageClassification", **PIXELS),
    "dinov2": _hugging_face("Dinov2ForImageClassification", mlp_ratio=2, **PIXELS),
}
