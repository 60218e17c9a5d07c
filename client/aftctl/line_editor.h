#pragma once

#include <histedit.h>

#include <memory>
#include <optional>
#include <string>

namespace aft::client {

// Reads lines that a user types. If standard input and output are a terminal, lines can be edited,
// and there is a history of this session. Must be made before other threads run. Not thread-safe.
class LineEditor {
 public:
  LineEditor();

  bool is_terminal() const { return is_terminal_; }

  // Returns the next line without its end, or nullopt if there are no more lines. On a terminal,
  // the line starts with the text in `draft`. SIGINT and SIGTERM are unblocked meanwhile, so Ctrl-C
  // ends the process.
  std::optional<std::string> Read(const std::string& draft = "");

 private:
  template <typename Handle, void (*kEnd)(Handle*)>
  struct End {
    void operator()(Handle* handle) const { kEnd(handle); }
  };

  const bool is_terminal_;
  // Null if this is no terminal.
  std::unique_ptr<History, End<History, history_end>> history_;
  std::unique_ptr<EditLine, End<EditLine, el_end>> editor_;
};

}  // namespace aft::client
