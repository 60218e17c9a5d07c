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


def state(figures):
  if figures.get("state_per_token"):
    return f"{figures['state_per_token']:,.0f} a token"
  return shown(figures.get("state"), ",.0f")


def bits(seeds, length, figure="bits"):
  return [seed["bits"][length].get(figure) for seed in seeds if length in seed["bits"]]


def long_state(seeds, length):
  return spread(bits(seeds, length, "carried"), ".3f")


def order(seeds, length):
  """Sorts by bits per byte; what has no figure comes last."""
  found = [value for value in bits(seeds, length) if value is not None]
  return statistics.mean(found) if found else float("inf")


def model_table(models, lengths, main):
  head = ["kind", *(f"{length:,}" for length in lengths), "one long state", "training", "1 stream", "64 streams",
          "state, bytes"]
  rows = [[f"`{name}`", *(spread(bits(seeds, length), ".3f") for length in lengths), long_state(seeds, main),
           spread([seeds[0].get("rate")], ",.0f"), *(shown(seeds[0].get(f"decode/{n}"), ",.0f") for n in (1, 64)),
           state(seeds[0])]
          for name, seeds in sorted(models.items(), key=lambda item: order(item[1], main))]
  return table(head, rows)


def encoder_table(encoders):
  lengths = sorted({length for figures in encoders.values() for length in figures["accuracy"]})
  def accuracy(figures, length):
    return figures["accuracy"].get(length, {}).get("accuracy")
  rows = [[f"`{name}`", *(shown(accuracy(figures, length), ".1%") for length in lengths),
           shown(figures.get("rate"), ",.0f")]
          for name, figures in sorted(encoders.items(), key=lambda item: -(accuracy(item[1], lengths[0]) or 0))]
  return table(["kind", *(f"{length} bytes" for length in lengths), "training, texts/s"], rows)


def write_tables(path, text):
  """Replaces what is between the two marks."""
  before, _, rest = path.read_text().partition(BEGIN)
  _, _, after = rest.partition(END)
  path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def draw(path, curves, models, main):
  """Left: held-out bits per byte during training, one seed. Right: quality and speed of decoding."""
  import matplotlib  # pylint: disable=import-outside-toplevel; only the plot needs it
  matplotlib.use("svg")
  matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "aft", "axes.grid": True, "grid.alpha": 0.3,
                          "axes.spines.top": False, "axes.spines.right": False, "font.size": 9,
                          "axes.prop_cycle": matplotlib.cycler(color=matplotlib.colormaps["tab20"].colors)}
  from matplotlib import pyplot  # pylint: disable=import-outside-toplevel; it needs the settings above
  figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
  for name, curve in curves.items():
    left.plot(*zip(*curve), linewidth=1, marker=".", label=name)
    seeds = models[name]
    if (speed := seeds[0].get("decode/64")) and order(seeds, main) < float("inf"):
      right.plot(speed, order(seeds, main), "o", color=left.lines[-1].get_color())
      right.annotate(name, (speed, order(seeds, main)), xytext=(4, 3), textcoords="offset points", fontsize=8)
  left.set_xlabel("tokens of training")
  left.set_ylabel("held-out bits per byte")
  left.legend(frameon=False, fontsize=7, ncols=2)
  right.set_xlabel("tokens/s, 64 streams")
  right.set_ylabel(f"bits per byte, texts of {main:,}")
  right.set_xscale("log")
  figure.savefig(path, metadata={"Date": None})
  path.write_text(" ".join(path.read_text().split()) + "\n")  # one line instead of a thousand
