#pragma once

#include <string>
#include <utility>
#include <vector>

// What this process logs meanwhile.
namespace aft {

// The fields of a line of the log, in their order.
struct LogLine {
  std::vector<std::pair<std::string, std::string>> fields;

  bool has(const std::string& name) const;
  // Fails the test where there is none.
  const std::string& operator[](const std::string& name) const;
  double Number(const std::string& name) const;
};

// What this process writes to stderr, from here on until it goes.
class CapturedLog {
 public:
  CapturedLog();
  ~CapturedLog();
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  // What there is by now.
  std::string Text() const;
  // Of that event; "": all.
  std::vector<LogLine> Lines(const std::string& event = "") const;

 private:
  const int stderr_;
  const int file_;
};

}  // namespace aft
