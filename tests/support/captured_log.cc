#include "tests/support/captured_log.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "gtest/gtest.h"
#include "server/observability/log.h"

namespace aft {
namespace {

// Parses a line in logfmt.
LogLine Parse(absl::string_view text) {
  LogLine line;
  while (!text.empty()) {
    const size_t equals = text.find('=');
    if (equals == absl::string_view::npos) break;
    std::string name(text.substr(0, equals));
    text.remove_prefix(equals + 1);
    std::string value;
    if (absl::StartsWith(text, "\"")) {
      size_t at = 1;
      for (; at < text.size() && text[at] != '"'; ++at) {
        if (text[at] == '\\') ++at;
        value += text[at];
      }
      text.remove_prefix(std::min(at + 1, text.size()));
    } else {
      value = std::string(text.substr(0, text.find(' ')));
      text.remove_prefix(value.size());
    }
    if (!text.empty()) text.remove_prefix(1);
    line.fields.emplace_back(std::move(name), std::move(value));
  }
  return line;
}

}  // namespace

bool LogLine::has(const std::string& name) const {
  return std::any_of(fields.begin(), fields.end(),
                     [&](const auto& field) { return field.first == name; });
}

const std::string& LogLine::operator[](const std::string& name) const {
  static const std::string kNone = "absent";
  for (const auto& [field, value] : fields) {
    if (field == name) return value;
  }
  ADD_FAILURE() << "no field " << name;
  return kNone;
}

double LogLine::Number(const std::string& name) const {
  double number = -1;
  EXPECT_TRUE(absl::SimpleAtod((*this)[name], &number)) << name << "=" << (*this)[name];
  return number;
}

CapturedLog::CapturedLog() : stderr_(dup(STDERR_FILENO)), file_(memfd_create("log", MFD_CLOEXEC)) {
  AFT_CHECK(stderr_ >= 0 && file_ >= 0);
  EXPECT_TRUE(server::log::Flush(std::chrono::hours(1)));
  AFT_CHECK(dup2(file_, STDERR_FILENO) >= 0);
}

CapturedLog::~CapturedLog() {
  EXPECT_TRUE(server::log::Flush(std::chrono::hours(1)));
  AFT_CHECK(dup2(stderr_, STDERR_FILENO) >= 0);
  close(stderr_);
  close(file_);
}

std::string CapturedLog::Text() const {
  EXPECT_TRUE(server::log::Flush(std::chrono::hours(1)));
  std::string text(static_cast<size_t>(lseek(file_, 0, SEEK_END)), '\0');
  AFT_CHECK(pread(file_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  return text;
}

std::vector<LogLine> CapturedLog::Lines(const std::string& event) const {
  std::vector<LogLine> lines;
  const std::string text = Text();
  const std::string marker = absl::StrCat(" event=", event, " ");
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (event.empty() || absl::StrContains(line, marker)) lines.push_back(Parse(line));
  }
  return lines;
}

}  // namespace aft
