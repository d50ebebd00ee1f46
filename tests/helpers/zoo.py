"""Small forms of published models, with random weights and no downloads, for the table of docs/coverage.md."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from helpers.architectures import ARCHITECTURES, SIZES, Case, image, words


def _torchvision(build: Callable[[Any], nn.Module], inputs: Tensor | None = None) -> Callable[[], Case]:
    def make() -> Case:
        from torchvision import models

        return Case(build(models), image(64) if inputs is None else inputs)

    return make


def _timm(name: str, size: int = 64, **options: Any) -> Callable[[], Case]:
    def make() -> Case:
        import timm

        return Case(timm.create_model(name, num_classes=5, **options), image(size))

    return make


def _hugging_face(model: str, inputs: Callable[[], Any] = words, **options: Any) -> Callable[[], Case]:
    """Build a model from its configuration, with the sizes of `SIZES` where that knows them."""

    def make() -> Case:
        import transformers

        kind: Any = getattr(transformers, model)
        sizes = {name: size for name, size in {**SIZES, "use_cache": False}.items() if name not in options}
        given = inputs()
        return Case(
            kind(kind.config_class(**sizes, **options)), given if isinstance(given, dict) else {"input_ids": given}
        )

    return make


def _pairs() -> dict[str, Tensor]:
    return {"input_ids": words(), "decoder_input_ids": words()}


def _pixels(size: int = 32) -> dict[str, Tensor]:
    return {"pixel_values": image(size)}


def _sounds(length: int = 400) -> dict[str, Tensor]:
    return {"input_values": torch.randn(2, length)}


def _lora() -> Case:
    import peft

    model, inputs = ARCHITECTURES["gpt2"]()
    config = peft.LoraConfig(r=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    return Case(peft.get_peft_model(model, config), inputs)


def _class_of_timm(path: str, size: int = 64, **options: Any) -> Callable[[], Case]:
    def make() -> Case:
        module, _, name = path.rpartition(".")
        return Case(getattr(import_module(f"timm.models.{module}"), name)(num_classes=5, **options), image(size))

    return make


class Tagger(nn.Module):
    """A recurrent network over words."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(50, 12), kind(12, 16, num_layers=2, bidirectional=True, batch_first=True)
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


VISION = {"image_size": 32, "patch_size": 8}
IMAGES = partial(_pixels, 32)

MODELS: dict[str, Callable[[], Case]] = {
    **ARCHITECTURES,
    "lstm": lambda: Case(Tagger(nn.LSTM), words()),
    "gru": lambda: Case(Tagger(nn.GRU), words()),
    "unet": lambda: Case(UNet(), image(16)),
    "gpt2_lora": _lora,
    "densenet": _torchvision(lambda m: m.DenseNet(8, (2, 2), 16, num_classes=5)),
    "squeezenet": _torchvision(lambda m: m.squeezenet1_1(num_classes=5)),
    "mixer": _class_of_timm("mlp_mixer.MlpMixer", img_size=64, num_blocks=2, embed_dim=32),
    "beit": _timm("beit_base_patch16_224", 32, img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4),
    "eva": _timm("eva02_tiny_patch14_224", 32, img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4),
    "cait": _timm("cait_xxs24_224", 32, img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4),
    "convit": _timm("convit_tiny", 32, img_size=32, patch_size=8, embed_dim=8, depth=2, num_heads=4),
    "convmixer": _class_of_timm("convmixer.ConvMixer", 32, dim=16, depth=2, kernel_size=3, patch_size=4),
    "poolformer": _class_of_timm("metaformer.MetaFormer", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32)),
    "convnext_v2": _timm("convnextv2_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32)),
    "inception_next": _timm("inception_next_atto", depths=(1, 1, 1, 1), dims=(16, 16, 32, 32)),
    "pvt_v2": _timm("pvt_v2_b0", depths=(1, 1, 1, 1), embed_dims=(16, 16, 24, 32), num_heads=(1, 2, 2, 4)),
    "sequencer": _timm("sequencer2d_s", 28, layers=(1, 1, 1, 1), embed_dims=(16,) * 4, hidden_sizes=(8,) * 4),
    "albert": _hugging_face("AlbertForSequenceClassification", embedding_size=16),
    "electra": _hugging_face("ElectraForSequenceClassification", embedding_size=16),
    "deberta_v2": _hugging_face(
        "DebertaV2ForSequenceClassification", relative_attention=True, pos_att_type=["p2c", "c2p"]
    ),
    "mpnet": _hugging_face("MPNetForSequenceClassification"),
    "opt": _hugging_face("OPTForCausalLM", ffn_dim=48, word_embed_proj_dim=32),
    "gpt_neo": _hugging_face("GPTNeoForCausalLM", num_layers=2, num_heads=4, attention_types=[[["global"], 2]]),
    "gpt_neox": _hugging_face("GPTNeoXForCausalLM"),
    "gptj": _hugging_face("GPTJForCausalLM", n_embd=32, n_layer=2, n_head=4, rotary_dim=4),
    "bloom": _hugging_face("BloomForCausalLM", n_layer=2, n_head=4),
    "falcon": _hugging_face("FalconForCausalLM"),
    "mistral": _hugging_face("MistralForCausalLM", num_key_value_heads=2),
    "gemma": _hugging_face("GemmaForCausalLM", num_key_value_heads=2, head_dim=8),
    "phi": _hugging_face("PhiForCausalLM"),
    "mixtral": _hugging_face(
        "MixtralForCausalLM", num_key_value_heads=2, num_local_experts=2, experts_implementation="eager"
    ),
    "mamba": _hugging_face("MambaForCausalLM", state_size=4),
    "bart": _hugging_face(
        "BartForConditionalGeneration",
        _pairs,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        decoder_start_token_id=0,
    ),
    "wav2vec2": _hugging_face(
        "Wav2Vec2ForSequenceClassification",
        _sounds,
        conv_dim=(16, 16),
        conv_kernel=(10, 3),
        conv_stride=(5, 2),
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2,
        classifier_proj_size=16,
        mask_time_prob=0.0,
    ),
    "clip": _hugging_face("CLIPVisionModel", IMAGES, **VISION),
    "siglip": _hugging_face("SiglipVisionModel", IMAGES, **VISION),
    "dinov2": _hugging_face("Dinov2ForImageClassification", IMAGES, mlp_ratio=2, **VISION),
}


def build(name: str) -> Case:
    """Return the named model, the same at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MODELS[name]()
