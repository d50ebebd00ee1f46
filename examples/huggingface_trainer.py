"""Fine-tune a Transformer with the Hugging Face Trainer: name the optimizer and its fast part, nothing else.

The model, the fast part and the learning rate are options of the optimizer.
"""

import tempfile
from typing import Any

import torch
import transformers
from torch.utils.data import Dataset

from mrreg import MultirateAdamW


class Sentences(Dataset[dict[str, torch.Tensor]]):
    """Random words; a sentence is positive if a word of the first half of the vocabulary comes first."""

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        words = torch.randint(64, (12,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": (words[0] < 32).long()}


def main(steps: int = 120) -> None:
    transformers.set_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=64, num_hidden_layers=4, **sizes)
    model = transformers.BertForSequenceClassification(config)  # of a real task: from_pretrained
    fast = ["bert.encoder.layer.[23].*", "bert.pooler", "classifier"]
    options = {"model": model, "lr": 2e-3, "k": 4, "fast": fast, "slow_lr": "per_gradient"}

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=32,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="no",
        )
        trainer = transformers.Trainer(
            model,
            arguments,
            train_dataset=Sentences(),
            eval_dataset=Sentences(),
            optimizer_cls_and_kwargs=(MultirateAdamW, options),
        )
        trainer.train()
        loss = trainer.evaluate()["eval_loss"]
    print(f"loss {loss:.2f} after {steps} steps, the embeddings and two layers updated at every fourth")


if __name__ == "__main__":
    main()
