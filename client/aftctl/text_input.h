#ifndef AFT_CLIENT_AFTCTL_TEXT_INPUT_H_
#define AFT_CLIENT_AFTCTL_TEXT_INPUT_H_

#include <CLI/App.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/utf8.h"

namespace aft::client {

// Where a command's text comes from.
struct TextFlags {
  std::string prompt = "-";
  std::string file;
};

// Adds --prompt and --file. `purpose`: "Text to continue".
void AddText(CLI::App& app, const std::string& purpose, TextFlags& flags);

// The text, byte for byte. Errors: NOT_FOUND and the like for a file that cannot be read,
// RESOURCE_EXHAUSTED beyond 64 MiB.
absl::StatusOr<std::string> ReadText(const TextFlags& flags);

// Sets the text of a request: as text when it is valid UTF-8, else as raw bytes.
template <typename Request>
void SetText(std::string text, Request& request) {
  if (ToValidUtf8(text) == text) {
    request.set_text(std::move(text));
  } else {
    request.set_raw(std::move(text));
  }
}

}  // namespace aft::client

#endif  // AFT_CLIENT_AFTCTL_TEXT_INPUT_H_
