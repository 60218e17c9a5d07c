"""Goldens of the packages' AFT modules: aft_pytorch (bidirectional) and labml_nn (causal)."""

import aft_pytorch
import numpy as np
import torch
from labml_nn.transformers import aft as labml_aft
from labml_nn.transformers.utils import subsequent_mask

from references import equations as eq
from references.checks import agree, same
from references.store import state_dict, write

D, T_MAX, WINDOW = 32, 64, 8
LENGTHS = (1, WINDOW - 1, WINDOW, WINDOW + 1, T_MAX)


def normal(rng, *shape, std=1.0):
  return (std * rng.standard_normal(shape)).astype(np.float32)


def randomise(module, rng):
  """Draws weights that give activations of O(1), in the order of the state_dict. Integers stay as they are."""
  with torch.no_grad():
    for name, value in module.state_dict().items():
      if not value.is_floating_point():
        continue
      if value.dim() == 1:
        std = 0.2
      else:
        std = 1.0 if "bias" in name else value.shape[-1]**-0.5
      value.copy_(torch.from_numpy(normal(rng, *value.shape, std=std)))
  return module.eval()


def save(out, name, state, cases, about):
  """Writes the module's state_dict as a user has it, and its inputs and outputs in a second file."""
  write(out / f"{name}.safetensors", state, about)
  write(out / f"{name}.cases.safetensors", cases, about)


def linear(state, name, x):
  y = x.astype(np.float64) @ state[name + ".weight"].astype(np.float64).T
  return y + state[name + ".bias"] if name + ".bias" in state else y


def aft_pytorch_layer(state, x, w):
  """Computes the whole module on one sequence, in float64. w [T, T]."""
  y = eq.aft(linear(state, "to_q", x), linear(state, "to_k", x), linear(state, "to_v", x), w,
             eq.everything(len(x)))
  return linear(state, "project", y)


def aft_pytorch_goldens(out, rng):
  kinds = {"full": aft_pytorch.AFTFull, "simple": aft_pytorch.AFTSimple,
           "local": aft_pytorch.AFTLocal}
  for kind, make in kinds.items():
    for hidden in (16, 32):
      name = f"aft_pytorch_{kind}_{hidden}"
      options = {"s": WINDOW} if kind == "local" else {}
      module = randomise(make(T_MAX, D, hidden_dim=hidden, **options), rng)
      state = {k: v.copy() for k, v in state_dict(module).items()}
      about = {"package": "aft-pytorch", "class": make.__name__, "dim": D, "hidden_dim": hidden,
               "max_seqlen": T_MAX, "causal": "false", **options}
      x = normal(rng, T_MAX, D)
      cases = {"x": x}
      w = state.get("wbias", np.zeros((T_MAX, T_MAX))).astype(np.float64)
      if kind == "local":
        w = eq.band(w, WINDOW)
      for t in LENGTHS:
        want = aft_pytorch_layer(state, x[:t], w[:t, :t])
        with torch.no_grad():
          got = module(torch.from_numpy(x[None, :t]))[0].numpy()
        agree(f"{name} T={t}", got, want)
        cases[f"expected.{t}"] = want.astype(np.float32)
        cases[f"package.{t}"] = got
      if kind == "local" and hidden == 16:
        # The forward pass replaced the parameter: it kept the band and set all else to 0.
        after = state_dict(module)["wbias"]
        assert (after == eq.band(state["wbias"], WINDOW)).all() and (after != state["wbias"]).any()
        cases["wbias_after_forward"] = after
      save(out, name, state, cases, about)


def aft_pytorch_overflow(out, rng):
  """The package computes exp(K) without subtracting a maximum, so K > 88 gives inf / inf."""
  module = randomise(aft_pytorch.AFTFull(16, D, hidden_dim=16), rng)
  with torch.no_grad():
    module.to_k.bias += 100.0
  state, x = state_dict(module), normal(rng, 16, D)
  want = aft_pytorch_layer(state, x, state["wbias"].astype(np.float64))
  with torch.no_grad():
    got = module(torch.from_numpy(x[None]))[0].numpy()
    in_float64 = module.double()(torch.from_numpy(x[None]).double())[0].numpy()
  same("aft_pytorch overflow, in float64", in_float64, want)
  assert not np.isfinite(got).any() and np.isfinite(want).all()
  about = {"package": "aft-pytorch", "class": "AFTFull", "dim": D, "hidden_dim": 16,
           "max_seqlen": 16, "causal": "false",
           "difference": "the package is not finite where a key exceeds 88"}
  save(out, "aft_pytorch_overflow", state,
       {"x": x, "expected.16": want.astype(np.float32), "package.16": got}, about)


def labml_layer(state, x, window):
  """Computes the causal AFTLocal on one sequence, in float64."""
  t = len(x)
  w = eq.band(state["pos_bias"].astype(np.float64), window)[:t, :t]
  y = eq.aft(linear(state, "query", x), linear(state, "key", x), linear(state, "value", x), w,
             eq.causal(t))
  return linear(state, "output", y)


def labml_forward(module, x):
  """Runs the package on x [T, D]. It expects [T, batch, D] and a bool mask [T, T, 1]."""
  x = torch.from_numpy(x[:, None])
  x = x.to(module.pos_bias.dtype)
  with torch.no_grad():
    return module(query=x, key=x, value=x, mask=subsequent_mask(len(x)))[:, 0].numpy()


def labml_goldens(out, rng):
  for bias in (True, False):
    name = "labml_aft_local" if bias else "labml_aft_local_nobias"
    module = randomise(labml_aft.AFTLocal(D, T_MAX, WINDOW, bias=bias), rng)
    state, x = {k: v.copy() for k, v in state_dict(module).items()}, normal(rng, T_MAX, D)
    assert state["local_mask"][0].sum() == WINDOW and ("query.bias" in state) == bias
    about = {"package": "labml-nn", "class": "AFTLocal", "d_model": D, "seq_len": T_MAX,
             "local_window_size": WINDOW, "bias": str(bias).lower(), "causal": "true"}
    cases = {"x": x}
    for t in LENGTHS:
      want, got = labml_layer(state, x[:t], WINDOW), labml_forward(module, x[:t])
      agree(f"{name} T={t}", got, want)
      cases[f"expected.{t}"] = want.astype(np.float32)
      cases[f"package.{t}"] = got
    save(out, name, state, cases, about)
    same(f"{name}, in float64", labml_forward(module.double(), x), labml_layer(state, x, WINDOW))


def labml_spread(out, rng):
  """The package subtracts the maximum over all keys, future ones included: when keys rise by more
  than 104 in a text, its early rows are 0 / 0 in fp32."""
  module = randomise(labml_aft.AFTLocal(D, T_MAX, WINDOW), rng)
  x = normal(rng, T_MAX, D)
  x[:, 0] = np.linspace(-90, 90, T_MAX)
  with torch.no_grad():
    module.query.weight[:, 0] = module.value.weight[:, 0] = 0
    module.key.weight[:, 0] = 1
  state = {k: v.copy() for k, v in state_dict(module).items()}
  want, got = labml_layer(state, x, WINDOW), labml_forward(module, x)
  same("labml spread, in float64", labml_forward(module.double(), x), want)
  bad = int((~np.isfinite(got)).any(axis=1).sum())
  assert 0 < bad < T_MAX and np.isfinite(want).all()
  print(f"labml spread: {bad} of {T_MAX} rows are not finite in the package")
  about = {"package": "labml-nn", "class": "AFTLocal", "d_model": D, "seq_len": T_MAX,
           "local_window_size": WINDOW, "bias": "true", "causal": "true",
           "difference": f"{bad} rows of the package are not finite"}
  save(out, "labml_spread", state,
       {"x": x, f"expected.{T_MAX}": want.astype(np.float32), f"package.{T_MAX}": got}, about)


def labml_pickled(out, rng):
  """Writes one state_dict by torch.save, with a tensor that is a view, and as safetensors."""
  module = randomise(labml_aft.AFTLocal(8, 16, 3), rng)
  names = module.state_dict()
  names["query.weight"] = names["query.weight"].T.contiguous().T
  assert not names["query.weight"].is_contiguous()
  torch.save(names, out / "labml_pickled.pt")
  write(out / "labml_pickled.safetensors", state_dict(module), {"package": "labml-nn"})


def packages_agree(rng):
  """Checks that AFTFull with w = -inf for the future and 0 outside the window equals labml's causal AFTLocal."""
  labml = randomise(labml_aft.AFTLocal(D, T_MAX, WINDOW), rng)
  full = aft_pytorch.AFTFull(T_MAX, D, hidden_dim=D)
  names = {"to_q": "query", "to_k": "key", "to_v": "value", "project": "output"}
  state = state_dict(labml)
  w = np.where(eq.causal(T_MAX), eq.band(state["pos_bias"], WINDOW), -np.inf).astype(np.float32)
  full.load_state_dict({"wbias": torch.from_numpy(w),
                        **{f"{a}.{p}": torch.from_numpy(state[f"{b}.{p}"])
                           for a, b in names.items() for p in ("weight", "bias")}})
  x = normal(rng, T_MAX, D)
  with torch.no_grad():
    y = full.double()(torch.from_numpy(x[None]).double())[0].numpy()
  same("aft_pytorch made causal equals labml", y, labml_forward(labml.double(), x))


def make(out):
  rng = np.random.default_rng(1)
  aft_pytorch_goldens(out, rng)
  aft_pytorch_overflow(out, rng)
  labml_goldens(out, rng)
  labml_spread(out, rng)
  labml_pickled(out, rng)
  packages_agree(rng)
