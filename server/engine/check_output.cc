#include "server/engine/check_output.h"

#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"

namespace aft::server {
namespace {

// Whether the i-th answer has `entries` entries, if there is such an answer.
template <typename Part>
bool IsWhole(const std::vector<std::vector<Part>>& answers, size_t i, size_t entries) {
  return i >= answers.size() || answers[i].size() == entries;
}

}  // namespace

absl::Status CheckOutput(const Step& step, const StepOutput& output, int64_t width) {
  size_t sampled = 0;
  size_t scored = 0;
  size_t hidden = 0;
  bool whole = true;
  for (const StepRow& row : step.input.rows) {
    if (row.output == RowOutput::kLast) ++sampled;
    if (row.output == RowOutput::kScore) {
      whole = whole && IsWhole(output.scored, scored++, row.targets.size());
    }
    if (row.output == RowOutput::kHidden) {
      whole = whole && IsWhole(output.hidden, hidden++, static_cast<size_t>(row.hidden * width));
    }
  }
  if (!whole) return absl::InternalError("the model left out tokens of a row");
  if (sampled == output.sampled.size() && scored == output.scored.size() &&
      hidden == output.hidden.size()) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("the model sampled ", output.sampled.size(), ", scored ",
                                          output.scored.size(), " and encoded ",
                                          output.hidden.size(), " rows instead of ", sampled, ", ",
                                          scored, " and ", hidden));
}

}  // namespace aft::server
