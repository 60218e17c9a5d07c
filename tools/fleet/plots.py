"""Draws the results of fleet_sim.py as NAME.svg."""

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "aft", "axes.grid": True, "grid.alpha": 0.3,
                        "axes.spines.top": False, "axes.spines.right": False, "font.size": 9}

import matplotlib.pyplot as plt  # pylint: disable=wrong-import-position; it needs the settings above


def _lines(axes, rows, x, y, by):
  for name in dict.fromkeys(row[by] for row in rows):
    points = sorted((row[x], row[y]) for row in rows if row[by] == name)
    axes.plot(*zip(*points), marker="o", markersize=3, linewidth=1, label=name)
  axes.set_ylim(bottom=0)


def _policies(rows, _):
  figure, axes = plt.subplots(1, 2, figsize=(8, 3))
  for row in rows:
    row["name"] = f"{row['policy']}, {row['proxies']} {'proxy' if row['proxies'] == 1 else 'proxies'}"
  for ax, x, chosen in ((axes[0], "load", [row for row in rows if row["replicas"] == 100]),
                        (axes[1], "replicas", [row for row in rows if row["load"] == 0.8])):
    _lines(ax, chosen, x, "e2e_p99", "name")
    ax.set_xlabel(f"{x}{', of 100 replicas' if x == 'load' else ', at 0.8 of their capacity'}")
  axes[1].set_xscale("log")
  axes[0].set_ylabel("whole request, p99, s")
  axes[0].legend(frameon=False)
  return figure


def _autoscaling(_, series):
  figure, axes = plt.subplots(2, 1, figsize=(8, 4), sharex=True)
  for name, run in series.items():
    axes[0].step(*zip(*run["sizes"], (len(run["late"]), run["sizes"][-1][1])), where="post", linewidth=1,
                 label=name)
    axes[1].plot(run["late"], linewidth=1)
  axes[0].set_ylabel("replicas")
  axes[0].legend(frameon=False)
  axes[1].set_ylabel("streams of that second that\nwait longer than 1 s")
  axes[1].set_xlabel("s; the load doubles at 60 s, a replica is ready after 30 s")
  return figure


def _affinity(rows, _):
  figure, axes = plt.subplots(1, 3, figsize=(8, 3))
  for ax, column, what in zip(axes, ("hits", "ttft_p99", "itl_p99"),
                              ("prompts whose prefix is there", "first token, p99, s", "next tokens, p99, s")):
    policies, loads = (list(dict.fromkeys(row[key] for row in rows)) for key in ("policy", "load"))
    for i, load in enumerate(loads):
      values = [row[column] for row in rows if row["load"] == load]
      ax.barh([place + 0.35 * i for place in range(len(policies))], values, 0.33, label=f"load {load}")
    ax.set_yticks(range(len(policies)), policies if column == "hits" else [""] * len(policies))
    ax.set_xlabel(what)
  axes[1].set_xscale("log")
  axes[0].legend(frameon=False)
  return figure


def _slots(rows, _):
  figure, axes = plt.subplots(1, 2, figsize=(8, 3))
  for ax, column, what in zip(axes, ("slots_used", "itl_p99"), ("share of slots taken", "next tokens, p99, s")):
    ax.plot([row["load"] for row in rows], [row[column] for row in rows], marker="o", markersize=3, linewidth=1)
    ax.set_xlabel("share of capacity")
    ax.set_ylabel(what)
  return figure


DRAWN = {"policies": _policies, "slots": _slots, "autoscaling": _autoscaling, "affinity": _affinity}


def draw(name, rows, series, folder):
  if name not in DRAWN:
    return
  figure = DRAWN[name](rows, series)
  figure.tight_layout()
  path = folder / f"{name}.svg"
  figure.savefig(path, metadata={"Date": None})
  path.write_text(" ".join(path.read_text().split()) + "\n")  # one line instead of a thousand
  plt.close(figure)
