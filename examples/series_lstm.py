"""A time series with an LSTM: tomorrow's 24 hours from the last week.

The load of an electricity grid is invented: a day's and a week's shape, weather that changes slowly, noise. Windows
overlap, so the data set cuts them from the series when they are asked for. Printed: the mean error on later days,
beside those of the simplest forecasts, the same hours a week and a day before."""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import hogwild

WEEK, DAY = 168, 24
HOURS = 260 * DAY


def load_of_grid() -> Tensor:
    """Return the load (HOURS,), about 0 with a standard deviation of about 1."""
    draw = torch.Generator().manual_seed(1)
    hour = torch.arange(HOURS)
    weather = torch.zeros(HOURS)
    for now in range(1, HOURS):
        weather[now] = 0.98 * weather[now - 1] + 0.12 * torch.randn((), generator=draw)
    is_weekend = hour // DAY % 7 >= 5
    day = torch.sin(2 * torch.pi * (hour % DAY) / DAY - 1.5) * torch.where(is_weekend, 0.4, 1.0)
    return day + weather + 0.05 * torch.randn(HOURS, generator=draw)


class Windows(Dataset):
    """A week and the day after it, from each hour on."""

    def __init__(self, series: Tensor) -> None:
        self.series = series

    def __len__(self) -> int:
        return len(self.series) - WEEK - DAY + 1

    def __getitem__(self, start: int) -> tuple[Tensor, Tensor]:
        window = self.series[start : start + WEEK + DAY]
        return window[:WEEK, None], window[WEEK:]


class Forecast(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, width, batch_first=True)
        self.head = nn.Linear(width, DAY)

    def forward(self, week: Tensor) -> Tensor:
        """Return the next day (B, 24) for weeks (B, 168, 1): a correction of the last day."""
        states, _ = self.lstm(week)
        return week[:, -DAY:, 0] + self.head(states[:, -1])


torch.manual_seed(1)
series = load_of_grid()
known, later = series[: 200 * DAY], series[200 * DAY :]
model = Forecast()
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

result = hogwild.train(
    model, Windows(known), nn.L1Loss(), optimizer, procs=2, epochs=3, batch_size=64, val=Windows(later)
)

windows = [Windows(later)[start] for start in range(len(Windows(later)))]
week, day = (torch.stack(parts) for parts in zip(*windows, strict=True))
week_ago, day_ago = ((day - week[:, hours, 0]).abs().mean() for hours in (slice(DAY), slice(-DAY, None)))
print(f"{result.samples:,} windows in {result.updates:,} updates by {result.procs} workers")
print(f"mean error {result.metrics['loss']:.3f}; of the same hours a week ago {week_ago:.3f}, a day ago {day_ago:.3f}")
