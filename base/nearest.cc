#include "base/nearest.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace aft {
namespace {

// The Levenshtein distance: the number of characters to insert, delete or replace.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string Nearest(absl::string_view word, const std::vector<std::string>& words) {
  size_t least = std::max<size_t>(2, word.size() / 3) + 1;
  std::string nearest;
  for (const std::string& one : words) {
    const size_t distance = Distance(word, one);
    if (distance >= least) continue;
    least = distance;
    nearest = one;
  }
  return nearest;
}

std::string DidYouMean(absl::string_view meant) {
  return meant.empty() ? "" : absl::StrCat("; did you mean ", meant, "?");
}

}  // namespace aft
