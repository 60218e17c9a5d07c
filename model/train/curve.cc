#include "model/train/curve.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/atomic_file.h"

namespace aft {
namespace {

std::string Header(const FigureNames& names) {
  std::string header = absl::StrCat("step,", names.amount, ",seconds,", names.train_column);
  for (const FigureNames::HeldOut& figure : names.held_out) {
    absl::StrAppend(&header, ",", figure.column);
  }
  return header + ",learning_rate";
}

// One curve of the picture.
struct Line {
  std::string name;
  const char* color;
  std::vector<double> values;  // one for each point
};

std::vector<Line> Lines(const FigureNames& names, const std::vector<CurvePoint>& curve) {
  constexpr const char* kColors[] = {"#1f77b4", "#d62728", "#2ca02c"};
  std::vector<Line> lines = {{"training", "#888888", {}}};
  for (const CurvePoint& point : curve) lines[0].values.push_back(point.train);
  for (size_t i = 0; i < names.held_out.size(); ++i) {
    if (!names.held_out[i].is_loss) continue;
    lines.push_back({absl::StrCat("held out, ", names.held_out[i].name),
                     kColors[(lines.size() - 1) % std::size(kColors)],
                     {}});
    for (const CurvePoint& point : curve) lines.back().values.push_back(point.held_out[i]);
  }
  return lines;
}

// Formats 1,234,567 as "1.2M" when `most` is at least a million, and 1,234 as "1234" otherwise.
std::string Amount(double amount, double most) {
  return most >= 1e6 ? absl::StrFormat("%.1fM", amount / 1e6) : absl::StrFormat("%.0f", amount);
}

}  // namespace

absl::StatusOr<std::vector<CurvePoint>> ReadCurve(const std::string& path,
                                                  const FigureNames& names) {
  std::vector<CurvePoint> curve;
  std::ifstream file(path);
  if (!file) return curve;
  std::string line;
  std::getline(file, line);
  if (line != Header(names)) {
    return absl::DataLossError(absl::StrCat(path, ": not a curve of this version"));
  }
  while (std::getline(file, line)) {
    CurvePoint point;
    point.held_out.resize(names.held_out.size());
    std::vector<double*> numbers = {&point.seconds, &point.train};
    for (double& figure : point.held_out) numbers.push_back(&figure);
    numbers.push_back(&point.learning_rate);
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    bool read = fields.size() == numbers.size() + 2 && absl::SimpleAtoi(fields[0], &point.step) &&
                absl::SimpleAtoi(fields[1], &point.amount);
    // A figure may be inf or nan.
    for (size_t i = 0; read && i < numbers.size(); ++i) {
      read = absl::SimpleAtod(fields[i + 2], numbers[i]);
    }
    if (!read) return absl::DataLossError(absl::StrCat(path, ": bad line: ", line));
    curve.push_back(std::move(point));
  }
  return curve;
}

absl::Status WriteCurveCsv(const std::string& path, const FigureNames& names,
                           const std::vector<CurvePoint>& curve) {
  std::string text = absl::StrCat(Header(names), "\n");
  for (const CurvePoint& p : curve) {
    absl::StrAppendFormat(&text, "%d,%d,%.1f,%.4f", p.step, p.amount, p.seconds, p.train);
    for (const double figure : p.held_out) absl::StrAppendFormat(&text, ",%.4f", figure);
    absl::StrAppendFormat(&text, ",%.3g\n", p.learning_rate);
  }
  return WriteFileAtomically(path, {text});
}

absl::Status WriteCurveSvg(const std::string& path, const FigureNames& names,
                           const std::vector<CurvePoint>& curve) {
  constexpr double kWidth = 720, kHeight = 400, kLeft = 56, kRight = 16, kTop = 16, kBottom = 44;
  const std::vector<Line> lines = Lines(names, curve);
  double low = 8, high = 0, amount = 1;
  for (const Line& line : lines) {
    for (const double value : line.values) {
      if (!std::isfinite(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  for (const CurvePoint& p : curve) amount = std::max(amount, static_cast<double>(p.amount));
  // The number of horizontal lines for each unit of the loss. There are at most about ten lines.
  double per_unit = 5;
  for (int i = 0; (high - low) * per_unit > 10; ++i) per_unit /= i % 3 == 0 ? 2.5 : 2;
  low = std::floor(low * per_unit) / per_unit;
  high = std::max(low + 1 / per_unit, std::ceil(high * per_unit) / per_unit);
  const auto x = [&](double t) { return kLeft + (kWidth - kLeft - kRight) * t / amount; };
  const auto y = [&](double loss) {
    return kTop + (kHeight - kTop - kBottom) * (high - std::min(loss, high)) / (high - low);
  };
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" "
      "font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"%g\" height=\"%g\" fill=\"white\"/>\n",
      kWidth, kHeight, kWidth, kHeight);
  const auto lines_across = static_cast<int>(std::lround((high - low) * per_unit));
  for (int i = 0; i <= lines_across; ++i) {
    const double loss = low + i / per_unit;
    absl::StrAppendFormat(&svg,
                          "<line x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
                          "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%.1f</text>\n",
                          kLeft, kWidth - kRight, y(loss), y(loss), kLeft - 6, y(loss) + 4, loss);
  }
  for (int i = 0; i <= 4; ++i) {
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%g\" text-anchor=\"%s\">%s</text>\n",
                          x(amount * i / 4), kHeight - 24, i == 4 ? "end" : "middle",
                          Amount(amount * i / 4, amount));
  }
  absl::StrAppendFormat(&svg,
                        "<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">training %s; %s</text>\n",
                        kWidth / 2, kHeight - 8, names.amount, names.unit);
  double legend = kTop + 14;
  for (const Line& line : lines) {
    std::string points, circles;  // a polyline of one point is invisible
    for (size_t i = 0; i < curve.size(); ++i) {
      const double right = x(static_cast<double>(curve[i].amount));
      absl::StrAppendFormat(&points, "%.1f,%.1f ", right, y(line.values[i]));
      absl::StrAppendFormat(&circles, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2\" fill=\"%s\"/>\n",
                            right, y(line.values[i]), line.color);
    }
    absl::StrAppendFormat(
        &svg,
        "<polyline fill=\"none\" stroke-width=\"1.5\" stroke=\"%s\" points=\"%s\"/>\n%s"
        "<text x=\"%g\" y=\"%g\" text-anchor=\"end\" fill=\"%s\">%s</text>\n",
        line.color, points, circles, kWidth - kRight - 6, legend, line.color, line.name);
    legend += 16;
  }
  return WriteFileAtomically(path, {svg, "</svg>\n"});
}

}  // namespace aft
