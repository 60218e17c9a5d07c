#pragma once

#include <string>
#include <utility>
#include <vector>

namespace aft {

// The fields of a line of the log, in their order.
struct LogLine {
  std::vector<std::pair<std::string, std::string>> fields;

  bool has(const std::string& name) const;
  // Fails the test when there is no such field.
  const std::string& operator[](const std::string& name) const;
  double Number(const std::string& name) const;
};

// Captures what this process writes to stderr while the object exists.
class CapturedLog {
 public:
  CapturedLog();
  ~CapturedLog();
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  // Everything that was written so far.
  std::string Text() const;
  // The lines of one event; "": all lines.
  std::vector<LogLine> Lines(const std::string& event = "") const;

 private:
  const int stderr_;
  const int file_;
};

}  // namespace aft
