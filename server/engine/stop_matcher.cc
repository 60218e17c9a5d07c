#include "server/engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace aft::server {

StopMatcher::StopMatcher(std::vector<std::string> strings, bool include_match)
    : include_match_(include_match) {
  for (std::string& text : strings) {
    if (text.empty()) continue;
    std::vector<size_t> border(text.size(), 0);
    for (size_t i = 1, length = 0; i < text.size(); ++i) {
      while (length > 0 && text[i] != text[length]) length = border[length - 1];
      if (text[i] == text[length]) ++length;
      border[i] = length;
    }
    patterns_.push_back({std::move(text), std::move(border)});
  }
}

bool StopMatcher::Append(absl::string_view bytes, std::string& out, bool counts) {
  if (patterns_.empty()) {
    out.append(bytes.data(), bytes.size());
    return false;
  }
  for (const char byte : bytes) {
    held_.push_back(byte);
    const Pattern* found = nullptr;
    size_t undecided = 0;
    for (Pattern& pattern : patterns_) {
      Advance(pattern, byte);
      if (!counts && pattern.matched == pattern.text.size()) {
        pattern.matched = pattern.border.back();
      }
      undecided = std::max(undecided, pattern.matched);
      if (pattern.matched == pattern.text.size() &&
          (found == nullptr || pattern.text.size() > found->text.size())) {
        found = &pattern;
      }
    }
    if (found != nullptr) {
      out.append(held_, 0, held_.size() - (include_match_ ? 0 : found->text.size()));
      held_.clear();
      match_ = found->text;
      return true;
    }
    const size_t decided = held_.size() - undecided;
    out.append(held_, 0, decided);
    held_.erase(0, decided);
  }
  return false;
}

void StopMatcher::Flush(std::string& out) {
  out += held_;
  held_.clear();
}

void StopMatcher::Advance(Pattern& pattern, char byte) {
  size_t& matched = pattern.matched;
  while (matched > 0 && pattern.text[matched] != byte) matched = pattern.border[matched - 1];
  if (pattern.text[matched] == byte) ++matched;
}

}  // namespace aft::server
