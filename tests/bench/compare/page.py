"""Tables and plot of compare.py's figures."""

import statistics

BEGIN, END = "<!-- ./dev compare writes from here -->\n", "<!-- to here -->\n"


def table(head, rows):
  lines = [head, ["---"] + ["--:"] * (len(head) - 1), *rows]
  return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def shown(value, form):
  return "–" if value is None else format(value, form)


def spread(values, form):
  """The mean and, of several seeds, half the distance between the best and the worst."""
  values = [value for value in values if value is not None]
  if len(values) < 2:
    return shown(values[0] if values else None, form)
  return f"{statistics.mean(values):{form}} ± {(max(values) - min(values)) / 2:{form}}"


def state(speed):
  if speed.get("state_per_token"):
    return f"{speed['state_per_token']:,.0f} a token"
  return shown(speed.get("state"), ",.0f")


def bits(seeds, length, figure="bits"):
  return [seed[length].get(figure) for seed in seeds if length in seed]


def quality(seeds, length):
  """Bits per byte; infinite without a figure, so that such a row comes last."""
  found = [value for value in bits(seeds, length) if value is not None]
  return statistics.mean(found) if found else float("inf")


def model_table(speeds, models, lengths, main):
  head = ["kind", *(f"{length:,}" for length in lengths), "one long state", "training", "1 stream", "64 streams",
          "state, bytes"]
  rows = [[f"`{name}`", *(spread(bits(seeds, length), ".3f") for length in lengths),
           spread(bits(seeds, main, "carried"), ".3f"),
           *(shown(speeds[name].get(figure), ",.0f") for figure in ("train", "decode/1", "decode/64")),
           state(speeds[name])]
          for name, seeds in sorted(models.items(), key=lambda item: quality(item[1], main))]
  return table(head, rows)


def encoder_table(encoders):
  lengths = sorted({length for accuracy in encoders.values() for length in accuracy})
  rows = [[f"`{name}`", *(shown(accuracy[length], ".1%") for length in lengths)]
          for name, accuracy in sorted(encoders.items(), key=lambda item: -(item[1][lengths[0]] or 0))]
  return table(["kind", *(f"{length} bytes" for length in lengths)], rows)


def write_tables(path, text):
  """Replaces what is between the two marks."""
  before, _, rest = path.read_text().partition(BEGIN)
  _, _, after = rest.partition(END)
  path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def draw(path, curves, speeds, models, main):
  """Left: held-out bits per byte during training, one seed. Right: quality and speed of decoding."""
  import matplotlib  # pylint: disable=import-outside-toplevel; only the plot needs it
  matplotlib.use("svg")
  matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "aft", "axes.grid": True, "grid.alpha": 0.3,
                          "axes.spines.top": False, "axes.spines.right": False, "font.size": 9,
                          "axes.prop_cycle": matplotlib.cycler(color=matplotlib.colormaps["tab20"].colors)}
  from matplotlib import pyplot  # pylint: disable=import-outside-toplevel; it needs the settings above
  figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
  places = {}
  for name, curve in curves.items():
    left.plot(*zip(*curve), linewidth=1, marker=".", label=name)
    place = speeds[name].get("decode/64"), quality(models[name], main)
    if place[0] and place[1] < float("inf"):
      right.plot(*place, "o", color=left.lines[-1].get_color())
      places[name] = place
  for name, (x, y) in places.items():
    # On the right the label would hide a point that is near.
    crowded = any(x < other <= 1.3 * x and abs(bits - y) < 0.03 for other, bits in places.values())
    right.annotate(name, (x, y), xytext=(-4 if crowded else 4, 3), textcoords="offset points",
                   ha="right" if crowded else "left", fontsize=8)
  left.set_xlabel("tokens of training")
  left.set_ylabel("held-out bits per byte")
  left.legend(frameon=False, fontsize=7, ncols=2)
  right.set_xlabel("tokens/s, 64 streams")
  right.set_ylabel(f"bits per byte, texts of {main:,}")
  right.set_xscale("log")
  figure.savefig(path, metadata={"Date": None})
  path.write_text(" ".join(path.read_text().split()) + "\n")  # one line instead of a thousand
