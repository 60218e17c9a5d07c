"""Distributions of millions of values in little memory."""

import math


class Spread:
  """A histogram of positive values with bins of 1 %, so quantiles have an error of at most 1 %. Values have weights."""

  _FLOOR, _WIDTH = 1e-7, math.log(1.01)

  def __init__(self):
    self._bins, self.count, self.sum, self.max = {}, 0.0, 0.0, 0.0

  def add(self, value, weight=1.0):
    index = int(math.log(max(value, self._FLOOR) / self._FLOOR) / self._WIDTH)
    self._bins[index] = self._bins.get(index, 0.0) + weight
    self.count += weight
    self.sum += value * weight
    self.max = max(self.max, value)

  def quantile(self, share):
    """The value below which this share of the weight is; NaN if there are no values."""
    if not self.count:
      return math.nan
    wanted, index = share * self.count, 0
    for index, weight in sorted(self._bins.items()):
      wanted -= weight
      if wanted <= 1e-9 * self.count:
        break
    return min(self.max, self._FLOOR * math.exp((index + 0.5) * self._WIDTH))

  def mean(self):
    return self.sum / self.count if self.count else math.nan
