"""Linear models."""

from torch import Tensor, nn


class LogisticRegression(nn.Module):
    """One linear layer: with `CrossEntropyLoss` this is multinomial logistic regression, a convex problem, so
    every training run can be compared with a known optimum."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, classes) of x (B, ...) float, with `features` values per sample after flattening."""
        logits: Tensor = self.linear(x.flatten(1))
        return logits
