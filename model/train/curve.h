#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace aft {

// One row of curve.csv.
struct CurvePoint {
  int64_t step = 0;
  int64_t tokens = 0;
  double seconds = 0;  // of training, over all resumed runs
  double train = 0;    // bits per byte since the last point
  double fresh = 0;    // held-out bits per byte, see HeldOut
  double carried = 0;
  double learning_rate = 0;
};

absl::StatusOr<std::vector<CurvePoint>> ReadCurve(const std::string& path);  // empty if no file
absl::Status WriteCurveCsv(const std::string& path, const std::vector<CurvePoint>& curve);
// The three bits-per-byte columns over tokens, as a standalone picture.
absl::Status WriteCurveSvg(const std::string& path, const std::vector<CurvePoint>& curve);

}  // namespace aft
