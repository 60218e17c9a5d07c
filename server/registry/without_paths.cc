#include "server/registry/without_paths.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/match.h"

namespace aft::server {
namespace {

// Characters that no path in an error message contains.
constexpr absl::string_view kBreaks = " \t\n\"'`:;,()[]<>=";

// The length of a known beginning of a path with which the text begins; 0: there is none.
size_t KnownPath(absl::string_view text, const std::vector<std::string>& folders) {
  const bool absolute = text.size() > 1 && text[0] == '/' && !absl::StrContains(kBreaks, text[1]);
  size_t known = absolute ? 1 : 0;
  for (const std::string& folder : folders) {
    if (absl::StartsWith(text, folder)) known = std::max(known, folder.size());
  }
  return known;
}

}  // namespace

std::string WithoutPaths(absl::string_view text, const std::vector<std::string>& folders) {
  std::string out;
  bool begins = true;
  for (size_t at = 0; at < text.size();) {
    const absl::string_view rest = text.substr(at);
    const size_t known = begins ? KnownPath(rest, folders) : 0;
    if (known == 0) {
      begins = absl::StrContains(kBreaks, rest[0]);
      out.push_back(rest[0]);
      ++at;
      continue;
    }
    const absl::string_view path = rest.substr(0, rest.find_first_of(kBreaks, known));
    const absl::string_view name = path.substr(path.rfind('/') + 1);
    out.append(name.data(), name.size());
    at += path.size();
    begins = false;
  }
  return out;
}

}  // namespace aft::server
