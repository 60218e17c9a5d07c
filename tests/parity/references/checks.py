"""Asserts that two sources of a golden agree, and prints the largest error of each comparison."""

import numpy as np

# The tolerances of a whole layer in fp32 (torch.testing's defaults), and of two float64 sources.
RTOL, ATOL = 1.3e-6, 1e-5
EXACT = 1e-12


def agree(name, got, want, rtol=RTOL, atol=ATOL):
  got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
  assert got.shape == want.shape, (name, got.shape, want.shape)
  assert np.isfinite(want).all(), name
  error = np.abs(got - want)
  print(f"{name}: {error.max():.1e}")
  assert (error <= atol + rtol * np.abs(want)).all(), (name, error.max())


def same(name, got, want):
  """Compares two float64 sources."""
  agree(name, got, want, rtol=EXACT, atol=EXACT)
