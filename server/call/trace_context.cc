#include "server/call/trace_context.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace aft::server {
namespace {

constexpr size_t kLength = 55;  // length of version 00: "00-" trace "-" parent "-" flags

// The flags of version 00 (of Level 2): sampled, and random trace id. All others must be sent as 0.
constexpr uint32_t kKnownFlags = 0x03;

bool IsHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// An id of zeros only is invalid.
bool IsId(absl::string_view text) {
  return IsHex(text) && text.find_first_not_of('0') != absl::string_view::npos;
}

}  // namespace

std::string TraceContext::Traceparent() const {
  return absl::StrCat("00-", trace_id, "-", span_id, "-", flags);
}

std::optional<TraceContext> ParseTraceparent(absl::string_view text) {
  if (text.size() < kLength || text[2] != '-' || text[35] != '-' || text[52] != '-') {
    return std::nullopt;
  }
  const absl::string_view version = text.substr(0, 2);
  const absl::string_view trace = text.substr(3, 32);
  const absl::string_view parent = text.substr(36, 16);
  const absl::string_view flags = text.substr(53, 2);
  uint32_t set = 0;
  if (!IsHex(version) || version == "ff" || !IsId(trace) || !IsId(parent) || !IsHex(flags) ||
      !absl::SimpleHexAtoi(flags, &set)) {
    return std::nullopt;
  }
  // Later versions begin like version 00, and may have more fields after another dash.
  if (text.size() > kLength && (version == "00" || text[kLength] != '-')) return std::nullopt;
  return TraceContext{.trace_id = std::string(trace),
                      .span_id = "",
                      .parent_id = std::string(parent),
                      .flags = absl::StrFormat("%02x", set & kKnownFlags)};
}

}  // namespace aft::server
