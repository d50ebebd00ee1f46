"""Put multirate masks where an existing model has dropout. Two lines change; the training loop stays as it is.

A convolutional classifier learns to tell stripes apart that are hidden in noise, from few images.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import mrreg


class Classifier(nn.Module):
    """A model as one finds them: dropout after the convolutions and between the linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3), nn.Conv2d(16, 32, 3)
        self.drop1, self.drop2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(32 * 16, 128), nn.Linear(128, 4)

    def forward(self, images: Tensor) -> Tensor:
        """Images to scores."""
        features = torch.relu(self.conv2(torch.relu(self.conv1(images))))
        hidden = torch.relu(self.fc1(self.drop1(nn.functional.max_pool2d(features, 2).flatten(1))))
        return self.fc2(self.drop2(hidden))  # type: ignore[no-any-return]


def stripes(count: int) -> tuple[Tensor, Tensor]:
    """Noisy 12 x 12 images of stripes in one of four directions, and the directions."""
    labels = torch.randint(4, (count,))
    angle, phase = labels * torch.pi / 4, torch.rand(count) * 2 * torch.pi
    y, x = torch.meshgrid(torch.arange(12), torch.arange(12), indexing="ij")
    waves = torch.sin(x * angle.cos().view(-1, 1, 1) + y * angle.sin().view(-1, 1, 1) + phase.view(-1, 1, 1))
    return (waves + 1.5 * torch.randn(count, 12, 12)).unsqueeze(1), labels


def main(steps: int = 300) -> None:
    """Swap, train, take the masks out again."""
    torch.manual_seed(0)
    train, test = stripes(500), stripes(2000)
    model, report = mrreg.swap_dropout(Classifier(), k=5, example_inputs=train[0][:2])  # line 1
    print(report)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    mrreg.attach(optimizer, model)  # line 2
    for _ in range(steps):
        batch = torch.randint(500, (50,))
        loss = cross_entropy(model(train[0][batch]), train[1][batch])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    plain = mrreg.unwrap(model).eval()  # a plain torch model again
    with torch.no_grad():
        accuracy = (plain(test[0]).argmax(1) == test[1]).float().mean()
    print(f"{accuracy:.1%} of 2000 new images right after {steps} steps with masks where dropout was")


if __name__ == "__main__":
    main()
