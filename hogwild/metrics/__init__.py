"""What an evaluation reports: the loss, and metrics that are named in a job, by the model, or the user's own.

loss_sums.py   the loss of a whole set from its batches       predictions.py   what an output says
additive.py     metrics that add up                            whole_set.py    metrics that need all outputs at once
panel.py    the metrics of one job"""

from hogwild.metrics.loss_sums import Loss as Loss
from hogwild.metrics.panel import Own as Own
from hogwild.metrics.panel import Panel as Panel
from hogwild.metrics.panel import meets as meets
from hogwild.metrics.panel import named as named
