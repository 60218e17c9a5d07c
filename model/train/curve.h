#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace aft {

// The names of the figures of a run.
struct FigureNames {
  // A held-out figure: its column in curve.csv and its name in a sentence.
  struct HeldOut {
    std::string column;
    std::string name;
    bool is_loss = true;  // in `unit`, and drawn with the training loss; otherwise a share
  };
  std::string amount;        // what steps consume: "tokens", "images"
  std::string unit;          // of the losses: "bits per byte"
  std::string train_column;  // the training loss in curve.csv
  std::vector<HeldOut> held_out;
};

// One row of curve.csv.
struct CurvePoint {
  int64_t step = 0;
  int64_t amount = 0;            // FigureNames::amount so far
  double seconds = 0;            // of training, over all resumed runs
  double train = 0;              // the mean loss since the last point, or since the run (re)started
  std::vector<double> held_out;  // in the order of FigureNames::held_out
  double learning_rate = 0;      // of the step that follows
};

// Reads curve.csv. The result is empty if there is no file. DATA_LOSS: it is not a curve with these
// names.
absl::StatusOr<std::vector<CurvePoint>> ReadCurve(const std::string& path,
                                                  const FigureNames& names);
absl::Status WriteCurveCsv(const std::string& path, const FigureNames& names,
                           const std::vector<CurvePoint>& curve);
// Draws the losses over the amount, as a standalone picture.
absl::Status WriteCurveSvg(const std::string& path, const FigureNames& names,
                           const std::vector<CurvePoint>& curve);

}  // namespace aft
