#pragma once

#include <histedit.h>

#include <memory>
#include <optional>
#include <string>

namespace aft::client {

// Lines that somebody types: with editing and a history of this session where standard input and
// output are a terminal, else as they come. To be made before other threads run. Not thread-safe.
class LineEditor {
 public:
  explicit LineEditor(const char* program);

  bool is_terminal() const { return is_terminal_; }

  // The next line, without its end; nullopt: there are no more. On a terminal `draft` is
  // what was typed already. SIGINT and SIGTERM, if they are blocked, are let through meanwhile:
  // Ctrl-C ends the process.
  std::optional<std::string> Read(const std::string& draft = "");

 private:
  template <typename Handle, void (*kEnd)(Handle*)>
  struct End {
    void operator()(Handle* handle) const { kEnd(handle); }
  };

  const bool is_terminal_;
  // Null where there is no terminal.
  std::unique_ptr<History, End<History, history_end>> history_;
  std::unique_ptr<EditLine, End<EditLine, el_end>> editor_;
};

}  // namespace aft::client
