#include "model/train/curve.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/atomic_file.h"

namespace aft {
namespace {

constexpr char kHeader[] =
    "step,tokens,seconds,train_bpb,held_out_fresh_bpb,held_out_carried_bpb,learning_rate";

}  // namespace

absl::StatusOr<std::vector<CurvePoint>> ReadCurve(const std::string& path) {
  std::vector<CurvePoint> curve;
  std::ifstream file(path);
  if (!file) return curve;
  std::string line;
  std::getline(file, line);
  if (line != kHeader)
    return absl::DataLossError(absl::StrCat(path, ": not a curve of this version"));
  while (std::getline(file, line)) {
    std::replace(line.begin(), line.end(), ',', ' ');
    std::istringstream fields(line);
    CurvePoint point;
    if (!(fields >> point.step >> point.tokens >> point.seconds >> point.train >> point.fresh >>
          point.carried >> point.learning_rate)) {
      return absl::DataLossError(absl::StrCat(path, ": bad line: ", line));
    }
    curve.push_back(point);
  }
  return curve;
}

absl::Status WriteCurveCsv(const std::string& path, const std::vector<CurvePoint>& curve) {
  std::string text = absl::StrCat(kHeader, "\n");
  for (const CurvePoint& p : curve) {
    absl::StrAppendFormat(&text, "%d,%d,%.1f,%.4f,%.4f,%.4f,%.3g\n", p.step, p.tokens, p.seconds,
                          p.train, p.fresh, p.carried, p.learning_rate);
  }
  return WriteFileAtomically(path, {text});
}

absl::Status WriteCurveSvg(const std::string& path, const std::vector<CurvePoint>& curve) {
  constexpr double kWidth = 720, kHeight = 400, kLeft = 56, kRight = 16, kTop = 16, kBottom = 44;
  double low = 8, high = 0, tokens = 1;
  for (const CurvePoint& p : curve) {
    low = std::min({low, p.train, p.fresh, p.carried});
    high = std::max({high, p.train, p.fresh, p.carried});
    tokens = std::max(tokens, static_cast<double>(p.tokens));
  }
  low = std::floor(low * 5) / 5;
  high = std::max(low + 0.2, std::ceil(std::min(high, low + 2) * 5) / 5);
  const auto x = [&](double t) { return kLeft + (kWidth - kLeft - kRight) * t / tokens; };
  const auto y = [&](double bits) {
    return kTop + (kHeight - kTop - kBottom) * (high - std::min(bits, high)) / (high - low);
  };
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" "
      "font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"%g\" height=\"%g\" fill=\"white\"/>\n",
      kWidth, kHeight, kWidth, kHeight);
  for (double bits = low; bits < high + 0.01; bits += 0.2) {
    absl::StrAppendFormat(&svg,
                          "<line x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
                          "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%.1f</text>\n",
                          kLeft, kWidth - kRight, y(bits), y(bits), kLeft - 6, y(bits) + 4, bits);
  }
  for (int i = 0; i <= 4; ++i) {
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%.1fM</text>\n",
                          x(tokens * i / 4), kHeight - 24, tokens * i / 4e6);
  }
  absl::StrAppendFormat(
      &svg,
      "<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">training tokens; bits per byte</text>\n",
      kWidth / 2, kHeight - 8);
  struct Line {
    double CurvePoint::*value;
    absl::string_view color, name;
  };
  double legend = kTop + 14;
  for (const Line& line : {Line{&CurvePoint::train, "#888888", "training"},
                           Line{&CurvePoint::fresh, "#1f77b4", "held out, from an empty state"},
                           Line{&CurvePoint::carried, "#d62728", "held out, one long state"}}) {
    absl::StrAppend(&svg, "<polyline fill=\"none\" stroke-width=\"1.5\" stroke=\"", line.color,
                    "\" points=\"");
    for (const CurvePoint& p : curve) {
      absl::StrAppendFormat(&svg, "%.1f,%.1f ", x(static_cast<double>(p.tokens)), y(p.*line.value));
    }
    absl::StrAppendFormat(
        &svg, "\"/>\n<text x=\"%g\" y=\"%g\" text-anchor=\"end\" fill=\"%s\">%s</text>\n",
        kWidth - kRight - 6, legend, line.color, line.name);
    legend += 16;
  }
  return WriteFileAtomically(path, {svg, "</svg>\n"});
}

}  // namespace aft
