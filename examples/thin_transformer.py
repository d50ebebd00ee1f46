"""Train random halves of a Transformer: half of its heads and hidden units at four of five steps, all at the fifth.

Sequences of digits are reversed. The loop is the ordinary one; at four of five steps about half of the FLOPs are left.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import mrreg

LENGTH = 12


class Reverser(nn.Module):
    """Digits in, scores of a digit for each position out."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.digits = nn.Embedding(10, width)
        self.places = nn.Parameter(torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, 10)

    def forward(self, digits: Tensor) -> Tensor:
        """Map (batch, length) to (batch, length, 10)."""
        return self.head(self.encoder(self.digits(digits) + self.places))  # type: ignore[no-any-return]


def draw(count: int) -> tuple[Tensor, Tensor]:
    """Random sequences, and the same from the back."""
    digits = torch.randint(10, (count, LENGTH))
    return digits, digits.flip(1)


def main(steps: int = 400) -> None:
    """Make the model thin, train it, take the plain one back."""
    torch.manual_seed(0)
    model, report = mrreg.thin(Reverser(), p={"heads": 0.5, "hidden": 0.5}, k=5, example_inputs=draw(2)[0])
    print(report)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    mrreg.attach(optimizer, model)
    for _ in range(steps):
        digits, reversed_digits = draw(64)
        loss = cross_entropy(model(digits).flatten(0, 1), reversed_digits.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    plain = mrreg.unwrap(model).eval()
    digits, reversed_digits = draw(500)
    with torch.no_grad():
        right = (plain(digits).argmax(-1) == reversed_digits).float().mean()
    print(f"{right:.1%} of all digits right after {steps} steps, {report.cycle_share:.0%} of plain training's FLOPs")


if __name__ == "__main__":
    main()
