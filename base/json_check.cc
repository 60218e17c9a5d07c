#include "base/json_check.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "nlohmann/json.hpp"

namespace aft {
namespace {

using Json = nlohmann::json;

// Returns whether brackets are nested deeper than `max_levels`. `text` need not be valid JSON.
bool IsTooDeep(absl::string_view text, int max_levels) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_levels) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

// Finds the members wrong_byte, why and twice.
struct JsonChecker final : nlohmann::json_sax<Json> {
  struct Level {
    std::set<std::string> keys;
    std::string current;  // the key whose value is being read
  };
  std::vector<Level> levels;
  JsonCheck found;

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(int64_t /*value*/) override { return true; }
  bool number_unsigned(uint64_t /*value*/) override { return true; }
  bool number_float(double /*value*/, const std::string& /*text*/) override { return true; }
  bool string(std::string& /*value*/) override { return true; }
  bool binary(Json::binary_t& /*value*/) override { return true; }
  bool start_object(size_t /*elements*/) override {
    levels.emplace_back();
    return true;
  }
  bool key(std::string& key) override {
    levels.back().current = key;
    if (!levels.back().keys.insert(key).second && found.twice.empty()) {
      for (const Level& level : levels) found.twice.push_back(level.current);
    }
    return true;
  }
  bool end_object() override {
    levels.pop_back();
    return true;
  }
  bool start_array(size_t /*elements*/) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string& /*token*/,
                   const Json::exception& error) override {
    found.wrong_byte = position;
    found.why = error.what();
    return false;
  }
};

}  // namespace

std::string JsonCheck::TwicePath() const {
  return absl::StrJoin(twice, ".", [](std::string* out, const std::string& key) {
    absl::StrAppend(out, key.empty() ? "\"\"" : key);
  });
}

JsonCheck CheckJson(absl::string_view text, int max_levels) {
  JsonCheck check;
  check.too_deep = IsTooDeep(text, max_levels);
  if (check.too_deep) return check;
  const size_t nul = text.find('\0');
  if (nul != absl::string_view::npos) {
    check.wrong_byte = nul + 1;
    check.why = "it has a NUL byte";
    return check;
  }
  JsonChecker checker;
  ParseJson(text, checker);
  return checker.found;
}

}  // namespace aft
